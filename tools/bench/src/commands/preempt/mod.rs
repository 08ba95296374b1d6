//! `atoll bench preempt`

mod stage;

use crate::device_name::DeviceName;
use crate::engine::policy_names;
use crate::failure::user_error;
use crate::isolation::Isolation;
use crate::output::{Align, Table, counted, progress};
use crate::report::Findings;
use crate::samples::quantile;
use anyhow::Result;
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_device_host::HostConfig;
use atoll_engine::Histogram;
use serde::Serialize;
use stage::{Bundles, Sample, Setting, measure};
use std::num::NonZeroU32;

/// Default values of the parameters that are not varied.
const KERNEL_US: u32 = 1000;
const QUEUED: u32 = 1000;

const EXAMPLES: &str = "\
Examples:
  atoll bench preempt
  atoll bench preempt --queued 10,10000 --kernel-us 1000 --clients 1 --capacity 4 --policy reset
  atoll bench preempt --isolation process --count 1000 --json
  atoll bench preempt --device cuda:0 --queued 10,1000 --kernel-us 20,100,1000 --json

Best-effort clients keep all compute units busy with kernels of a given duration. Real-time requests arrive at \
random; their only kernel has one block per compute unit. On a GPU, best-effort blocks use all threads of a \
compute unit, so that no other block fits beside them, and running blocks are not interrupted: the drain time \
is the rest of the running kernel, and the flag time (until a launch that had not started has left) is the \
time of the preemption itself. Every number of queued kernels is measured with every kernel duration; numbers \
of clients and capacities are measured with 1000 kernels of 1000 µs, one client, and capacity 4. Times are \
from the arrival of the request at the scheduler to the start of its first block.";

/// Measure how long a real-time request waits for a device full of best-effort kernels: by number
/// of queued kernels, their duration, number of clients, and capacity of device queues
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Numbers of queued best-effort kernels per client
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    queued: Vec<NonZeroU32>,

    /// Durations of a best-effort kernel, in microseconds
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "20,100,1000")]
    kernel_us: Vec<NonZeroU32>,

    /// Numbers of best-effort clients, each with its own function
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<NonZeroU32>,

    /// Capacities of the device queues, in launches
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    capacity: Vec<NonZeroU32>,

    /// Policies: how real-time and best-effort requests share the device
    #[arg(long, value_delimiter = ',', default_value = "reset,block-wait", value_parser = policy_names())]
    policy: Vec<String>,

    /// Real-time requests per row
    #[arg(long, default_value_t = NonZeroU32::new(300).expect("not zero"))]
    count: NonZeroU32,

    /// Device: host (this machine's CPU cores), cuda or cuda:N (an NVIDIA GPU)
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceName::Host)]
    device: DeviceName,

    /// Compute units of the host device [default: one per CPU]
    #[arg(long, value_name = "COUNT")]
    compute_units: Option<NonZeroU32>,

    /// Isolation of kernels from this process
    #[arg(long, value_enum, default_value_t = Isolation::None)]
    isolation: Isolation,

    /// Seed of the times between requests
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    device: String,
    compute_units: u32,
    isolation: Isolation,
    rows: Vec<Row>,
}

/// Latencies from the scheduler on, and their parts.
#[derive(Debug, Serialize)]
struct Row {
    queued: u32,
    kernel_us: u32,
    clients: u32,
    capacity: u32,
    policy: String,
    count: u32,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// From the client to the scheduler.
    wake_us: Quantiles,
    /// Until the last evicted best-effort launch had left.
    drain_us: Quantiles,
    /// From raising the epoch until a launch with no started block left the device; `None` if there
    /// was no such launch.
    flag_us: Option<Quantiles>,
    /// The same for launches with interrupted blocks.
    interrupt_us: Option<Quantiles>,
    /// Compute-unit time lost to interrupted blocks, per request.
    restore_us: f64,
    /// Number of interrupted blocks.
    reexecuted_blocks: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

impl Args {
    /// Number of compute units of the host device.
    fn host_units(&self) -> u32 {
        self.compute_units.map_or_else(|| HostConfig::default().compute_units, NonZeroU32::get)
    }

    /// The rows, without duplicates.
    fn settings(&self) -> Vec<Setting<'_>> {
        let base = Setting {
            policy: "",
            queued: QUEUED,
            kernel_us: KERNEL_US,
            clients: 1,
            capacity: DEVICE_QUEUE_CAPACITY_DEFAULT,
        };
        let lengths = self.kernel_us.iter().flat_map(|us| self.queued.iter().map(|queued| (us.get(), queued.get())));
        let mut sweep: Vec<Setting<'_>> =
            lengths.map(|(kernel_us, queued)| Setting { kernel_us, queued, ..base }).collect();
        sweep.extend(self.clients.iter().map(|clients| Setting { clients: clients.get(), ..base }));
        sweep.extend(self.capacity.iter().map(|capacity| Setting { capacity: capacity.get(), ..base }));
        let mut settings = Vec::new();
        for setting in
            self.policy.iter().flat_map(|policy| sweep.iter().map(move |setting| Setting { policy, ..*setting }))
        {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        settings
    }
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if args.device != DeviceName::Host && (args.compute_units.is_some() || args.isolation != Isolation::None) {
        return Err(user_error("--compute-units and --isolation apply to the host device only"));
    }
    let mut bundles = Bundles::calibrated(args)?;
    let settings = args.settings();
    let bar = progress(settings.len() as u64);
    let mut rows = Vec::new();
    for setting in settings {
        let (samples, statistics) = measure(args, setting, &mut bundles, args.seed)?;
        rows.push(row(setting, &samples, &statistics));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report =
        Report { device: args.device.to_string(), compute_units: bundles.units(), isolation: args.isolation, rows };
    Findings::new(&report, text(&report))
}

fn row(setting: Setting<'_>, samples: &[Sample], statistics: &atoll_engine::EngineStatistics) -> Row {
    let Setting { queued, kernel_us, clients, capacity, policy } = setting;
    let waits = sorted_us(samples.iter().map(|sample| sample.started_ns.saturating_sub(sample.entered_ns)));
    let wakes = sorted_us(samples.iter().map(|sample| sample.entered_ns));
    let of = |histogram: &Histogram| {
        let us = |q| histogram.quantile_ns(q) as f64 / 1e3;
        Quantiles { p50: us(0.5), p99: us(0.99) }
    };
    let some = |histogram: &Histogram| (histogram.count() > 0).then(|| of(histogram));
    Row {
        queued,
        kernel_us,
        clients,
        capacity,
        policy: policy.into(),
        count: samples.len() as u32,
        p50_us: quantile(&waits, 0.5),
        p99_us: quantile(&waits, 0.99),
        max_us: quantile(&waits, 1.0),
        wake_us: Quantiles { p50: quantile(&wakes, 0.5), p99: quantile(&wakes, 0.99) },
        drain_us: of(&statistics.drain_latency),
        flag_us: some(&statistics.flag_latency),
        interrupt_us: some(&statistics.interrupt_latency),
        restore_us: statistics.discarded_ns as f64 / 1e3 / samples.len().max(1) as f64,
        reexecuted_blocks: statistics.reexecuted_blocks,
    }
}

fn sorted_us(ns: impl Iterator<Item = u64>) -> Vec<f64> {
    let mut us: Vec<f64> = ns.map(|ns| ns as f64 / 1e3).collect();
    us.sort_unstable_by(f64::total_cmp);
    us
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("policy", Left),
        ("queued", Right),
        ("kernel µs", Right),
        ("clients", Right),
        ("capacity", Right),
        ("p50 µs", Right),
        ("p99 µs", Right),
        ("max µs", Right),
        ("wake p50", Right),
        ("drain p50", Right),
        ("flag p50", Right),
        ("interrupt p50", Right),
        ("restore", Right),
        ("run again", Right),
    ]);
    for row in &report.rows {
        let us = |us: f64| format!("{us:.1}");
        table.row([
            row.policy.clone(),
            row.queued.to_string(),
            row.kernel_us.to_string(),
            row.clients.to_string(),
            row.capacity.to_string(),
            us(row.p50_us),
            us(row.p99_us),
            us(row.max_us),
            us(row.wake_us.p50),
            us(row.drain_us.p50),
            row.flag_us.map_or_else(String::new, |flag| us(flag.p50)),
            row.interrupt_us.map_or_else(String::new, |interrupt| us(interrupt.p50)),
            us(row.restore_us),
            row.reexecuted_blocks.to_string(),
        ]);
    }
    format!("{}, {}\n{table}", report.device, counted(report.compute_units, "compute unit"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn no_row_is_measured_twice() {
        let args = Cli::parse_from(["bench"]).args;
        let settings = args.settings();
        assert_eq!(settings.len(), 2 * (4 * 3 + 3 + 3));
        assert!(settings.iter().enumerate().all(|(index, setting)| !settings[..index].contains(setting)));
        assert!(
            settings
                .iter()
                .any(|setting| setting.kernel_us == 1000 && setting.queued == 10_000 && setting.policy == "reset")
        );
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let sorted = sorted_us((1..=200).map(|us| us * 1000).rev());
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [100.0, 198.0, 200.0]);
        assert_eq!(quantile(&sorted[..1], 0.5), 1.0);
    }
}
