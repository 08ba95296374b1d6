//! Metrics with their labels, collected from a running daemon.

use crate::control::Setup;
use anyhow::{Context, Result, ensure};
use atoll_tests::http::ask;
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A daemon with a tenant that has quotas and a share, and with two functions, one of which is
/// invoked and has autoscaled instances.
pub(super) fn daemon() -> Result<Setup> {
    let config = "[tenant.vision]\ndevice_bytes = \"64M\"\nbest_effort_device_bytes = \"32M\"\nquota_request = 0.1\n\
                  [scaling.affine]\nlatency_ms = 1000\nquota_request = 0.05\n";
    let setup = Setup::start(&[], config)?;
    setup.json(&["fn", "deploy", "affine.kg"])?;
    setup.json(&["fn", "deploy", "faulty.kg", "--private"])?;
    setup.json(&INVOKE)?;
    Ok(setup)
}

pub(super) const INVOKE: [&str; 7] = ["fn", "invoke", "affine", "x=random", "b=random", "--shape", "x=128"];

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
