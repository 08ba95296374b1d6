//! Fields of JSON outputs, collected from commands on small inputs.

use super::samples::{INVOKE, daemon};
use crate::control::Setup;
use crate::fleet::two_hosts;
use crate::functions::manifest;
use anyhow::{Context, Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::{python, root};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;

/// Suffixes of the paths of maps whose keys are data; their fields are shown as `*`.
const MAPS: [&str; 2] = [".opcodes", ".live_registers"];

/// Fields that a command prints only on some machines or in some runs: command, field, type.
const OPTIONAL: [(&str, &str, &str); 9] = [
    // An instance of the autoscaler may be gone, or be there already.
    ("atoll instance ls", "[].autoscaled", "text"),
    ("atoll instance ls", "[].device", "text"),
    ("atoll instance ls", "[].service_ms", "number"),
    ("atoll instance ls", "[].throughput", "number"),
    ("atoll doctor", "[].remedy", "text"),
    ("atoll bench preempt", "rows[].flag_us.p50", "number"),
    ("atoll bench preempt", "rows[].flag_us.p99", "number"),
    ("atoll bench preempt", "rows[].interrupt_us.p50", "number"),
    ("atoll bench preempt", "rows[].interrupt_us.p99", "number"),
];

/// PTX with an undeclared register.
const FAULTY: &str =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f()\n{\nmov.u32 %r1, 1;\nret;\n}\n";

/// A command line, and the title of its fields.
struct Sample {
    title: &'static str,
    arguments: Vec<String>,
}

fn sample(title: &'static str, arguments: &[&str]) -> Sample {
    Sample { title, arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect() }
}

/// The fields that each command prints with `--json`. Commands that need a GPU or two CPUs are left
/// out.
pub(super) fn page() -> Result<String> {
    let setup = daemon()?;
    write_inputs(&setup)?;
    let object = setup.json(&["object", "put", "object.bin"])?;
    let digest = object[0]["digest"].as_str().context("the digest of an object")?.to_owned();
    let mut page = String::new();
    for sample in commands(&setup.daemon.http, &digest).into_iter().chain(benches()) {
        let mut fields = BTreeMap::new();
        collect("", &value(&setup, &sample)?, &mut fields);
        for (_, field, kind) in OPTIONAL.iter().filter(|(title, ..)| *title == sample.title) {
            // If a field is absent, the object that contains it is null.
            fields.retain(|path: &String, kinds| !(kinds.is_empty() && field.starts_with(&format!("{path}."))));
            fields.entry((*field).to_owned()).or_default().insert(*kind);
        }
        writeln!(page, "## {}\n\n| field | type |\n| --- | --- |", sample.title)?;
        for (field, kinds) in fields {
            let kinds: Vec<&str> = kinds.into_iter().collect();
            writeln!(page, "| `{field}` | {} |", kinds.join(" or "))?;
        }
        page.push('\n');
    }
    Ok(page)
}

/// The output of a command. `ptx check` and `doctor` may fail after printing it.
fn value(setup: &Setup, sample: &Sample) -> Result<Value> {
    let Sample { title, arguments } = sample;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--json"]).collect();
    let output = setup.command(&arguments).output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{title}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The files that the commands read.
fn write_inputs(setup: &Setup) -> Result<()> {
    std::fs::write(setup.path("null.onnx"), build_onnx("null", &BuildOptions::default())?)?;
    std::fs::write(setup.path("object.bin"), [1, 2, 3, 4])?;
    std::fs::write(setup.path("faulty.ptx"), FAULTY)?;
    for extension in ["toml", "ptx"] {
        std::fs::copy(manifest("affine").with_extension(extension), setup.path(&format!("affine.{extension}")))?;
    }
    let decoders = root().join("tests/python/decoders.py");
    let made = Command::new(python()).arg("-B").arg(decoders).arg(setup.path("")).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let lease = json!({ "node": "a", "service_ns": 2_000_000, "beside_ns": 1_000_000 });
    let request = json!({ "at_ns": 0, "lease": 0, "latency_ns": 3_000_000 });
    std::fs::write(setup.path("run.json"), json!({ "leases": [lease], "requests": [request] }).to_string())?;
    // A model in Triton's layout, which is not loaded.
    let model = setup.path("repository/explained");
    std::fs::create_dir_all(model.join("1"))?;
    std::fs::copy(setup.path("null.onnx"), model.join("1/model.onnx"))?;
    std::fs::write(model.join("config.pbtxt"), "max_batch_size: 0")?;
    // Profiles of the models of DISB, in REEF's format.
    for name in ["vgg", "resnet", "densenet", "inception", "bert"] {
        let kernel = json!({ "name": "k", "launch_params": [70, 1, 1, 64, 1, 1], "args": [] });
        let graph = json!({ "storage": [], "kernels": [kernel.clone(), kernel], "args": [] });
        let times = json!({ "total_latency": 120, "latency": [100, 120] });
        let profile = json!({ "model_latency": 100_000, "kernel_latency": { "k": times } });
        std::fs::write(setup.path(&format!("{name}.graph.json")), graph.to_string())?;
        std::fs::write(setup.path(&format!("{name}.profile.json")), profile.to_string())?;
    }
    Ok(())
}

/// All commands except `bench`, in an order in which they can run.
fn commands(http: &str, digest: &str) -> Vec<Sample> {
    let import = root().join("tests/imports/triton_add").display().to_string();
    let graph = root().join("tests/fixtures/graphs/twice.toml").display().to_string();
    let kernel = ["kernel", "run", "affine.ptx", "--grid", "1", "--block", "128", "--arg", "in:f32:128:arange"];
    let kernel = [&kernel[..], &["--arg", "in:f32:128:arange", "--arg", "out:f32:128", "--arg", "u32:128"]].concat();
    let decoder = ["--state", "auto", "--symbol", "past_sequence_length=0..48", "--compute-units", "1"];
    let fast = ["--function", "affine", "--quota-request", "0.2", "--class", "best-effort", "--gpu-mem", "1M"];
    let fast = [&fast[..], &["--latency-ms", "50"]].concat();
    let lease = ["lease", "grant", "--request-id", "r", "--holder", "a", "--class", "best-effort", "--gpu-mem", "1M"];
    let lease = [&lease[..], &["--function", "affine", "--quota-request", "0.1"]].concat();
    let held = ["1", "--epoch", "2", "--holder", "a"];
    let generate = [&["generate", "--model", "gpt2.onnx", "--tokens", "3,1", "--max-new", "3"][..], &decoder].concat();
    vec![
        sample("atoll compile", &["compile", "null.onnx", "--target", "host"]),
        sample("atoll pack", &["pack", "affine.toml", "--target", "host"]),
        sample("atoll import", &["import", &import, "--target", "host", "-o", "imported.kg"]),
        sample("atoll inspect", &["inspect", "affine.kg"]),
        sample("atoll infer", &["infer", "--model", "null.kg", "--compute-units", "1"]),
        sample("atoll generate", &generate),
        sample("atoll profile", &["profile", "null.kg", "--runs", "2", "--compute-units", "1"]),
        sample("atoll models", &["models", "--url", http]),
        sample("atoll models --explain", &["models", "--url", http, "--explain", "explained"]),
        sample("atoll fn deploy", &["fn", "deploy", "affine.kg"]),
        sample("atoll auth create", &["auth", "create", "--auth-keys", "keys.json", "--tenant", "vision"]),
        sample("atoll auth list", &["auth", "list", "--auth-keys", "keys.json"]),
        sample("atoll fn ls", &["fn", "ls"]),
        sample("atoll fn invoke", &INVOKE),
        sample("atoll fn invoke --async", &[&INVOKE[..], &["--async=first"]].concat()),
        sample("atoll future wait", &["future", "wait", "first"]),
        sample("atoll future show", &["future", "show", "first"]),
        sample("atoll future ls", &["future", "ls"]),
        sample("atoll future result", &["future", "result", "first"]),
        sample("atoll future rm", &["future", "rm", "first"]),
        sample("atoll graph deploy", &["graph", "deploy", &graph]),
        sample("atoll graph ls", &["graph", "ls"]),
        sample("atoll graph explain", &["graph", "explain", "twice"]),
        sample("atoll graph invoke", &["graph", "invoke", "twice", "--shape", "x=8", "--shape", "b=8"]),
        sample("atoll graph rm", &["graph", "rm", "twice"]),
        sample("atoll instance create", &[&["instance", "create", "fast"][..], &fast].concat()),
        sample("atoll instance resize", &["instance", "resize", "fast", "--quota-limit", "0.5"]),
        sample("atoll instance ls", &["instance", "ls"]),
        sample("atoll lease grant", &lease),
        sample("atoll lease renew", &[&["lease", "renew"][..], &held].concat()),
        sample("atoll lease takeover", &[&["lease", "takeover"][..], &held].concat()),
        sample("atoll lease ls", &["lease", "ls"]),
        sample("atoll lease capacity", &["lease", "capacity"]),
        sample("atoll lease release", &["lease", "release", "1", "--epoch", "3", "--holder", "a"]),
        sample("atoll object put", &["object", "put", "object.bin"]),
        sample("atoll object ls", &["object", "ls"]),
        sample("atoll ps", &["ps"]),
        sample("atoll usage", &["usage"]),
        sample("atoll top --once", &["top", "--once", "--interval", "0.1"]),
        sample("atoll trace record", &["trace", "record", "--seconds", "0.1", "-o", "t.pftrace"]),
        sample("atoll object rm", &["object", "rm", digest]),
        sample("atoll fn rm", &["fn", "rm", "affine"]),
        sample("atoll kernel run", &kernel),
        sample("atoll ptx check", &["ptx", "check", "faulty.ptx"]),
        sample("atoll ptx stats", &["ptx", "stats", "affine.ptx"]),
        sample("atoll ptx transform --list", &["ptx", "transform", "--list"]),
        sample("atoll ptx transform", &["ptx", "transform", "--pass", "inject_preempt_flag", "affine.ptx"]),
        sample("atoll doctor", &["doctor", "--quick"]),
    ]
}

/// The measurements, as short as possible.
fn benches() -> Vec<Sample> {
    let bench = |title: &'static str, arguments: &[&str]| {
        let name = title.trim_start_matches("atoll bench ");
        sample(title, &[&["bench", name][..], arguments].concat())
    };
    let full = ["--queued", "10", "--kernel-us", "20", "--clients", "1", "--capacity", "4", "--policy", "reset"];
    let disb = ["--workload", "A", "--duration", "0.5", "--policy", "reset", "--device", "sim:mi50", "--profiles", "."];
    let many = ["--functions", "jacobi", "--clients", "1", "--size", "64", "--duration", "0.1", "--no-exclusive"];
    let hosts = two_hosts().expect("two host devices take two CPUs");
    let few = ["--sizes", "64", "--clients", "2", "--seconds", "0.1", "--policy", "cost"];
    let placement = [&hosts.each_ref().map(String::as_str)[..], &few].concat();
    vec![
        bench("atoll bench branches", &["--kernel-us", "20", "--kernels", "1", "--count", "2"]),
        bench("atoll bench cluster", &["--policy", "cost", "--steps", "50", "--scheduler", "reset"]),
        sample("atoll bench cluster --decisions", &["bench", "cluster", "--decisions=8", "--placements", "20"]),
        sample("atoll bench cluster --replay", &["bench", "cluster", "--replay", "run.json"]),
        bench("atoll bench disb", &disb),
        bench("atoll bench dkp", &["--only", "vector_add", "--rounds", "1"]),
        sample("atoll bench dkp --architecture", &["bench", "dkp", "--architecture", "gfx90a", "--only", "vector_add"]),
        bench("atoll bench engine", &["--kernels", "10", "--compute-units", "1", "--count", "1", "--share", "1"]),
        bench("atoll bench fast", &["--seconds", "1"]),
        bench("atoll bench functions", &many),
        bench("atoll bench graphs", &["--clients", "1", "--seconds", "0.5"]),
        bench("atoll bench kernel", &["--only", "vector_add", "--rounds", "1", "--no-peers"]),
        bench("atoll bench latency", &["--rt", "null.kg", "--be", "null.kg", "--duration", "0.2", "--daemon"]),
        bench("atoll bench models", &["null", "--threads", "1", "--pairs", "1"]),
        bench("atoll bench overhead", &["--count", "5", "--warm-up", "0"]),
        bench("atoll bench placement", &placement),
        bench("atoll bench preempt", &[&full[..], &["--count", "2"]].concat()),
        bench("atoll bench recovery", &[&hosts.each_ref().map(String::as_str)[..], &["--losses", "1"]].concat()),
        bench("atoll bench reef", &["--profiles", ".", "--seconds", "0.02"]),
        bench("atoll bench residency", &["zipf"]),
        bench("atoll bench ring", &["--count", "10", "--warm-up", "1"]),
        bench("atoll bench scaling", &["--load", "step", "--seconds", "10"]),
        bench("atoll bench shares", &["--model", "null.kg", "--duration", "2"]),
        sample(
            "atoll bench shares --quotas",
            &["bench", "shares", "--quotas", "50", "--model", "null.kg", "--duration", "0.2"],
        ),
        bench("atoll bench transform", &["null", "--rounds", "1"]),
    ]
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
