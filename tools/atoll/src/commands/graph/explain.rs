//! The admission of a graph's requests, for people.

use crate::output::{Align, Table};
use atoll_client::{AdmissionReport, DecisionEntry, GraphReport};
use std::fmt::Write;

/// Assignments and tried placements that are shown; all of them are in the JSON form.
const ROWS_MAX: usize = 8;

/// What `atoll graph explain` prints about the admission.
pub(super) fn admission(report: &AdmissionReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut text, report);
    text
}

/// The bytes that functions have taken from other functions; nothing before the first one has.
pub(super) fn intermediates(graph: &GraphReport) -> String {
    let GraphReport { handed_over_bytes, copied_bytes, .. } = graph;
    match handed_over_bytes + copied_bytes {
        0 => String::new(),
        _ => format!(
            "{handed_over_bytes} bytes from function to function stayed on a device, {copied_bytes} went through host \
             memory\n"
        ),
    }
}

/// The versions of functions, with their requests and mean times.
pub(super) fn versions(graph: &GraphReport) -> String {
    let mut table = Table::new([
        ("stage", Align::Left),
        ("version", Align::Left),
        ("weight", Align::Right),
        ("done", Align::Right),
        ("failed", Align::Right),
        ("mean", Align::Right),
    ]);
    let rows = graph.stages.iter().flat_map(|stage| stage.versions.iter().map(move |version| (stage, version)));
    let mut is_empty = true;
    for (stage, version) in rows {
        is_empty = false;
        table.row([
            stage.name.clone(),
            version.function.clone(),
            version.weight.to_string(),
            version.success.to_string(),
            version.failure.to_string(),
            version.mean_ns.map_or("-".into(), millis),
        ]);
    }
    if is_empty { String::new() } else { format!("\n{table}") }
}

fn write_report(text: &mut String, report: &AdmissionReport) -> std::fmt::Result {
    if !report.costs.is_empty() {
        writeln!(text, "\nmeasured costs")?;
        text.push_str(&costs(report));
    }
    if let Some(missing) = report.missing.first() {
        writeln!(
            text,
            "calls run without reservations until each stage is measured; next is `{}` on {}",
            missing.stage, missing.kind
        )?;
    }
    if let Some(failure) = &report.failure {
        writeln!(text, "calls run without reservations: {failure}")?;
    }
    if !report.optimal.is_empty() {
        let (count, of) = (report.optimal.len(), report.assignments);
        writeln!(text, "\n{count} of {of} assignments to devices are optimal in time and price")?;
        text.push_str(&optimal(report));
    }
    if report.kept_free > 0.0 {
        let percent = report.kept_free * 100.0;
        writeln!(text, "\n{percent:.1} % of each deadline is kept free, since requests were late")?;
    }
    if let Some(now) = &report.now {
        writeln!(text, "\na call now{}", limits(now))?;
        write_decision(text, now)?;
    }
    if let Some(last) = &report.last {
        let verdict = if last.admitted { "admitted" } else { "rejected" };
        writeln!(text, "the last call was {verdict}: {}", last.text)?;
    }
    Ok(())
}

fn write_decision(text: &mut String, decision: &DecisionEntry) -> std::fmt::Result {
    for tried in decision.tried.iter().take(ROWS_MAX) {
        let devices = if tried.devices.is_empty() { "-".into() } else { tried.devices.join(", ") };
        let reused = if tried.reused { " (as before)" } else { "" };
        writeln!(text, "  tried {devices}{reused}: {}", tried.outcome)?;
    }
    let verdict = if decision.admitted { "admitted" } else { "rejected" };
    writeln!(text, "  {verdict}: {}", decision.text)?;
    for stage in &decision.stages {
        let cold = if stage.cold { ", loads constants" } else { "" };
        writeln!(
            text,
            "  {} on {} from {} to {}{cold}",
            stage.stage,
            stage.device,
            millis(stage.start_ns),
            millis(stage.end_ns)
        )?;
    }
    Ok(())
}

fn costs(report: &AdmissionReport) -> String {
    let mut table = Table::new([
        ("stage", Align::Left),
        ("device", Align::Left),
        ("time", Align::Right),
        ("to load", Align::Right),
        ("runs", Align::Right),
        ("price", Align::Right),
    ]);
    for cost in &report.costs {
        table.row([
            cost.stage.clone(),
            cost.kind.clone(),
            millis(cost.exec_ns),
            cost.load_ns.map_or("-".into(), millis),
            cost.samples.to_string(),
            units(cost.price),
        ]);
    }
    table.to_string()
}

fn optimal(report: &AdmissionReport) -> String {
    let mut table =
        Table::new([("time", Align::Right), ("price", Align::Right), ("devices of the stages", Align::Left)]);
    for plan in report.optimal.iter().take(ROWS_MAX) {
        table.row([millis(plan.latency_ns), units(plan.price), plan.kinds.join("; ")]);
    }
    table.to_string()
}

fn limits(decision: &DecisionEntry) -> String {
    let deadline = decision.deadline_ns.map(|ns| format!("within {}", millis(ns)));
    let price = decision.price_max.map(|price| format!("for at most {}", units(price)));
    let limits: Vec<String> = deadline.into_iter().chain(price).collect();
    if limits.is_empty() { " without limits".into() } else { format!(" {}", limits.join(" and ")) }
}

fn millis(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

fn units(price: f64) -> String {
    format!("{price:.9}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::{AssignmentEntry, CostEntry, MissingEntry, PlacedEntry, TriedEntry};

    fn decision() -> DecisionEntry {
        DecisionEntry {
            deadline_ns: Some(50_000_000),
            price_max: None,
            qualifying: 1,
            tried: vec![TriedEntry { devices: vec!["host:1".into()], reused: true, outcome: "ends".into() }],
            admitted: true,
            reason: None,
            text: "it ends after 4.000 ms".into(),
            end_ns: Some(4_000_000),
            price: Some(0.5),
            stages: vec![PlacedEntry {
                stage: "a".into(),
                device: "host:1".into(),
                start_ns: 0,
                end_ns: 4_000_000,
                cold: true,
            }],
        }
    }

    #[test]
    fn a_report_says_what_is_optimal_and_why_a_call_is_admitted() {
        let report = AdmissionReport {
            costs: vec![CostEntry {
                stage: "a".into(),
                kind: "host:0".into(),
                exec_ns: 2_500_000,
                load_ns: None,
                samples: 3,
                price: 0.000_001,
            }],
            assignments: 2,
            optimal: vec![AssignmentEntry { kinds: vec!["host:0".into()], latency_ns: 2_500_000, price: 0.000_001 }],
            now: Some(decision()),
            last: Some(DecisionEntry { admitted: false, text: "too late".into(), ..decision() }),
            ..AdmissionReport::default()
        };
        let text = admission(&report);
        for expected in [
            "measured costs",
            "1 of 2 assignments to devices are optimal in time and price",
            "a call now within 50.000 ms",
            "tried host:1 (as before): ends",
            "admitted: it ends after 4.000 ms",
            "a on host:1 from 0.000 ms to 4.000 ms, loads constants",
            "the last call was rejected: too late",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let missing = vec![MissingEntry { stage: "a".into(), kind: "host:0".into() }];
        let text = admission(&AdmissionReport { missing, ..AdmissionReport::default() });
        assert!(text.contains("until each stage is measured; next is `a` on host:0"), "{text}");
    }
}
