//! `atoll bench cluster --decisions`: how many placement decisions a second one core makes, and
//! which part of a placement takes how long.

use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::Result;
use atoll_core::placement::PlacementEntry;
use atoll_sim::cluster::{FullLoad, FullLoadSetup, Part};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Instant;

/// Decisions per second on one core that a pool of 1,000 devices should reach.
const TARGET_PER_S: f64 = 1e6;
/// Clock readings that are timed together to measure the cost of one.
const CLOCK_READINGS: u32 = 100_000;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Decisions")]
pub(super) struct DecisionArgs {
    /// Measure placement decisions per second and the parts of a placement, on pools of so many
    /// devices under full load, instead of simulating clusters [default if no number is given: 1000]
    #[arg(
        long,
        value_name = "DEVICES",
        num_args = 0..=1,
        require_equals = true,
        value_delimiter = ',',
        default_missing_value = "1000",
        value_parser = clap::value_parser!(u16).range(1..=10_000),
        conflicts_with_all = ["thesis", "scheduler"]
    )]
    decisions: Option<Vec<u16>>,

    /// Functions of --decisions, each of a group of its own. Several values are swept
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "200",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    functions: Vec<u32>,

    /// Placements that --decisions measures on each pool
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    placements: u64,
}

/// The decisions of a pool.
struct Measured {
    policy: &'static str,
    devices: u16,
    functions: u32,
    /// Dispatches, and the time that they took together with the caller's work.
    dispatches: u64,
    wall_s: f64,
    /// Nanoseconds of each part of a placement, on average, from a second measurement.
    parts: [f64; Part::ALL.len()],
}

impl Measured {
    fn per_s(&self) -> f64 {
        self.dispatches as f64 / self.wall_s
    }

    fn ns(&self) -> f64 {
        self.wall_s * 1e9 / self.dispatches.max(1) as f64
    }

    /// The part of the pool that takes longest.
    fn largest(&self) -> (Part, &'static str) {
        let of_pool = Part::ALL.into_iter().filter(|(part, _)| *part != Part::Caller);
        let longest = of_pool.max_by(|a, b| self.parts[a.0 as usize].total_cmp(&self.parts[b.0 as usize]));
        longest.expect("a placement has parts of the pool")
    }
}

impl DecisionArgs {
    /// Whether --decisions is given.
    pub(super) fn is_given(&self) -> bool {
        self.decisions.is_some()
    }

    pub(super) fn run(&self, policies: &[&'static PlacementEntry], seed: u64) -> Result<Findings> {
        let clock_ns = clock_ns();
        let mut rows = Vec::new();
        for &policy in policies {
            for &functions in &self.functions {
                for &devices in self.decisions.iter().flatten() {
                    let setup = FullLoadSetup { policy, devices, functions, seed };
                    rows.push(measure(&setup, self.placements, clock_ns));
                }
            }
        }
        let growths = growths(&rows);
        let json = json!({
            "target_per_s": TARGET_PER_S,
            "clock_ns": clock_ns,
            "pools": rows.iter().map(row_json).collect::<Vec<_>>(),
            "growth": growths.iter().map(Growth::json).collect::<Vec<_>>(),
        });
        Findings::new(&json, text(&rows, &growths)?)
    }
}

/// How long reading the clock takes, in nanoseconds.
fn clock_ns() -> f64 {
    let begin = Instant::now();
    for _ in 0..CLOCK_READINGS {
        std::hint::black_box(Instant::now());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CLOCK_READINGS)
}

fn measure(setup: &FullLoadSetup, placements: u64, clock_ns: f64) -> Measured {
    let mut load = FullLoad::new(setup);
    let before = load.dispatches();
    let begin = Instant::now();
    (0..placements).for_each(|_| load.place(|_| ()));
    let wall_s = begin.elapsed().as_secs_f64();
    let dispatches = load.dispatches() - before;
    let (mut ns, mut laps) = ([0_u64; Part::ALL.len()], [0_u64; Part::ALL.len()]);
    let mut last = Instant::now();
    for _ in 0..placements {
        load.place(|part| {
            let now = Instant::now();
            ns[part as usize] += now.duration_since(last).as_nanos() as u64;
            laps[part as usize] += 1;
            last = now;
        });
    }
    let part = |index: usize| (ns[index] as f64 - laps[index] as f64 * clock_ns).max(0.0) / placements as f64;
    Measured {
        policy: setup.policy.name,
        devices: setup.devices,
        functions: setup.functions,
        dispatches,
        wall_s,
        parts: std::array::from_fn(part),
    }
}

/// How the time of a decision grows with one size of the pool, while the other stays the same.
struct Growth {
    policy: &'static str,
    /// The size that grows.
    with: &'static str,
    /// Its smallest and largest value.
    between: [u64; 2],
    /// The time of a decision grows like the size to this power.
    power: f64,
}

impl Growth {
    fn json(&self) -> Value {
        json!({ "policy": self.policy, "with": self.with, "between": self.between, "power": self.power })
    }
}

fn growths(rows: &[Measured]) -> Vec<Growth> {
    let mut growths = Vec::new();
    for with in ["devices", "functions"] {
        let sizes = |row: &Measured| match with {
            "devices" => (u64::from(row.devices), u64::from(row.functions)),
            _ => (u64::from(row.functions), u64::from(row.devices)),
        };
        for first in rows {
            let (from, fixed) = sizes(first);
            let same = rows.iter().filter(|row| row.policy == first.policy && sizes(row).1 == fixed);
            let (Some(smallest), Some(last)) =
                (same.clone().min_by_key(|row| sizes(row).0), same.max_by_key(|row| sizes(row).0))
            else {
                continue;
            };
            let to = sizes(last).0;
            if sizes(smallest).0 == from && std::ptr::eq(smallest, first) && to > from {
                let power = (last.ns() / first.ns()).ln() / (to as f64 / from as f64).ln();
                growths.push(Growth { policy: first.policy, with, between: [from, to], power });
            }
        }
    }
    growths
}

fn row_json(row: &Measured) -> Value {
    let parts = Part::ALL.map(|(part, name)| (name.to_owned(), json!(row.parts[part as usize])));
    json!({
        "policy": row.policy,
        "devices": row.devices,
        "functions": row.functions,
        "decisions": row.dispatches,
        "wall_s": row.wall_s,
        "decisions_per_s": row.per_s(),
        "ns_per_decision": row.ns(),
        "reaches_target": row.per_s() >= TARGET_PER_S,
        "parts_ns": Value::Object(parts.into_iter().collect()),
        "largest_part": row.largest().1,
    })
}

fn text(rows: &[Measured], growths: &[Growth]) -> Result<String> {
    let [finish, dispatch, evict, arrive, replicate, caller] = Part::ALL.map(|(_, name)| (name, Align::Right));
    let mut table = Table::new([
        ("policy", Align::Left),
        ("devices", Align::Right),
        ("functions", Align::Right),
        ("decisions/s", Align::Right),
        ("ns", Align::Right),
        finish,
        dispatch,
        evict,
        arrive,
        replicate,
        caller,
        ("largest", Align::Left),
    ]);
    for row in rows {
        let [finish, dispatch, evict, arrive, replicate, caller] = row.parts.map(|ns| format!("{ns:.0}"));
        let (part, name) = row.largest();
        let all: f64 = row.parts.iter().sum();
        table.row([
            row.policy.into(),
            row.devices.to_string(),
            row.functions.to_string(),
            format!("{:.0}", row.per_s()),
            format!("{:.0}", row.ns()),
            finish,
            dispatch,
            evict,
            arrive,
            replicate,
            caller,
            format!("{name}, {:.0} %", 100.0 * row.parts[part as usize] / all.max(f64::MIN_POSITIVE)),
        ]);
    }
    let mut text = format!(
        "One placement: a request ends, the next one is dispatched, and another one arrives. Parts are in\n\
         nanoseconds; `caller` is the work of the measurement itself.\n\n{table}"
    );
    for growth in growths {
        let [from, to] = growth.between;
        writeln!(
            text,
            "{}: from {from} to {to} {}, the time of a decision grows like {} to the power {:.2}",
            growth.policy, growth.with, growth.with, growth.power
        )?;
    }
    let reached = rows.iter().filter(|row| row.per_s() >= TARGET_PER_S).count();
    writeln!(text, "{reached} of {} pools reach {TARGET_PER_S:.0} decisions per second", rows.len())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(policy: &'static str, devices: u16, functions: u32, ns: f64) -> Measured {
        let parts = [1.0, 5.0, 2.0, 3.0, 4.0, 99.0];
        Measured { policy, devices, functions, dispatches: 1000, wall_s: ns * 1e-6, parts }
    }

    #[test]
    fn growth_is_the_power_between_the_smallest_and_the_largest_pool() {
        let rows = [
            measured("a", 10, 5, 100.0),
            measured("a", 1000, 5, 10_000.0),
            measured("a", 100, 5, 700.0),
            measured("a", 10, 50, 100.0),
            measured("b", 10, 5, 3.0),
        ];
        let found: Vec<_> =
            growths(&rows).iter().map(|g| (g.policy, g.with, g.between, (g.power * 100.0).round())).collect();
        assert_eq!(found, [("a", "devices", [10, 1000], 100.0), ("a", "functions", [5, 50], 0.0)]);
    }

    #[test]
    fn the_largest_part_is_one_of_the_pool() {
        let row = measured("a", 10, 5, 100.0);
        assert_eq!(row.largest(), (Part::Dispatch, "dispatch"));
        assert!((row.per_s() / 1e7 - 1.0).abs() < 1e-9 && (row.ns() - 100.0).abs() < 1e-6);
        assert_eq!(row_json(&row)["reaches_target"], json!(true));
        assert_eq!(row_json(&measured("a", 10, 5, 1001.0))["reaches_target"], json!(false));
    }
}
