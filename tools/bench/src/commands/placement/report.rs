//! The results of `atoll bench placement` as a table and as JSON.

use super::{Answered, Args, Client, Times};
use crate::output::{Align, Table};
use crate::samples::Distribution;
use anyhow::Result;
use atoll_sim::cluster::{ClusterReport, Scheduled};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// An error up to this counts as small.
const SMALL_ERROR: f64 = 0.2;

/// Results of a policy in the fleet and in simulation.
pub(super) struct Row {
    policy: &'static str,
    real: Distribution,
    /// Requests of each device.
    real_split: Vec<usize>,
    simulated: Distribution,
    simulated_split: Vec<usize>,
}

/// The requests of each device.
fn split(devices: usize, of: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut split = vec![0; devices];
    of.for_each(|device| split[device] += 1);
    split
}

impl Row {
    pub(super) fn of(
        policy: &'static str,
        devices: usize,
        real: &[Answered],
        simulated: &ClusterReport,
        times: &[Times],
    ) -> Row {
        let took: Vec<Duration> = real.iter().map(|(took, _)| *took).collect();
        // A plain simulated device answers at the end of the device time.
        let completion = |scheduled: &Scheduled| {
            let overhead = times[scheduled.arrival.function].overhead_ns as u64;
            Duration::from_nanos(scheduled.end_ns - scheduled.arrival.at_ns + overhead)
        };
        let completions: Vec<Duration> = simulated.schedule.iter().map(completion).collect();
        Row {
            policy,
            real: Distribution::of(&took),
            real_split: split(devices, real.iter().map(|(_, device)| usize::from(device.0))),
            simulated: Distribution::of(&completions),
            simulated_split: split(devices, simulated.schedule.iter().map(|scheduled| scheduled.device)),
        }
    }

    /// Relative errors of the simulation: of the mean, and of the 99th percentile.
    fn errors(&self) -> [f64; 2] {
        let error = |simulated: f64, real: f64| simulated / real.max(f64::MIN_POSITIVE) - 1.0;
        [error(self.simulated.mean_ms, self.real.mean_ms), error(self.simulated.p99_ms, self.real.p99_ms)]
    }
}

/// The policies by ascending mean.
fn order(rows: &[Row], mean: impl Fn(&Row) -> f64) -> Vec<&'static str> {
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    order.into_iter().map(|row| row.policy).collect()
}

fn small_errors(rows: &[Row]) -> usize {
    rows.iter().filter(|row| row.errors()[0].abs() <= SMALL_ERROR).count()
}

pub(super) fn as_json(args: &Args, times: &[Times], rows: &[Row]) -> Value {
    let function = |times: &Times| {
        json!({
            "service_ms": times.service_ns / 1e6,
            "overhead_ms": times.overhead_ns / 1e6,
            "reload_ms": times.reload_ns / 1e6,
        })
    };
    let row = |row: &Row| {
        let [mean, p99] = row.errors();
        json!({
            "policy": row.policy,
            "real": row.real,
            "real_split": row.real_split,
            "simulated": row.simulated,
            "simulated_split": row.simulated_split,
            "mean_error": mean,
            "p99_error": p99,
        })
    };
    json!({
        "devices": args.devices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "load": args.load,
        "seconds": args.seconds,
        "seed": args.seed,
        "functions": times.iter().map(function).collect::<Vec<_>>(),
        "policies": rows.iter().map(row).collect::<Vec<_>>(),
        "real_order": order(rows, |row| row.real.mean_ms),
        "simulated_order": order(rows, |row| row.simulated.mean_ms),
        "small_errors": small_errors(rows),
    })
}

pub(super) fn text(clients: &[Client], times: &[Times], rows: &[Row]) -> Result<String> {
    let mut alone = Table::new([
        ("function", Align::Left),
        ("device ms", Align::Right),
        ("overhead ms", Align::Right),
        ("reload ms", Align::Right),
    ]);
    for (client, times) in clients.iter().zip(times) {
        let ms = |ns: f64| format!("{:.3}", ns / 1e6);
        alone.row([client.key.to_string(), ms(times.service_ns), ms(times.overhead_ns), ms(times.reload_ns)]);
    }
    let mut table = Table::new([
        ("policy", Align::Left),
        ("requests", Align::Right),
        ("mean ms", Align::Right),
        ("simulated", Align::Right),
        ("error", Align::Right),
        ("p99 ms", Align::Right),
        ("simulated", Align::Right),
        ("error", Align::Right),
        ("by device", Align::Left),
        ("simulated", Align::Left),
    ]);
    let percent = |error: f64| format!("{:+.1} %", error * 100.0);
    let counts = |split: &[usize]| split.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    for row in rows {
        let [mean, p99] = row.errors().map(percent);
        table.row([
            row.policy.into(),
            row.real.count.to_string(),
            format!("{:.3}", row.real.mean_ms),
            format!("{:.3}", row.simulated.mean_ms),
            mean,
            format!("{:.3}", row.real.p99_ms),
            format!("{:.3}", row.simulated.p99_ms),
            p99,
            counts(&row.real_split),
            counts(&row.simulated_split),
        ]);
    }
    let mut text = format!("Alone on the devices, on average:\n\n{alone}\nFrom arrival to answer:\n\n{table}\n");
    writeln!(text, "by mean, real:      {}", order(rows, |row| row.real.mean_ms).join(", "))?;
    writeln!(text, "by mean, simulated: {}", order(rows, |row| row.simulated.mean_ms).join(", "))?;
    let within = SMALL_ERROR * 100.0;
    writeln!(text, "{} of {} means are within {within:.0} %", small_errors(rows), rows.len())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::cluster;
    use super::*;
    use atoll_core::placement::{PLACEMENTS, PoolConfig};
    use atoll_engine::DeviceId;
    use atoll_fleet::DeviceTraits;
    use atoll_sim::cluster::{Arrival, simulate_cluster};

    const MS: u64 = 1_000_000;

    fn traits(kinds: &[&str]) -> Vec<DeviceTraits> {
        let of =
            |kind: &&str| DeviceTraits { kind: (*kind).into(), is_cpu: true, memory_bytes: 1 << 30, capability: None };
        kinds.iter().map(of).collect()
    }

    #[test]
    fn the_simulation_has_the_fleets_devices_and_the_measured_times() {
        let times = [2e6, 8e6].map(|service_ns| Times { service_ns, overhead_ns: 5e4, reload_ns: 3e6 });
        let arrivals = [(0, 0), (1, 1), (40, 0)].map(|(at, function)| Arrival { at_ns: at * MS, function });
        for policy in PLACEMENTS {
            let pool = PoolConfig::new(policy);
            let cluster = cluster(pool, &times, &traits(&["host 1", "host 1", "host 2"]), &[1.0; 3], &arrivals);
            let kinds: Vec<u16> = cluster.devices.iter().map(|device| device.kind.0).collect();
            assert_eq!(kinds, [0, 0, 2]);
            let report = simulate_cluster(&cluster);
            let real = [(Duration::from_millis(6), DeviceId(1))];
            let row = Row::of(policy.name, 3, &real, &report, &times);
            assert_eq!((row.simulated.count, row.real.count), (3, 1), "{}", policy.name);
            assert_eq!(row.simulated_split.iter().sum::<usize>(), 3);
            assert_eq!(row.real_split, [0, 1, 0]);
            // The first request of a function waits for its constants; each has the overhead.
            assert!((row.simulated.max_ms - 11.05).abs() < 0.01, "{}: {:?}", policy.name, row.simulated);
        }
    }

    #[test]
    fn errors_and_orders_are_those_of_the_simulation() {
        let row = |policy, real: u64, simulated: u64| Row {
            policy,
            real: Distribution::of(&[Duration::from_millis(real)]),
            real_split: vec![1],
            simulated: Distribution::of(&[Duration::from_millis(simulated)]),
            simulated_split: vec![1],
        };
        let rows = [row("a", 10, 11), row("b", 5, 10), row("c", 20, 9)];
        let errors: Vec<f64> = rows.iter().map(|row| (row.errors()[0] * 100.0).round()).collect();
        assert_eq!(errors, [10.0, 100.0, -55.0]);
        assert_eq!(order(&rows, |row| row.real.mean_ms), ["b", "a", "c"]);
        assert_eq!(order(&rows, |row| row.simulated.mean_ms), ["c", "b", "a"]);
        assert_eq!(small_errors(&rows), 1);
    }
}
