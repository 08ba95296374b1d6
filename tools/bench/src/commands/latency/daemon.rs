//! Real-time requests to a daemon of this process, over HTTP and over rings.

use super::{Args, Quantiles, RealTime};
use crate::commands::load::{OpenLoop, TAIL, Workload};
use crate::commands::served::Served;
use crate::invoker::{Invoker, Terms};
use anyhow::{Context, Result};
use atoll_client::{Class, Client, Ring, RingCall, RingInput, RingOptions};
use atoll_engine::EngineStatistics;
use atoll_protocol::Tensor;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Name of the model of the real-time requests in the daemon.
pub(super) const MODEL: &str = "rt-served";

/// Connections, and rings, of the clients: requests of an open loop overlap.
const CONNECTIONS: usize = 4;

/// Least memory of a ring's tensors; larger if the inputs take more.
const ARENA_BYTES_MIN: u64 = 4 << 20;

/// The same real-time requests over an interface of the daemon.
#[derive(Debug, Serialize)]
pub(super) struct Interface {
    pub(super) rt_alone: RealTime,
    pub(super) rt_beside: RealTime,
    /// Time from the submission of a preempting real-time request to its first block.
    pub(super) preemption_latency: Quantiles,
}

/// The interfaces.
#[derive(Debug, Serialize)]
pub(super) struct Interfaces {
    pub(super) over_http: Interface,
    pub(super) over_ring: Interface,
}

/// A client that waits for its answer.
type Ask<'a> = Box<dyn FnMut() -> Result<()> + Send + 'a>;

/// Where the clients find the daemon.
pub(super) struct Doors {
    pub(super) socket: PathBuf,
    pub(super) inputs: Vec<Tensor>,
}

/// Measures both interfaces, one after the other.
pub(super) fn measure(
    args: &Args,
    served: &Served,
    doors: &Doors,
    arrivals: &[Duration],
    be: &Workload,
) -> Result<Interfaces> {
    let statistics = || served.engine().statistics();
    let https: Vec<Invoker> = (0..CONNECTIONS).map(|_| served.connect(MODEL)).collect::<Result<_>>()?;
    let mut clients: Vec<Ask<'_>> = https.iter().map(|http| ask_http(http, &doors.inputs)).collect();
    let over_http = interface(args, &mut clients, arrivals, be, statistics)?;
    let rings: Vec<Ring> = (0..CONNECTIONS).map(|_| open_ring(doors)).collect::<Result<_>>()?;
    let mut clients: Vec<Ask<'_>> = rings.into_iter().map(|ring| ask_ring(ring, &doors.inputs)).collect();
    let over_ring = interface(args, &mut clients, arrivals, be, statistics)?;
    Ok(Interfaces { over_http, over_ring })
}

fn ask_http<'a>(http: &'a Invoker, inputs: &'a [Tensor]) -> Ask<'a> {
    Box::new(move || http.invoke(inputs, Terms { priority: 1, deadline: None }).map(drop))
}

/// A ring whose sides sleep while they wait: the best-effort load takes all cores.
fn open_ring(doors: &Doors) -> Result<Ring> {
    let inputs_bytes: usize = doors.inputs.iter().map(|input| input.bytes.len()).sum();
    let arena_bytes = ARENA_BYTES_MIN.max(2 * inputs_bytes as u64);
    let options = RingOptions { slots: 1, arena_bytes, spin: Duration::ZERO, daemon_spin: Duration::ZERO };
    Client::connect(&doors.socket)?.open_ring(&options).context("cannot open a ring")
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

fn interface(
    args: &Args,
    clients: &mut [Ask<'_>],
    arrivals: &[Duration],
    be: &Workload,
    statistics: impl Fn() -> EngineStatistics,
) -> Result<Interface> {
    clients.iter_mut().try_for_each(|ask| ask())?;
    let rt_alone = open_loop(clients, arrivals).into();
    let before = statistics().preemption_latency;
    let load = be.closed_loop(args.be_concurrency.get());
    let rt_beside = open_loop(clients, arrivals).into();
    load.stop();
    let preemption_latency = (&statistics().preemption_latency.since(&before)).into();
    Ok(Interface { rt_alone, rt_beside, preemption_latency })
}

/// Sends a request at every arrival, over the next free connection. Latency counts from the
/// scheduled arrival, so that the wait for a connection is included.
fn open_loop(clients: &mut [Ask<'_>], arrivals: &[Duration]) -> OpenLoop {
    let (begin, next) = (Instant::now(), AtomicUsize::new(0));
    let last = arrivals.last().map_or(begin, |last| begin + *last);
    let send = |ask: &mut Ask<'_>| {
        let mut found = OpenLoop::default();
        while let Some(&arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
            let due = begin + arrival;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let is_late = Instant::now() > last + TAIL;
            match if is_late { Err(anyhow::anyhow!("no connection was free")) } else { ask() } {
                Ok(()) => found.latencies.push(due.elapsed()),
                Err(_) => found.failed += 1,
            }
        }
        found
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|ask| scope.spawn(|| send(ask))).collect();
        let mut all = OpenLoop::default();
        for found in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            all.latencies.extend(found.latencies);
            all.failed += found.failed;
        }
        all
    })
}

/// Places the bundle of a model where a daemon finds it as [`MODEL`].
pub(super) fn place(args: &Args, repository: &Path) -> Result<PathBuf> {
    std::fs::create_dir(repository)?;
    let bundle = repository.join(format!("{MODEL}.kg"));
    crate::artifact::place(&args.rt, args.engine.device_name(), &bundle)?;
    Ok(bundle)
}
