//! Names in what the programs print: metrics with their labels, and fields of JSON outputs. They
//! are collected from a daemon that runs and from commands on small inputs.

use crate::control::Setup;
use crate::functions::manifest;
use anyhow::{Context, Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::http::ask;
use regex::Regex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Ends of the paths of maps whose keys are data: their fields are shown as `*`.
const MAPS: [&str; 2] = [".opcodes", ".live_registers"];

/// A daemon with a tenant that has quotas and two functions, one of them invoked.
fn daemon() -> Result<Setup> {
    let config = "[tenant.vision]\ndevice_bytes = \"64M\"\nbest_effort_device_bytes = \"32M\"\n";
    let setup = Setup::start(&[], config)?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    setup.json(&["fn", "deploy", "faulty.kg", "--private"])?;
    setup.json(&INVOKE)?;
    Ok(setup)
}

const INVOKE: [&str; 7] = ["fn", "invoke", "affine", "x=random", "b=random", "--shape", "x=128"];

/// A metric as it is exported.
#[derive(Default)]
struct Metric {
    help: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// The table of all metrics with type, unit and labels.
pub(super) fn metrics() -> Result<String> {
    let setup = daemon()?;
    let (status, text) = ask(&setup.daemon.metrics, "GET", "/metrics", "")?;
    ensure!(status == 200, "{text}");
    let sample = Regex::new(r#"^([a-z_]+)(?:\{(.*)\})? [-+0-9.e]+$"#)?;
    let label = Regex::new(r#"([a-z_]+)="(?:[^"\\]|\\.)*""#)?;
    let mut names: Vec<String> = Vec::new();
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            names.push(name.to_owned());
            metrics.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some(found) = sample.captures(line) {
            let labels = found.get(2).map_or("", |labels| labels.as_str());
            let suffixes = ["", "_bucket", "_sum", "_count"];
            let base = suffixes.iter().filter_map(|suffix| found[1].strip_suffix(suffix));
            let name = base.into_iter().find(|name| metrics.contains_key(*name)).map(str::to_owned);
            let metric = name.and_then(|name| metrics.get_mut(&name)).with_context(|| line.to_owned())?;
            let names = label.captures_iter(labels).map(|found| found[1].to_owned());
            metric.labels.extend(names.filter(|name| name != "le"));
        }
    }
    let mut page = String::from("| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n");
    for name in names {
        let Metric { help, kind, labels } = &metrics[&name];
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(page, "| `{name}` | {kind} | {} | {} | {help} |", unit(&name), labels.join(", "))?;
    }
    Ok(page)
}

/// The unit of a metric, which its name ends in.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let name = name.strip_suffix("_max").unwrap_or(name);
    match name {
        _ if name.ends_with("byte_seconds") => "byte seconds",
        _ if name.ends_with("_seconds") => "seconds",
        _ if name.ends_with("_bytes") => "bytes",
        _ if name.ends_with("_us") => "microseconds",
        _ => "",
    }
}

/// The fields of what every command with `--json` prints, by command. Commands that take
/// long or whose output depends on the machine are left out.
pub(super) fn json() -> Result<String> {
    let setup = daemon()?;
    let path = |name: &str| setup.path(name).display().to_string();
    std::fs::write(setup.path("null.onnx"), build_onnx("null", &BuildOptions::default())?)?;
    std::fs::write(setup.path("object.bin"), [1, 2, 3, 4])?;
    for extension in ["toml", "ptx"] {
        std::fs::copy(manifest("affine").with_extension(extension), setup.path(&format!("affine.{extension}")))?;
    }
    let object = setup.json(&["object", "put", "object.bin"])?;
    let digest = object[0]["digest"].as_str().context("the digest of an object")?.to_owned();
    let http = setup.daemon.http.clone();
    let arguments = ["kernel", "run", "affine.ptx", "--grid", "1", "--block", "128", "--arg", "in:f32:128:arange"];
    let kernel_run =
        [&arguments[..], &["--arg", "in:f32:128:arange", "--arg", "out:f32:128", "--arg", "u32:128"]].concat();
    let commands: Vec<(&str, Vec<&str>)> = vec![
        ("atoll compile", vec!["compile", "null.onnx", "--target", "host"]),
        ("atoll pack", vec!["pack", "affine.toml", "--target", "host"]),
        ("atoll inspect", vec!["inspect", "affine.kg"]),
        ("atoll infer", vec!["infer", "--model", "null.kg", "--compute-units", "1"]),
        ("atoll profile", vec!["profile", "null.kg", "--runs", "2", "--compute-units", "1"]),
        ("atoll models", vec!["models", "--url", &http]),
        ("atoll auth create", vec!["auth", "create", "--auth-keys", "keys.json", "--tenant", "vision"]),
        ("atoll auth list", vec!["auth", "list", "--auth-keys", "keys.json"]),
        ("atoll fn deploy", vec!["fn", "deploy", "affine.kg"]),
        ("atoll fn ls", vec!["fn", "ls"]),
        ("atoll fn invoke", INVOKE.to_vec()),
        ("atoll object put", vec!["object", "put", "object.bin"]),
        ("atoll object ls", vec!["object", "ls"]),
        ("atoll ps", vec!["ps"]),
        ("atoll usage", vec!["usage"]),
        ("atoll top --once", vec!["top", "--once", "--interval", "0.1"]),
        ("atoll trace record", vec!["trace", "record", "--seconds", "0.1", "-o", "t.pftrace"]),
        ("atoll object rm", vec!["object", "rm", &digest]),
        ("atoll fn rm", vec!["fn", "rm", "affine"]),
        ("atoll kernel run", kernel_run),
        ("atoll ptx stats", vec!["ptx", "stats", "affine.ptx"]),
        ("atoll ptx transform --list", vec!["ptx", "transform", "--list"]),
        ("atoll ptx transform", vec!["ptx", "transform", "--pass", "inject_preempt_flag", "affine.ptx"]),
    ];
    let mut page = String::new();
    for (title, arguments) in commands {
        let value = setup.json(&arguments).with_context(|| path("daemon.log"))?;
        let mut fields = BTreeMap::new();
        collect("", &value, &mut fields);
        writeln!(page, "## {title}\n\n| field | type |\n| --- | --- |")?;
        for (field, types) in fields {
            let types: Vec<&str> = types.into_iter().collect();
            writeln!(page, "| `{field}` | {} |", types.join(" or "))?;
        }
        page.push('\n');
    }
    Ok(page)
}

/// The paths of all leaves of a value with their types. A list of scalars is a leaf; a field that
/// is null has no type.
fn collect(path: &str, value: &Value, fields: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let is_nested = |item: &Value| item.is_object() || item.is_array();
    let kind = match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let name = if MAPS.iter().any(|map| path.ends_with(map)) { "*" } else { name };
                let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                collect(&path, value, fields);
            }
            return;
        }
        Value::Array(items) if items.iter().any(is_nested) => {
            for item in items {
                collect(&format!("{path}[]"), item, fields);
            }
            return;
        }
        Value::Null => {
            fields.entry(path.to_owned()).or_default();
            return;
        }
        Value::Object(_) => "object",
        Value::Array(_) => "list",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    fields.entry(path.to_owned()).or_default().insert(kind);
}
