//! `atoll bench functions`

mod exclusive;
pub(super) mod variants;

pub(crate) use exclusive::{WorkerArgs, work};

use super::load::{ClosedLoop, Workload};
use crate::drawing::{Axis, AxisScale, Line, plot};
use crate::engine::EngineArgs;
use crate::failure::OrUserError;
use crate::output::{Align, Table, parse_bytes, parse_seconds};
use crate::report::Findings;
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
  atoll bench functions --size 1024 --memory-limit 256M --plot sharing.svg
  atoll bench functions --functions resnet50 --clients 4,8,16 --quota 32M";

/// Measure many functions on one device: clients that send requests without pauses, each for its
/// own function, beside one process per client
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Functions or models to measure, each by itself
    #[arg(long, value_delimiter = ',', default_value = "gemm_chain,complex_gemm,jacobi,resnet50")]
    functions: Vec<String>,

    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    clients: Vec<NonZeroUsize>,

    /// Duration of each measurement, in seconds; the kinds of load on the shared device alternate
    /// in five rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = parse_seconds)]
    duration: f64,

    /// Rows and columns of the functions' matrices
    #[arg(long, default_value_t = 256)]
    size: u32,

    /// Factor for the channels of models
    #[arg(long, default_value_t = 0.5)]
    width: f64,

    /// Height and width of the models' images
    #[arg(long, default_value_t = 64)]
    image: u32,

    /// Memory quota of the functions, which all belong to one tenant, for example 512M or 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    quota: Option<u64>,

    /// Do not measure one process per client
    #[arg(long)]
    no_exclusive: bool,

    /// File for a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Number of rounds over the kinds of load. They alternate, since the speed of a shared machine
/// changes from minute to minute.
const ROUNDS: u32 = 5;

/// One measurement.
struct Point {
    clients: usize,
    shared: Shared,
    /// Requests per second with one process per client.
    exclusive: Option<f64>,
}

/// Measurements of one kind of function.
struct Series<'a> {
    function: &'a str,
    points: Vec<Point>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let folder = tempfile::tempdir()?;
    let scale = Scale { size: args.size, width: args.width, image: args.image };
    let devices = [args.engine.device_name()];
    let measure = |function| measure(args, function, Variants::new(function, scale, folder.path(), &devices)?);
    let series: Vec<Series<'_>> = args.functions.iter().map(|function| measure(function)).collect::<Result<_>>()?;
    if let Some(path) = &args.plot {
        std::fs::write(path, picture(&series))
            .with_context(|| format!("cannot write {}", path.display()))
            .or_user_error()?;
    }
    Findings::new(&series.iter().map(Series::json).collect::<Vec<_>>(), table(&series))
}

fn measure<'a>(args: &Args, function: &'a str, mut variants: Variants<'_>) -> Result<Series<'a>> {
    let duration = Duration::from_secs_f64(args.duration);
    let mut points = Vec::new();
    for clients in &args.clients {
        let clients = clients.get();
        let bundles = variants.bundles(clients)?;
        let shared = shared(bundles, args, duration).with_context(|| format!("{function}, {clients} clients"))?;
        let exclusive =
            if args.no_exclusive { None } else { Some(exclusive::throughput(bundles, &args.engine, duration)?) };
        tracing::info!(function, clients, together = shared.together, alone = shared.alone, ?exclusive, "measured");
        points.push(Point { clients, shared, exclusive });
    }
    Ok(Series { function, points })
}

/// Throughput of many functions on one device.
struct Shared {
    /// Size of the functions' constants.
    constants_bytes: u64,
    /// Requests per second with one client per function, in total.
    together: f64,
    /// Requests per second of the first client, while the others are idle.
    alone: f64,
    /// Requests per second of one client that calls the functions in turn: the same constants, but
    /// no sharing.
    in_turn: f64,
    /// Loads of constants per request, when all clients are active.
    loads: f64,
    /// Latency when all clients are active.
    latency: Distribution,
}

fn shared(bundles: &[PathBuf], args: &Args, duration: Duration) -> Result<Shared> {
    let engine = args.quota.map_or_else(|| args.engine.start(), |quota| args.engine.start_with_quota(quota))?;
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
    let slice = duration / ROUNDS;
    let (mut together, mut alone, mut in_turn, mut loads) = (0.0, 0.0, 0.0, 0);
    let mut latencies = Vec::new();
    let mut turns = workloads.iter().cycle();
    for _ in 0..ROUNDS {
        alone += busy(&workloads[..1], slice).1;
        in_turn += ask_in_turn(&mut turns, slice)?;
        let loads_before = handle.statistics().constants.loads;
        let (waits, per_second) = busy(&workloads, slice);
        loads += handle.statistics().constants.loads - loads_before;
        latencies.extend(waits);
        together += per_second;
    }
    engine.shutdown();
    Ok(Shared {
        constants_bytes,
        together: together / f64::from(ROUNDS),
        alone: alone / f64::from(ROUNDS),
        in_turn: in_turn / f64::from(ROUNDS),
        loads: loads as f64 / latencies.len().max(1) as f64,
        latency: Distribution::of(&latencies),
    })
}

/// Runs one client per workload without pauses. Returns all latencies, and the requests per second.
fn busy(workloads: &[Workload], time: Duration) -> (Vec<Duration>, f64) {
    let loops: Vec<_> = workloads.iter().map(|workload| workload.closed_loop(1)).collect();
    std::thread::sleep(time);
    ClosedLoop::finish_all(loops)
}

/// One client that calls the workloads in turn. Returns the requests per second.
fn ask_in_turn<'a>(turns: &mut impl Iterator<Item = &'a Workload>, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut answers = 0;
    while begin.elapsed() < time {
        turns.next().expect("the iterator is infinite").ask()?;
        answers += 1;
    }
    Ok(f64::from(answers) / begin.elapsed().as_secs_f64())
}

impl Point {
    /// Throughput as a multiple of that of the first client while the others are idle.
    fn of_alone(&self) -> f64 {
        self.shared.together / self.shared.alone
    }
}

impl Series<'_> {
    /// Throughput of one process per client, as a multiple of the first measurement's.
    fn exclusive_of_first(&self) -> Vec<Option<f64>> {
        let first = self.points.first().and_then(|point| point.exclusive);
        self.points.iter().map(|point| Some(point.exclusive? / first?)).collect()
    }

    fn json(&self) -> serde_json::Value {
        let points = self.points.iter().map(|Point { clients, shared, exclusive }| {
            json!({
                "clients": clients,
                "constants_bytes": shared.constants_bytes,
                "shared_per_s": shared.together,
                "alone_per_s": shared.alone,
                "in_turn_per_s": shared.in_turn,
                "loads_per_request": shared.loads,
                "latency": shared.latency,
                "exclusive_per_s": exclusive,
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
        ("of one alone", Align::Right),
        ("of all in turn", Align::Right),
        ("loads a request", Align::Right),
        ("p50 ms", Align::Right),
        ("max ms", Align::Right),
        ("exclusive /s", Align::Right),
        ("of one client", Align::Right),
    ]);
    let number =
        |value: Option<f64>, decimals: usize| value.map_or_else(String::new, |value| format!("{value:.decimals$}"));
    for one in series {
        for (point, exclusive) in one.points.iter().zip(one.exclusive_of_first()) {
            let shared = &point.shared;
            table.row([
                one.function.into(),
                point.clients.to_string(),
                format!("{:.1}", shared.constants_bytes as f64 / f64::from(1 << 20)),
                format!("{:.1}", shared.together),
                format!("{:.2}", point.of_alone()),
                format!("{:.2}", shared.together / shared.in_turn),
                format!("{:.2}", shared.loads),
                format!("{:.1}", shared.latency.p50_ms),
                format!("{:.1}", shared.latency.max_ms),
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
        let shared = one.points.iter().map(|point| Some(point.of_alone())).collect();
        for (dashed, what, values) in [(false, "", shared), (true, ", exclusive", one.exclusive_of_first())] {
            let points: Vec<(f64, f64)> = one
                .points
                .iter()
                .zip(values)
                .filter_map(|(point, value)| Some((point.clients as f64, value?)))
                .collect();
            if !points.is_empty() {
                lines.push(Line { name: format!("{}{what}", one.function), group, dashed, points });
            }
        }
    }
    let clients = Axis { title: "clients, each with a function of its own", scale: AxisScale::Binary };
    let multiple = Axis { title: "multiple of one client's", scale: AxisScale::Decimal };
    plot("Requests per second of all clients together", [clients, multiple], &lines)
}
