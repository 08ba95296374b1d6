//! The dashboard for Grafana and the alerts for Prometheus name metrics that exist.

use crate::support::{Daemon, skip};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn integrations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations")
}

/// Names of metrics in a text: words with a prefix of Atoll's metrics, without the suffixes of
/// histograms.
fn named(text: &str, histograms: &BTreeSet<String>) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let ours = words.filter(|word| word.starts_with("atoll_") || word.starts_with("nv_"));
    let whole = |word: &str| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
        base.filter(|base| histograms.contains(*base)).unwrap_or(word).to_owned()
    };
    ours.map(whole).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_of_the_alerts_exists() {
    let metrics = Daemon::start().metrics();
    let types = || metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let declared: BTreeSet<String> = types().map(|(name, _)| name.to_owned()).collect();
    let histograms: BTreeSet<String> =
        types().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name.to_owned()).collect();
    for file in ["grafana/atoll.json", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(integrations().join(file)).unwrap();
        let named = named(&text, &histograms);
        let unknown: Vec<&String> = named.difference(&declared).collect();
        assert!(
            named.len() > 5 && unknown.is_empty(),
            "{file} names metrics that the daemon does not have: {unknown:?}"
        );
    }
    let wrong = named("rate(atoll_models_bucket[5m]) + atoll_flag_latency_seconds_sum", &histograms);
    assert_eq!(wrong, ["atoll_flag_latency_seconds", "atoll_models_bucket"].map(str::to_owned).into());
}

#[test]
fn the_dashboard_has_panels_with_queries_and_the_alerts_are_valid() {
    let text = std::fs::read_to_string(integrations().join("grafana/atoll.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "a number of a panel is used twice: {panel}");
        let has_query = panel["targets"].as_array().is_some_and(|targets| !targets.is_empty());
        assert!(panel["type"] == "row" || (has_query && panel["description"].is_string()), "{panel}");
    }
    assert!(panels.len() > 15);
    let rules = integrations().join("prometheus/alerts.yml");
    match Command::new("promtool").args(["check", "rules"]).arg(rules).output() {
        Err(error) => skip(&format!("the alerts are not checked: promtool: {error}")),
        Ok(run) => assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr)),
    }
}

#[test]
fn prometheus_reads_the_metrics_and_finds_fault_with_tritons_names_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics");
    std::fs::write(&path, Daemon::start().metrics()).unwrap();
    let metrics = std::fs::File::open(path).unwrap();
    match Command::new("promtool").args(["check", "metrics"]).stdin(metrics).output() {
        Err(error) => skip(&format!("the metrics are not checked: promtool: {error}")),
        Ok(run) => {
            let said = String::from_utf8_lossy(&run.stderr);
            // 3 stands for names against the conventions. Those of Triton cannot change.
            assert!(matches!(run.status.code(), Some(0 | 3)), "{said}");
            let others: Vec<&str> = said.lines().filter(|line| !line.starts_with("nv_")).collect();
            assert!(others.is_empty(), "{others:?}");
        }
    }
}
