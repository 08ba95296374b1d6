//! Real-time requests to a daemon of this process, over HTTP and over rings.

use super::{Args, Bundles, Loads, Quantiles, RealTime, Report};
use crate::commands::load::{OpenLoop, TAIL};
use crate::commands::served::Served;
use crate::compiler;
use crate::invoker::{Invoker, Terms};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result};
use atoll_client::{Class, Client, Ring, RingCall, RingInput, RingOptions};
use atoll_kgraph::ModelOptions;
use atoll_protocol::Tensor;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Name of the model of the real-time requests in the daemon.
const MODEL: &str = "rt-served";

/// Connections, and rings, of the clients: requests of an open loop overlap.
const CONNECTIONS: usize = 4;

/// Least memory of a ring's tensors; larger if the inputs take more.
const ARENA_BYTES_MIN: u64 = 4 << 20;

/// The measurements in this process, and the same requests over the daemon's interfaces.
#[derive(Debug, Serialize)]
struct WithDaemon {
    #[serde(flatten)]
    in_process: Report,
    daemon: Interfaces,
}

#[derive(Debug, Serialize)]
struct Interfaces {
    over_http: Interface,
    over_ring: Interface,
}

#[derive(Debug, Serialize)]
struct Interface {
    rt_alone: RealTime,
    rt_beside: RealTime,
    /// Time from the submission of a preempting real-time request to its first block.
    preemption_latency: Quantiles,
}

/// A client that sends a request and waits for the answer.
type Ask<'a> = Box<dyn FnMut() -> Result<()> + Send + 'a>;

/// A running daemon, and what its clients send.
struct Target {
    served: Served,
    socket: PathBuf,
    inputs: Vec<Tensor>,
}

/// Measures in this process and then over the interfaces of a daemon, all with one engine.
pub(super) fn run(args: &Args, bundles: &Bundles) -> Result<Findings> {
    let folder = tempfile::tempdir()?;
    let target = Target::start(args, folder.path())?;
    let found = Loads::load(args, &target.served.engine(), bundles).and_then(|mut loads| {
        let in_process = loads.measure(args)?;
        Ok(WithDaemon { in_process, daemon: target.measure(args, &loads)? })
    });
    target.served.stop()?;
    let found = found?;
    Findings::new(&found, text(&found))
}

impl Target {
    fn start(args: &Args, folder: &Path) -> Result<Target> {
        let (repository, socket) = (folder.join("repository"), folder.join("atoll.sock"));
        std::fs::create_dir(&repository)?;
        place(args, &repository.join(format!("{MODEL}.kg")))?;
        let served = Served::start_with(&args.engine, MODEL, &repository, folder, None, Some(socket.clone()))?;
        let inputs = InputSpecs::default().tensors(served.invoker.inputs(), &mut Random::new(args.seed))?;
        Ok(Target { served, socket, inputs })
    }

    /// Measures both interfaces, one after the other.
    fn measure(&self, args: &Args, loads: &Loads) -> Result<Interfaces> {
        let https: Vec<Invoker> = (0..CONNECTIONS).map(|_| self.served.connect(MODEL)).collect::<Result<_>>()?;
        let clients = https.iter().map(|http| ask_http(http, &self.inputs)).collect();
        let over_http = self.interface(args, clients, loads)?;
        let rings: Vec<Ring> = (0..CONNECTIONS).map(|_| self.open_ring()).collect::<Result<_>>()?;
        let clients = rings.into_iter().map(|ring| ask_ring(ring, &self.inputs)).collect();
        let over_ring = self.interface(args, clients, loads)?;
        Ok(Interfaces { over_http, over_ring })
    }

    fn interface(&self, args: &Args, mut clients: Vec<Ask<'_>>, loads: &Loads) -> Result<Interface> {
        let preemptions = || self.served.engine().statistics().preemption_latency;
        clients.iter_mut().try_for_each(|ask| ask())?;
        let rt_alone = open_loop(&mut clients, &loads.arrivals).into();
        let before = preemptions();
        let load = loads.be.closed_loop(args.be_concurrency.get());
        let rt_beside = open_loop(&mut clients, &loads.arrivals).into();
        load.stop();
        Ok(Interface { rt_alone, rt_beside, preemption_latency: (&preemptions().since(&before)).into() })
    }

    /// Opens a ring whose sides sleep while they wait: the best-effort load takes all cores.
    fn open_ring(&self) -> Result<Ring> {
        let inputs_bytes: usize = self.inputs.iter().map(|input| input.bytes.len()).sum();
        let arena_bytes = ARENA_BYTES_MIN.max(2 * inputs_bytes as u64);
        let options = RingOptions { slots: 1, arena_bytes, spin: Duration::ZERO, daemon_spin: Duration::ZERO };
        Client::connect(&self.socket)?.open_ring(&options).context("cannot open a ring")
    }
}

/// Places the bundle of the real-time model in the repository of the daemon.
fn place(args: &Args, bundle: &Path) -> Result<()> {
    if args.rt.extension() == Some(OsStr::new("onnx")) {
        return compiler::compile_for(args.engine.device_name(), &args.rt, &ModelOptions::default(), bundle);
    }
    std::fs::copy(&args.rt, bundle).with_context(|| format!("cannot copy {}", args.rt.display()))?;
    Ok(())
}

fn ask_http<'a>(http: &'a Invoker, inputs: &'a [Tensor]) -> Ask<'a> {
    Box::new(move || http.invoke(inputs, Terms { priority: 1, deadline: None }).map(drop))
}

fn ask_ring(mut ring: Ring, inputs: &[Tensor]) -> Ask<'_> {
    Box::new(move || {
        let mut call = RingCall::of(MODEL).class(Class::RealTime);
        for Tensor { name, datatype, shape, bytes } in inputs {
            call = call.input_of(RingInput { name, datatype: *datatype, shape, bytes });
        }
        ring.infer(&call)?;
        Ok(())
    })
}

/// Sends a request at every arrival, over the next free connection. Latency counts from the
/// scheduled arrival, so that the wait for a connection is included.
fn open_loop(clients: &mut [Ask<'_>], arrivals: &[Duration]) -> OpenLoop {
    let (begin, next) = (Instant::now(), AtomicUsize::new(0));
    let end = arrivals.last().map_or(begin, |last| begin + *last + TAIL);
    let send = |ask: &mut Ask<'_>| {
        let mut found = OpenLoop::default();
        while let Some(&arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
            let due = begin + arrival;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if Instant::now() < end && ask().is_ok() {
                found.latencies.push(due.elapsed());
            } else {
                found.failed += 1;
            }
        }
        found
    };
    let send = &send;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|ask| scope.spawn(move || send(ask))).collect();
        let mut all = OpenLoop::default();
        for found in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            all.latencies.extend(found.latencies);
            all.failed += found.failed;
        }
        all
    })
}

fn text(found: &WithDaemon) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("ms", Left),
        ("count", Right),
        ("p50", Right),
        ("p90", Right),
        ("p99", Right),
        ("max", Right),
        ("failed", Right),
    ]);
    let interfaces = [("HTTP", &found.daemon.over_http), ("rings", &found.daemon.over_ring)];
    for (name, of) in interfaces {
        for (phase, rt) in [("alone", &of.rt_alone), ("beside best-effort", &of.rt_beside)] {
            let [count, p50, p90, p99, max] = rt.latency.cells();
            table.row([format!("over {name}, {phase}"), count, p50, p90, p99, max, rt.failed.to_string()]);
        }
    }
    let evicting = interfaces.map(|(name, of)| of.preemption_latency.text(&format!("one that evicts, over {name}")));
    format!("{}\n{table}\n{}\n", super::text(&found.in_process), evicting.join("\n"))
}
