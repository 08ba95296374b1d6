//! `atoll bench functions`

mod exclusive;
mod variants;

pub(crate) use exclusive::{WorkerArgs, work};

use super::load::{ClosedLoop, Workload};
use crate::drawing::{Axis, AxisScale, Line, plot};
use crate::engine::EngineArgs;
use crate::failure::Blame;
use crate::output::{Align, Table, parse_seconds, print, print_json};
use crate::samples::Distribution;
use anyhow::{Context, Result};
use atoll_engine::Class;
use atoll_kgraph::Bundle;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use variants::{Scale, Variants};

const EXAMPLES: &str = "\
Examples:
  atoll bench functions
  atoll bench functions --functions jacobi --clients 1,8,64 --no-exclusive --json
  atoll bench functions --size 1024 --memory-limit 256M --plot sharing.svg";

/// Measure many functions on one device: clients that ask without a pause, each for a function with constants of its own, beside one process per client.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Functions or models, each measured alone
    #[arg(long, value_delimiter = ',', default_value = "gemm_chain,complex_gemm,jacobi,resnet50")]
    functions: Vec<String>,

    /// How many clients there are
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    clients: Vec<NonZeroUsize>,

    /// How long each measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = parse_seconds)]
    duration: f64,

    /// Rows and columns of the functions' matrices
    #[arg(long, default_value_t = 256)]
    size: u32,

    /// Factor on the models' channels
    #[arg(long, default_value_t = 0.5)]
    width: f64,

    /// Height and width of the models' images
    #[arg(long, default_value_t = 64)]
    image: u32,

    /// Leave out the processes
    #[arg(long)]
    no_exclusive: bool,

    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// One measurement.
struct Point {
    clients: usize,
    constants_bytes: u64,
    /// Requests per second, all clients together.
    shared: f64,
    /// The same of one client that asks for each of the functions in turn: what the device does with as many constants, and nobody to share with.
    in_turn: f64,
    /// How often constants of a function were loaded, by requests.
    loads: f64,
    /// How long clients waited for answers.
    latency: Distribution,
    exclusive: Option<f64>,
}

/// What was measured with one kind of function.
struct Series<'a> {
    function: &'a str,
    points: Vec<Point>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let scale = Scale { size: args.size, width: args.width, image: args.image };
    let measure = |function| measure(args, function, Variants::new(function, scale, folder.path())?);
    let series: Vec<Series<'_>> = args.functions.iter().map(|function| measure(function)).collect::<Result<_>>()?;
    if let Some(path) = &args.plot {
        std::fs::write(path, picture(&series)).with_context(|| format!("cannot write {}", path.display())).blame_user()?;
    }
    if args.json { print_json(&series.iter().map(Series::json).collect::<Vec<_>>()) } else { Ok(print(&table(&series).to_string())?) }
}

fn measure<'a>(args: &Args, function: &'a str, mut variants: Variants<'_>) -> Result<Series<'a>> {
    let duration = Duration::from_secs_f64(args.duration);
    let mut points = Vec::new();
    for clients in &args.clients {
        let clients = clients.get();
        let bundles = variants.bundles(clients)?;
        let Shared { together: shared, in_turn, loads, latency, constants_bytes } =
            shared(bundles, &args.engine, duration).with_context(|| format!("{function}, {clients} clients"))?;
        let exclusive = if args.no_exclusive { None } else { Some(exclusive::throughput(bundles, &args.engine, duration)?) };
        tracing::info!(function, clients, shared, in_turn, ?exclusive, "measured");
        points.push(Point { clients, constants_bytes, shared, in_turn, loads, latency, exclusive });
    }
    Ok(Series { function, points })
}

/// What one device does for many functions.
struct Shared {
    /// Requests per second of a client for each.
    together: f64,
    /// Of one client that asks for one after the other.
    in_turn: f64,
    loads: f64,
    latency: Distribution,
    /// What the functions' constants take.
    constants_bytes: u64,
}

fn shared(bundles: &[PathBuf], engine: &EngineArgs, duration: Duration) -> Result<Shared> {
    let engine = engine.start()?;
    let handle = engine.handle();
    let mut constants_bytes = 0;
    let mut workloads = Vec::new();
    for (client, path) in bundles.iter().enumerate() {
        let bundle = Bundle::open(path)?;
        constants_bytes += bundle.constant_bytes(handle.device_info().constants_granule);
        workloads.push(Workload::load(&handle, &format!("client{client}"), &bundle, Class::BestEffort, client as u64)?);
    }
    for workload in &workloads {
        workload.ask()?;
    }
    let in_turn = in_turn(&workloads, duration)?;
    let loads_before = handle.statistics().constants.loads;
    let loops: Vec<_> = workloads.iter().map(|workload| workload.closed_loop(1)).collect();
    std::thread::sleep(duration);
    let loads = handle.statistics().constants.loads - loads_before;
    let (latencies, together) = ClosedLoop::stop_all(loops);
    engine.shutdown();
    let loads = loads as f64 / latencies.len().max(1) as f64;
    Ok(Shared { together, in_turn, loads, latency: Distribution::of(&latencies), constants_bytes })
}

fn in_turn(workloads: &[Workload], duration: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut answers = 0;
    while begin.elapsed() < duration {
        for workload in workloads {
            workload.ask()?;
            answers += 1;
        }
    }
    Ok(f64::from(answers) / begin.elapsed().as_secs_f64())
}

impl Series<'_> {
    /// Throughput of a measurement as a multiple of the first one's.
    fn normalised(&self, value: impl Fn(&Point) -> Option<f64>) -> Vec<Option<f64>> {
        let first = self.points.first().and_then(&value);
        self.points.iter().map(|point| Some(value(point)? / first?)).collect()
    }

    fn json(&self) -> serde_json::Value {
        let points = self.points.iter().map(|point| {
            json!({
                "clients": point.clients,
                "constants_bytes": point.constants_bytes,
                "shared_per_s": point.shared,
                "in_turn_per_s": point.in_turn,
                "loads_per_request": point.loads,
                "latency": point.latency,
                "exclusive_per_s": point.exclusive,
            })
        });
        json!({ "function": self.function, "points": points.collect::<Vec<_>>() })
    }
}

fn table(series: &[Series<'_>]) -> Table {
    let mut table = Table::new([
        ("function", Align::Left),
        ("clients", Align::Right),
        ("constants MiB", Align::Right),
        ("shared /s", Align::Right),
        ("of one client", Align::Right),
        ("of all in turn", Align::Right),
        ("loads a request", Align::Right),
        ("p50 ms", Align::Right),
        ("max ms", Align::Right),
        ("exclusive /s", Align::Right),
        ("of one client", Align::Right),
    ]);
    let number = |value: Option<f64>, decimals: usize| value.map_or_else(String::new, |value| format!("{value:.decimals$}"));
    for one in series {
        let (shared, exclusive) = (one.normalised(|point| Some(point.shared)), one.normalised(|point| point.exclusive));
        for ((point, shared), exclusive) in one.points.iter().zip(shared).zip(exclusive) {
            table.row([
                one.function.into(),
                point.clients.to_string(),
                format!("{:.1}", point.constants_bytes as f64 / f64::from(1 << 20)),
                number(Some(point.shared), 1),
                number(shared, 2),
                number(Some(point.shared / point.in_turn), 2),
                number(Some(point.loads), 2),
                number(Some(point.latency.p50_ms), 1),
                number(Some(point.latency.max_ms), 1),
                number(point.exclusive, 1),
                number(exclusive, 3),
            ]);
        }
    }
    table
}

fn picture(series: &[Series<'_>]) -> String {
    let mut lines = Vec::new();
    for (group, one) in series.iter().enumerate() {
        for (dashed, what, values) in
            [(false, "", one.normalised(|point| Some(point.shared))), (true, ", exclusive", one.normalised(|point| point.exclusive))]
        {
            let points: Vec<(f64, f64)> =
                one.points.iter().zip(values).filter_map(|(point, value)| Some((point.clients as f64, value?))).collect();
            if !points.is_empty() {
                lines.push(Line { name: format!("{}{what}", one.function), group, dashed, points });
            }
        }
    }
    let clients = Axis { title: "clients, each with a function of its own", scale: AxisScale::Binary };
    let multiple = Axis { title: "multiple of one client's", scale: AxisScale::Decimal };
    plot("Requests per second of all clients together", [clients, multiple], &lines)
}
