//! `atoll bench graphs`: a graph of functions beside the same calls by a client, its deadlines under
//! load, and tensors between functions that stay on the device.

mod admission;
mod pipeline;
mod vision;

use super::daemon::Daemon;
use crate::engine::FleetArgs;
use crate::failure::OrUserError;
use crate::invoker::{Invoker, Terms};
use crate::output::{Align, Table, parse_seconds};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use admission::{Admitted, open_loop};
use anyhow::{Context, Result, anyhow, ensure};
use atoll_protocol::Tensor;
use atoll_server::{ControlConfig, ServerConfig, limits};
use pipeline::Pipeline;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use vision::{GRAPH, Vision};

const EXAMPLES: &str = "\
Examples:
  atoll bench graphs
  atoll bench graphs --device host:0@0 --device host:1@1 --clients 1,2,8 --seconds 20 --json
  atoll bench graphs --width 1 --image 224 --load 0.6 --deadline 8";

/// Alternations between the client and the graph.
const TURNS: u32 = 4;
/// Calls alone, from which the latency without load is taken.
const CALLS_ALONE: usize = 50;
/// Different images, so that about half of them need the third model.
const IMAGES: usize = 16;

/// Measure a graph of functions: throughput beside a client that calls its models itself, deadlines
/// under load, and tensors that stay on the device
///
/// The graph is an ensemble of two image models with a cascade: a third model runs only if the first
/// two are not confident, which is so for about half of the images. First, clients call the models
/// over HTTP, one after the other, and compute the rest themselves, in turns with clients that call
/// the graph over HTTP. Then the graph gets Poisson arrivals with a deadline, at a part of its best
/// throughput, over the control socket. Before both, four functions are called one after the other
/// on the idle first device, with tensors that stay there and with tensors that go through host
/// memory.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Numbers of clients that send requests without pauses
    #[arg(
        long,
        value_name = "COUNT,COUNT…",
        value_delimiter = ',',
        default_value = "1,4",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    clients: Vec<u32>,

    /// Time of the measurement of a number of clients, and of that of deadlines
    #[arg(long, default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,

    /// Rate of the requests with a deadline, as a part of the graph's throughput
    #[arg(long, default_value_t = 0.8)]
    load: f64,

    /// Deadline of a request, as a multiple of the graph's mean latency without load
    #[arg(long, default_value_t = 4.0)]
    deadline: f64,

    /// Factor for the channels of the models
    #[arg(long, default_value_t = 0.25)]
    width: f64,

    /// Height and width of the images
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(32..=512))]
    image: u32,

    /// Seed of images and arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    fleet: FleetArgs,
}

/// Results.
struct Measured {
    pipeline: Pipeline,
    throughput: Vec<Throughput>,
    /// Part of the requests for which the third model runs.
    cascade: f64,
    alone: Distribution,
    deadline: Duration,
    rate_per_s: f64,
    admitted: Admitted,
}

/// Requests per second.
struct Throughput {
    clients: u32,
    by_client: f64,
    by_graph: f64,
}

impl Throughput {
    fn ratio(&self) -> f64 {
        self.by_graph / self.by_client.max(f64::MIN_POSITIVE)
    }
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    check(args).or_user_error()?;
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    vision::build(args, &repository)?;
    let socket = folder.path().join("atoll.sock");
    let daemon = start(args, &repository, folder.path(), &socket)?;
    let measured = measure(args, &daemon, &socket);
    daemon.stop()?;
    let measured = measured?;
    Findings::new(&as_json(args, &measured), text(&measured))
}

fn check(args: &Args) -> Result<()> {
    let is_factor = |value: f64| value.is_finite() && value > 0.0;
    ensure!(is_factor(args.load), "--load {}: the load is above 0", args.load);
    ensure!(is_factor(args.deadline), "--deadline {}: the multiple is above 0", args.deadline);
    ensure!(args.width > 0.0 && args.width <= 4.0, "--width {}: the factor is above 0, and at most 4", args.width);
    Ok(())
}

fn start(args: &Args, repository: &Path, folder: &Path, socket: &Path) -> Result<Daemon> {
    let control = ControlConfig {
        socket: socket.into(),
        state: folder.join("state"),
        object_memory_bytes: limits::OBJECT_MEMORY_BYTES_DEFAULT,
        trust_tenants: false,
    };
    let config = ServerConfig::new(repository.into(), folder.join("cache"));
    Daemon::start(&args.fleet, ServerConfig { control: Some(control), ..config })
}

fn measure(args: &Args, daemon: &Daemon, socket: &Path) -> Result<Measured> {
    // Once a client is connected, all models are loaded.
    daemon.connect(pipeline::MODEL)?;
    let pipeline = pipeline::measure(&daemon.fleet.handle())?;
    let most = args.clients.iter().copied().max().context("there is a number of clients")?;
    let connect = |model: &str| (0..most).map(|_| daemon.connect(model)).collect::<Result<Vec<Invoker>>>();
    let [a, b, c] = vision::MODELS.map(connect);
    let mut random = Random::new(args.seed);
    let image = || vision::image(args.image, &mut random);
    let images: Vec<Tensor> = std::iter::repeat_with(image).take(IMAGES).collect::<Result<_>>()?;
    let models = a?.into_iter().zip(b?).zip(c?);
    let visions: Vec<Vision> = models.map(|((a, b), c)| Vision { a, b, c }).collect();
    let threshold = visions.first().context("there is a client")?.median_confidence(&images)?;
    let mut control = atoll_client::Client::connect(socket)?;
    control.deploy_graph(&vision::manifest(args.image, threshold), None)?;
    let graphs = connect(GRAPH)?;
    compare(&visions[0], &graphs[0], &images, threshold)?;

    let by_client = |client: usize, image: &Tensor| visions[client].ask(image, threshold).map(drop);
    let by_graph = |client: usize, image: &Tensor| ask_graph(&graphs[client], image).map(drop);
    let compare = |clients: &u32| in_turns(args, *clients, &images, &by_client, &by_graph);
    let throughput = args.clients.iter().map(compare).collect::<Result<Vec<_>>>()?;
    let alone = alone(&graphs[0], &images)?;
    let deadline = Duration::from_secs_f64(alone.mean_ms / 1e3 * args.deadline);
    let best = throughput.iter().map(|throughput| throughput.by_graph).fold(0.0, f64::max);
    let rate_per_s = best * args.load;
    let admitted = open_loop(socket, &images, rate_per_s, args.seconds, args.seed, deadline)?;
    let cascade = visions[0].cascade(&images, threshold)?;
    Ok(Measured { pipeline, throughput, cascade, alone, deadline, rate_per_s, admitted })
}

fn ask_graph(graph: &Invoker, image: &Tensor) -> Result<Vec<Tensor>> {
    Ok(graph.invoke(std::slice::from_ref(image), Terms::default())?.outputs)
}

/// Checks that the graph computes what a client does.
fn compare(vision: &Vision, graph: &Invoker, images: &[Tensor], threshold: f32) -> Result<()> {
    for image in images {
        let expected = vision.ask(image, threshold)?;
        let outputs = ask_graph(graph, image)?;
        let scores = vision::floats(outputs.first().context("the graph has an output")?);
        let is_same = scores.len() == expected.len()
            && scores.iter().zip(&expected).all(|(score, expected)| (score - expected).abs() < 1e-4);
        ensure!(is_same, "the graph's scores differ from those that the client computed");
    }
    Ok(())
}

/// Sends the image of a request as the client of this number.
type Ask<'a> = &'a (dyn Fn(usize, &Tensor) -> Result<()> + Sync);

/// The throughput of a number of clients, which call models and graph in turns.
fn in_turns(args: &Args, clients: u32, images: &[Tensor], by_client: Ask<'_>, by_graph: Ask<'_>) -> Result<Throughput> {
    let length = Duration::from_secs_f64(args.seconds / f64::from(2 * TURNS));
    let mut throughput = Throughput { clients, by_client: 0.0, by_graph: 0.0 };
    for _ in 0..TURNS {
        throughput.by_client += per_second(clients, images, length, by_client)? / f64::from(TURNS);
        throughput.by_graph += per_second(clients, images, length, by_graph)? / f64::from(TURNS);
    }
    Ok(throughput)
}

/// Requests per second of all clients in a closed loop.
fn per_second(clients: u32, images: &[Tensor], length: Duration, ask: Ask<'_>) -> Result<f64> {
    let begin = Instant::now();
    let client = |client: usize| -> Result<u64> {
        let mut done = 0;
        while begin.elapsed() < length {
            ask(client, &images[(done as usize + client) % images.len()])?;
            done += 1;
        }
        Ok(done)
    };
    let client = &client;
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients as usize).map(|number| scope.spawn(move || client(number))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?);
        ended.sum::<Result<u64>>()
    })?;
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}

fn alone(graph: &Invoker, images: &[Tensor]) -> Result<Distribution> {
    let call = |image: &Tensor| {
        let begin = Instant::now();
        ask_graph(graph, image).map(|_| begin.elapsed())
    };
    let took = images.iter().cycle().take(CALLS_ALONE).map(call).collect::<Result<Vec<_>>>()?;
    Ok(Distribution::of(&took))
}

fn as_json(args: &Args, measured: &Measured) -> Value {
    json!({
        "devices": args.fleet.device_names().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "width": args.width,
        "image": args.image,
        "seed": args.seed,
        "pipeline": measured.pipeline.as_json(),
        "cascade": measured.cascade,
        "throughput": measured.throughput.iter().map(|throughput| json!({
            "clients": throughput.clients,
            "client_per_s": throughput.by_client,
            "graph_per_s": throughput.by_graph,
            "ratio": throughput.ratio(),
        })).collect::<Vec<_>>(),
        "alone": measured.alone,
        "deadline_ms": measured.deadline.as_secs_f64() * 1e3,
        "rate_per_s": measured.rate_per_s,
        "admission": measured.admitted.as_json(),
    })
}

fn text(measured: &Measured) -> String {
    use Align::Right;
    let mut table = Table::new([("clients", Right), ("calls/s", Right), ("graph/s", Right), ("ratio", Right)]);
    for throughput in &measured.throughput {
        let per_s = |value: f64| format!("{value:.1}");
        let (client, graph) = (per_s(throughput.by_client), per_s(throughput.by_graph));
        table.row([throughput.clients.to_string(), client, graph, format!("{:.2}", throughput.ratio())]);
    }
    format!(
        "Requests per second, by calls of the models and by the graph; {:.0} % need the third model\n\n{table}\nthe \
         graph alone: mean {:.3} ms, p99 {:.3} ms\n{:.1} requests a second with a deadline of {:.3} ms:\n{}{}",
        measured.cascade * 100.0,
        measured.alone.mean_ms,
        measured.alone.p99_ms,
        measured.rate_per_s,
        measured.deadline.as_secs_f64() * 1e3,
        measured.admitted.text(),
        measured.pipeline.text()
    )
}
