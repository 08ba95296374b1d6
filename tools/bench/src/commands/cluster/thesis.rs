//! `atoll bench cluster --thesis`: the traces of §6.1, the Poisson runs of §6.2, the sweeps of §6.3,
//! and Table 4.1.

mod goodputs;

use super::workload::Point;
use super::{Row, steps};
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::Result;
use atoll_core::Nanos;
use atoll_core::placement::{PlacementEntry, Visibility, placement_by_name};
use atoll_sim::cluster::simulate_cluster;
use atoll_sim::cluster::thesis::{
    COSTS, Costs, NO_STEAL, POLICIES, STEP_NS, cluster, example, functions, poisson, printed,
};
use serde_json::{Value, json};
use std::fmt::Write;

/// Steps of the Poisson runs.
const HORIZON: u64 = 1000;
/// Requests per step and model that keep the devices busy for 80 % of the time.
const LOAD: f64 = 0.8;
/// The seed of the tables.
const SEED: u64 = 1;

fn policy(name: &str) -> &'static PlacementEntry {
    placement_by_name(name).expect("the policies of the thesis are in the table")
}

fn rate_of(load: f64, devices: usize, costs: Costs) -> f64 {
    load * devices as f64 / (costs.resnet.1 + costs.bert.1) as f64
}

/// A row of a Poisson run: a policy of the thesis, or a variant of one.
fn poisson_row(variant: Variant, devices: usize, rate: f64, seed: u64) -> Row {
    let arrivals = poisson(2, rate, HORIZON, seed);
    let mut cluster = cluster(policy(variant.policy), functions(COSTS[0], 2), devices, arrivals);
    cluster.pool.options.seed = seed + 1000;
    if variant.look_ahead {
        cluster.pool.options.visibility = Visibility::LookAhead(Nanos(STEP_NS));
    }
    if variant.no_steal {
        cluster.pool.options.steal = NO_STEAL;
    }
    Row::run(Point { devices: devices as u16, rate, seed }, &cluster)
}

#[derive(Clone, Copy)]
struct Variant {
    policy: &'static str,
    name: &'static str,
    look_ahead: bool,
    no_steal: bool,
    /// Cold starts in Figure 6.4.
    cold: &'static str,
}

const fn plain(policy: &'static str, cold: &'static str) -> Variant {
    Variant { policy, name: policy, look_ahead: false, no_steal: false, cold }
}

const VARIANTS: [Variant; 8] = [
    plain("round-robin", "8"),
    plain("balance", "8"),
    plain("srtf", "8"),
    Variant { name: "srtf, look-ahead 1", look_ahead: true, ..plain("srtf", "") },
    plain("mlfqs", "8"),
    Variant { name: "exclusive, no moves", no_steal: true, ..plain("exclusive", "4") },
    Variant { name: "exclusive, 150 %", ..plain("exclusive", "") },
    plain("cost", ""),
];

pub(super) fn run() -> Result<Findings> {
    let mut text = String::new();
    let mut traces = Vec::new();
    for costs in COSTS {
        let times =
            format!("ResNet {}+{}, BERT {}+{} steps", costs.resnet.0, costs.resnet.1, costs.bert.0, costs.bert.1);
        for name in POLICIES {
            let cluster = example(policy(name), costs);
            let report = simulate_cluster(&cluster);
            if costs == COSTS[0] {
                writeln!(text, "{name} (§6.1; {times})\n\n{}", printed(&cluster, &report))?;
            }
            let mut row = Row::run(Point { devices: 2, rate: 0.0, seed: 0 }, &cluster).json();
            row["costs"] = costs.name.into();
            traces.push(row);
        }
    }
    let rate = rate_of(LOAD, 4, COSTS[0]);
    let runs: Vec<(Variant, Row)> = VARIANTS.map(|variant| (variant, poisson_row(variant, 4, rate, SEED))).into();
    writeln!(text, "Poisson arrivals on 4 devices, {rate} requests per step and model, {HORIZON} steps (§6.2)\n")?;
    writeln!(text, "{}", poisson_table(&runs))?;
    let loads = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
    let (rates, rates_json) = sweep(&loads.map(|load| (format!("{load}"), 3, rate_of(load, 3, COSTS[0]))));
    writeln!(text, "Mean wait in steps by load, 3 devices (§6.3, Figure 6.6)\n\n{rates}")?;
    let counts = [1, 2, 3, 4, 6, 8, 12, 16];
    let (devices, devices_json) =
        sweep(&counts.map(|devices| (devices.to_string(), devices, rate_of(LOAD, devices, COSTS[0]))));
    writeln!(text, "Mean wait in steps by number of devices at a load of {LOAD} (§6.3, Figure 6.7)\n\n{devices}")?;
    let (table, goodputs) = goodputs::table_4_1()?;
    writeln!(text, "{table}")?;
    let json = json!({
        "traces": traces,
        "poisson": runs.iter().map(|(variant, row)| named(*variant, row)).collect::<Vec<_>>(),
        "by_load": rates_json,
        "by_devices": devices_json,
        "table_4_1": goodputs,
    });
    Findings::new(&json, text.trim_end().to_string() + "\n")
}

fn named(variant: Variant, row: &Row) -> Value {
    let mut json = row.json();
    json["variant"] = variant.name.into();
    json
}

fn poisson_table(runs: &[(Variant, Row)]) -> Table {
    let mut table = Table::new([
        ("policy", Align::Left),
        ("total", Align::Right),
        ("cold", Align::Right),
        ("thesis", Align::Right),
        ("mean wait", Align::Right),
        ("ResNet", Align::Right),
        ("BERT", Align::Right),
        ("moves", Align::Right),
    ]);
    for (variant, row) in runs {
        let wait = |function: usize| format!("{:.4}", steps(row.report.functions[function].waits.mean_wait_ns));
        table.row([
            variant.name.into(),
            format!("{:.0}", steps(row.report.total_ns as f64)),
            row.report.cold.to_string(),
            variant.cold.into(),
            format!("{:.4}", steps(row.report.waits.mean_wait_ns)),
            wait(0),
            wait(1),
            row.report.moves.to_string(),
        ]);
    }
    table
}

/// Mean waits of all policies of the thesis and `cost`, by a parameter.
fn sweep(points: &[(String, usize, f64)]) -> (Table, Vec<Value>) {
    let mut table = Table::new([
        ("", Align::Right),
        ("round-robin", Align::Right),
        ("balance", Align::Right),
        ("srtf", Align::Right),
        ("mlfqs", Align::Right),
        ("exclusive", Align::Right),
        ("cost", Align::Right),
    ]);
    let mut all = Vec::new();
    for (label, devices, rate) in points {
        let run = |name| poisson_row(plain(name, ""), *devices, *rate, SEED);
        let rows = ["round-robin", "balance", "srtf", "mlfqs", "exclusive", "cost"].map(run);
        let waits = rows.each_ref().map(|row| format!("{:.2}", steps(row.report.waits.mean_wait_ns)));
        let [a, b, c, d, e, f] = waits;
        table.row([label.clone(), a, b, c, d, e, f]);
        all.extend(rows.iter().map(Row::json));
    }
    (table, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thesis_is_printed_with_its_totals() {
        let findings = run().unwrap();
        let totals: Vec<&str> = findings.text.lines().filter(|line| line.starts_with("Total time")).collect();
        assert_eq!(totals, [25, 19, 26, 26, 19].map(|total| format!("Total time taken is: {total}")));
        let json: Value = serde_json::from_str(&findings.json).unwrap();
        let totals: Vec<f64> =
            json["traces"].as_array().unwrap().iter().map(|t| t["total"].as_f64().unwrap()).collect();
        assert_eq!(totals[5..8], [41.0, 31.0, 42.0], "with the times of the text");
        let cold: Vec<u64> =
            json["poisson"].as_array().unwrap().iter().map(|row| row["cold"].as_u64().unwrap()).collect();
        assert_eq!(cold[..7], [8, 8, 8, 8, 8, 4, 8]);
        let rows = json["table_4_1"].as_array().unwrap();
        let by_latency = |row: &Value, policy: &str| row[policy]["latency"].as_f64().unwrap();
        let ahead: Vec<bool> = rows.iter().map(|row| by_latency(row, "fifo") > by_latency(row, "thesis")).collect();
        assert_eq!(ahead, [false, false, true, false], "FIFO is ahead at 60 ms");
        assert!(rows.iter().all(|row| by_latency(row, "clockwork") < by_latency(row, "fifo")));
        let table = findings.text.lines().filter(|line| line.contains(" FIFO ") || line.contains(" Clockwork "));
        assert_eq!(table.filter(|line| line.split_whitespace().count() == 5).count(), 8, "{}", findings.text);
    }
}
