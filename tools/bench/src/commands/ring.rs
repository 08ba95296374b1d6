//! `atoll bench ring`

use super::served::{Served, null_model};
use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Local, Terms};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result};
use atoll_client::{Class, Client, Ring, RingCall, RingInput, RingOptions};
use atoll_device::doorbell::SleepBell;
use atoll_device::shm::Region;
use atoll_protocol::Tensor;
use atoll_ring::Spin;
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench ring
  atoll bench ring --count 20000 --spin-us 200 --json";

/// Rounds of each measurement. The measurements take turns, so that disturbances affect all alike.
const ROUNDS: u32 = 10;

/// The number that ends the other side of the ping-pong.
const END: u64 = u64::MAX;

/// Measure round trips over a ring, with and without a model that computes almost nothing, beside a
/// bare ping-pong between two threads
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of round trips, one after the other
    #[arg(long, default_value_t = NonZeroU32::new(2000).expect("not zero"))]
    count: NonZeroU32,

    /// Number of warm-up round trips
    #[arg(long, default_value_t = 100)]
    warm_up: u32,

    /// How long both sides spin before they sleep, for the figures with spinning; at most 1000
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    spin_us: u32,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Measured {
    /// Both sides spin for the next message.
    spinning: Ways,
    /// Both sides sleep at once.
    asleep: Ways,
    /// The null model in this process, without a daemon.
    in_process: Distribution,
    /// The null model over HTTP.
    over_http: Distribution,
}

/// Round trips.
#[derive(Debug, Serialize)]
struct Ways {
    /// Two threads that pass a number through shared memory.
    ping_pong: Distribution,
    /// A ping to the daemon's thread of the ring, without a model.
    ring: Distribution,
    /// A request to the null model.
    null_model: Distribution,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let folder = tempfile::tempdir()?;
    let (repository, bundle) = null_model(&args.engine, folder.path())?;
    let local = Invoker::Local(Local::start(&bundle, &ModelArgs::default(), &args.engine)?);
    let mut in_process = Vec::new();
    let inputs = inputs(&local)?;
    times(args.warm_up, args.count.get(), &mut in_process, || invoke(&local, &inputs))?;
    local.stop();

    let socket = folder.path().join("atoll.sock");
    let served = Served::start_with(&args.engine, "null", &repository, folder.path(), None, Some(socket.clone()))?;
    let measured = over_rings(args, &socket, &served, &inputs);
    served.stop()?;
    let (spinning, asleep, over_http) = measured?;
    let measured = Measured { spinning, asleep, in_process: Distribution::of(&in_process), over_http };
    Findings::new(&measured, text(&measured))
}

fn inputs(invoker: &Invoker) -> Result<Vec<Tensor>> {
    InputSpecs::default().tensors(invoker.inputs(), &mut Random::new(0))
}

fn invoke(invoker: &Invoker, inputs: &[Tensor]) -> Result<()> {
    invoker.invoke(inputs, Terms { priority: 1, deadline: None }).map(drop)
}

/// Times `count` calls after some calls that are not timed.
fn times(warm_up: u32, count: u32, into: &mut Vec<Duration>, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    (0..warm_up).try_for_each(|_| call())?;
    for _ in 0..count {
        let begun = Instant::now();
        call()?;
        into.push(begun.elapsed());
    }
    Ok(())
}

fn over_rings(args: &Args, socket: &Path, served: &Served, inputs: &[Tensor]) -> Result<(Ways, Ways, Distribution)> {
    let sets = [Duration::from_micros(args.spin_us.into()), Duration::ZERO];
    let mut taken: [[Vec<Duration>; 3]; 2] = Default::default();
    let mut over_http = Vec::new();
    let count = args.count.get().div_ceil(ROUNDS);
    for _ in 0..ROUNDS {
        for (spin, [ping_pong, ring, null_model]) in sets.into_iter().zip(&mut taken) {
            let options = RingOptions { spin, daemon_spin: spin, ..RingOptions::default() };
            let mut open = Client::connect(socket)?.open_ring(&options)?;
            self::ping_pong(spin, args.warm_up, count, ping_pong)?;
            times(args.warm_up, count, ring, || Ok(open.ping()?))?;
            times(args.warm_up, count, null_model, || infer(&mut open, inputs))?;
        }
        times(args.warm_up, count, &mut over_http, || invoke(&served.invoker, inputs))?;
    }
    let [spinning, asleep] = taken.map(|ways| {
        let [ping_pong, ring, null_model] = ways.map(|times| Distribution::of(&times));
        Ways { ping_pong, ring, null_model }
    });
    Ok((spinning, asleep, Distribution::of(&over_http)))
}

fn infer(ring: &mut Ring, inputs: &[Tensor]) -> Result<()> {
    let mut call = RingCall::of("null").class(Class::RealTime);
    for Tensor { name, datatype, shape, bytes } in inputs {
        call = call.input_of(RingInput { name, datatype: *datatype, shape, bytes });
    }
    ring.infer(&call)?;
    Ok(())
}

/// A side of the ping-pong: a number, and the bell that wakes its reader.
struct Side<'a> {
    number: &'a AtomicU64,
    bell: SleepBell<'a>,
}

impl<'a> Side<'a> {
    fn at(memory: &'a Region, at: u64) -> Result<Side<'a>> {
        let inside = "the sides are inside their memory";
        let number = &memory.words(at, 1).context(inside)?[0];
        let bell = SleepBell {
            ticket: memory.word(at + 64).context(inside)?,
            sleepers: memory.word(at + 68).context(inside)?,
        };
        Ok(Side { number, bell })
    }

    fn send(&self, number: u64) {
        self.number.store(number, Ordering::Release);
        self.bell.ring(1);
    }

    /// Waits until the number is no longer `before`.
    fn receive(&self, before: u64, spin: Duration) -> u64 {
        let spinning = Spin::new(spin);
        loop {
            let ticket = self.bell.ticket();
            let number = self.number.load(Ordering::Acquire);
            if number != before {
                return number;
            }
            if !spinning.turn() {
                self.bell.sleep(ticket);
            }
        }
    }
}

/// Times round trips of a number between two threads, which wait as the sides of a ring do.
fn ping_pong(spin: Duration, warm_up: u32, count: u32, into: &mut Vec<Duration>) -> Result<()> {
    let memory = Region::create("atoll-ping-pong", 4096)?;
    let (there, back) = (Side::at(&memory, 0)?, Side::at(&memory, 1024)?);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while last != END {
                last = there.receive(last, spin);
                back.send(last);
            }
        });
        let mut last = 0;
        let timed = times(warm_up, count, into, || {
            there.send(last + 1);
            last = back.receive(last, spin);
            Ok(())
        });
        there.send(END);
        timed
    })
}

fn text(measured: &Measured) -> String {
    use Align::{Left, Right};
    let mut table =
        Table::new([("µs", Left), ("count", Right), ("p50", Right), ("p90", Right), ("p99", Right), ("max", Right)]);
    let mut row = |name: &str, times: &Distribution| {
        let us = |ms: f64| format!("{:.1}", ms * 1e3);
        let cells = [times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms].map(us);
        let [p50, p90, p99, max] = cells;
        table.row([name.into(), times.count.to_string(), p50, p90, p99, max]);
    };
    for (how, ways) in [("spinning", &measured.spinning), ("asleep", &measured.asleep)] {
        row(&format!("ping-pong, {how}"), &ways.ping_pong);
        row(&format!("ring, {how}"), &ways.ring);
        row(&format!("null model over the ring, {how}"), &ways.null_model);
    }
    row("null model in process", &measured.in_process);
    row("null model over HTTP", &measured.over_http);
    let over = |ways: &Ways| ways.ring.p50_ms / ways.ping_pong.p50_ms;
    format!(
        "{table}\nring : ping-pong, p50: spinning {:.2}, asleep {:.2}\n",
        over(&measured.spinning),
        over(&measured.asleep)
    )
}
