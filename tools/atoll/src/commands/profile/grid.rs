//! `atoll profile --grid`: throughput and latency on shares of the device.

use crate::failure::user_error;
use crate::grid::{Axes, Effort, Grid, PARTITIONS, QUOTAS, Step, scaling, shares};
use crate::output::{Align, Table, counted, print, print_json, progress};
use crate::tensors::InputArgs;
use anyhow::Result;
use atoll_core::scaling::Estimate;
use atoll_engine::EngineHandle;
use atoll_kgraph::{BufferKind, Bundle, LoadPoint, Profile};
use atoll_server::tensor_metadata;
use serde_json::json;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::time::Duration;

/// Batches of one grid.
const BATCHES_MAX: usize = 16;

#[derive(Debug, clap::Args)]
pub(super) struct GridArgs {
    /// Measure throughput and latency on a grid of shares of the device instead. A grid that was
    /// stopped continues where it was; larger partitions are skipped once they bring less than 3 %
    /// more throughput
    #[arg(long)]
    pub(super) grid: bool,

    /// Quotas of time of the grid, in percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = QUOTAS, requires = "grid")]
    quotas: Vec<u32>,

    /// Partitions of the compute units of the grid, in percent. Those that the device rounds up to
    /// the same number of units are measured once
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = PARTITIONS, requires = "grid")]
    partitions: Vec<u32>,

    /// Rows of a request, for models with a batch axis; a grid for each
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "grid")]
    batch: Vec<NonZeroU32>,

    /// Shortest time of a measurement, in seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds, requires = "grid")]
    seconds: Duration,

    /// Requests at the same time, so that a share is never idle
    #[arg(long, value_name = "COUNT", default_value = "2", requires = "grid")]
    clients: NonZeroUsize,

    /// Measure all points again
    #[arg(long, requires = "grid")]
    fresh: bool,

    /// Print the interpolated values at this partition and quota, with the error of the
    /// interpolation
    #[arg(long, value_name = "PARTITION,QUOTA", value_parser = parse_at, requires = "grid")]
    at: Option<(u32, u32)>,
}

/// A time up to an hour.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    if seconds > 0.0 && seconds <= 3600.0 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("expected more than 0, and at most 3600 seconds".into())
}

/// `30,50`, in percent.
fn parse_at(text: &str) -> Result<(u32, u32), String> {
    let (partition, quota) = text.split_once(',').ok_or("expected two percentages, as in 30,50")?;
    let parse = |text: &str| text.trim().parse().map_err(|_| format!("`{text}` is not a whole percentage"));
    Ok((parse(partition)?, parse(quota)?))
}

/// What is measured, and where it is kept.
pub(super) struct Target<'a> {
    pub(super) handle: &'a EngineHandle,
    pub(super) bundle: &'a Bundle,
    pub(super) function: &'a str,
    pub(super) compute_units: u32,
    pub(super) runs: NonZeroU32,
    pub(super) inputs: &'a InputArgs,
    pub(super) path: &'a Path,
    pub(super) json: bool,
}

pub(super) fn run(args: &GridArgs, target: &Target<'_>, mut profile: Profile) -> Result<()> {
    let axes = Axes::new(&args.partitions, &args.quotas, target.compute_units)?;
    let grid = Grid {
        handle: target.handle,
        bundle: target.bundle,
        function: target.function,
        axes: &axes,
        effort: Effort { runs: target.runs.get(), time: args.seconds, depth: args.clients.get() },
    };
    let batches = batches(args, target.bundle)?;
    if args.fresh {
        profile.points.clear();
    }
    let size = axes.partitions.len() * axes.quotas.len();
    let bar = progress((size * batches.len()) as u64);
    let mut text = String::new();
    for batch in batches {
        let inputs = inputs(target, batch)?;
        let (mut known, mut flat) = (0, None);
        let mut keep = |profile: &Profile, step: Step<'_>| {
            bar.inc(1);
            match step {
                Step::Measured(point) => {
                    bar.println(line(point));
                    profile.write(target.path)?;
                }
                Step::Known(_) => known += 1,
                Step::Flat(from) => flat = Some(from),
            }
            Ok(())
        };
        let points = grid.measure(&inputs, &mut profile, &mut keep)?;
        // Contradicting points may have been dropped after the last call of `keep`.
        profile.write(target.path)?;
        text += &table(&points, batch);
        text += &format!("{} of {} were known\n", known.min(points.len()), counted(points.len() as u32, "point"));
        if let Some(from) = flat {
            text += &format!("partitions from {from} % on are skipped: less than 3 % more throughput\n");
        }
        if let Some((partition, quota)) = args.at {
            let estimate = scaling(&points).map_err(user_error_of)?.estimate(partition, quota);
            let outside = || user_error(format!("--at {partition},{quota} is outside the grid"));
            let estimate = estimate.ok_or_else(outside)?;
            if target.json {
                bar.finish_and_clear();
                return print_json(&estimate_json(&estimate));
            }
            text += &estimate_text(&estimate);
        }
    }
    bar.finish_and_clear();
    if target.json {
        return print_json(&profile);
    }
    Ok(print(&format!("{text}written to {}\n", target.path.display()))?)
}

fn user_error_of(error: impl std::fmt::Display) -> anyhow::Error {
    user_error(error.to_string())
}

/// The batches to measure; `None` for the inputs as they are.
fn batches(args: &GridArgs, bundle: &Bundle) -> Result<Vec<Option<u32>>> {
    if args.batch.len() > BATCHES_MAX {
        return Err(user_error(format!("--batch has {} values; at most {BATCHES_MAX} are possible", args.batch.len())));
    }
    if !args.batch.is_empty() && bundle.graph().batch.is_none() {
        let name = &bundle.graph().name;
        return Err(user_error(format!("--batch: the rows of `{name}` are not independent, so it has no batches")));
    }
    match args.batch.is_empty() {
        true => Ok(vec![None]),
        false => Ok(args.batch.iter().map(|rows| Some(rows.get())).collect()),
    }
}

fn inputs(target: &Target<'_>, batch: Option<u32>) -> Result<Vec<atoll_protocol::Tensor>> {
    let graph = target.bundle.graph();
    let symbol = graph.batch.as_ref().map(|axis| graph.symbols[axis.symbol.0 as usize].name.as_str());
    let rows = symbol.zip(batch.map(i64::from));
    target.inputs.tensors_with(&tensor_metadata(graph, BufferKind::Input), rows)
}

fn line(point: &LoadPoint) -> String {
    let (partition, quota) = shares(point);
    let rate = point.per_1000_s as f64 / 1e3;
    format!("{partition} % of the compute units, {quota} % of the time: {rate:.1} requests/s")
}

fn table(points: &[LoadPoint], batch: Option<u32>) -> String {
    let mut table = Table::new([
        ("partition", Align::Right),
        ("quota", Align::Right),
        ("requests/s", Align::Right),
        ("rows/s", Align::Right),
        ("p50 ms", Align::Right),
        ("p99 ms", Align::Right),
        ("utilisation", Align::Right),
        ("occupancy", Align::Right),
        ("runs", Align::Right),
    ]);
    let percent =
        |permille: Option<u32>| permille.map_or_else(|| "-".into(), |part| format!("{:.1} %", f64::from(part) / 10.0));
    for point in points {
        let (partition, quota) = shares(point);
        let rate = point.per_1000_s as f64 / 1e3;
        table.row([
            format!("{partition} %"),
            format!("{quota} %"),
            format!("{rate:.1}"),
            batch.map_or_else(|| "-".into(), |rows| format!("{:.1}", rate * f64::from(rows))),
            format!("{:.3}", point.latency_ns_p50 as f64 / 1e6),
            format!("{:.3}", point.latency_ns_p99 as f64 / 1e6),
            percent(point.utilisation_permille),
            percent(point.occupancy_permille),
            point.runs.to_string(),
        ]);
    }
    table.to_string()
}

fn estimate_text(estimate: &Estimate) -> String {
    let Estimate { point, error_percent } = estimate;
    let error = match error_percent {
        Some(percent) => format!("wrong by up to {percent} % at the inner points of the grid"),
        None => "the grid has no inner point to check it with".into(),
    };
    format!(
        "at {} % of the compute units and {} % of the time: {:.1} requests/s within {:.3} ms, interpolated; {error}\n",
        point.partition,
        point.quota,
        point.throughput as f64 / 1e3,
        point.latency_ns as f64 / 1e6
    )
}

fn estimate_json(estimate: &Estimate) -> serde_json::Value {
    json!({
        "partition_percent": estimate.point.partition,
        "quota_percent": estimate.point.quota,
        "requests_per_s": estimate.point.throughput as f64 / 1e3,
        "p99_ms": estimate.point.latency_ns as f64 / 1e6,
        "error_percent": estimate.error_percent,
    })
}
