//! How fast a flag reaches a running kernel, by the way of writing it.
//!
//! A kernel of one thread waits for the flag, and answers in pinned host memory. The result is the
//! round-trip time as seen by the host. The way back is the same for all routes, so differences are
//! due to the routes.

use crate::bench::{Bench, HOLD_TIME_MAX_NS, SPIN_PTX};
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use atoll_cuda::{Arg, FLAG_PTX, HostWords, Kernel, Module, Stream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Rounds per route and load.
const ROUNDS: u32 = 300;
/// Warm-up rounds.
const WARM_UP: usize = 20;
/// Longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// Time limit of the answering kernel for one batch of rounds, which takes a few tenths of a
/// second.
const ECHO_TIME_MAX_NS: u64 = 3 * HOLD_TIME_MAX_NS;
/// Answer of a kernel that gave up.
const GAVE_UP: u32 = u32::MAX;
/// Run time of one block of load.
const LOAD_BLOCK_NS: u64 = 50_000;
/// Threads per block of load.
const LOAD_THREADS: u32 = 256;
/// Long enough for the load to fill the device, and much shorter than its run time.
const LOAD_START_TIME: Duration = Duration::from_micros(50);
/// Blocks of load per compute unit: several times the number of resident ones, so that blocks are
/// always waiting.
const LOAD_BLOCKS_PER_UNIT: u32 = 32;

/// The ways to write the flag.
#[derive(Clone, Copy)]
enum Route {
    Mapped,
    WriteValue,
    Copy,
    Fill,
}

const ROUTES: [(Route, &str); 4] = [
    (Route::Mapped, "store to mapped host memory"),
    (Route::WriteValue, "stream write-value to device memory"),
    (Route::Copy, "async copy to device memory"),
    (Route::Fill, "async fill of device memory"),
];

/// Measures every route, on an idle device and beside a kernel that fills it.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    for (route, name) in ROUTES {
        for loaded in [false, true] {
            let case = format!("{name}, {}", if loaded { "under load" } else { "idle" });
            // A route may be unsupported; the others are still measured.
            let row = match measure(bench, route, loaded) {
                Ok(samples) => Row::samples(case, "round trip", "us", &samples),
                Err(error) => Row::error(case, error),
            };
            found.push(row);
            bench.context.synchronize()?;
        }
    }
    Ok(())
}

/// A flag and the means to write it.
struct Flag {
    route: Route,
    host: HostWords,
    device: DeviceWords,
    stream: Stream,
}

impl Flag {
    fn new(bench: &Bench, route: Route) -> Result<Flag, ProbeError> {
        let (host, device) = (HostWords::new(&bench.context, 1)?, DeviceWords::new(&bench.context, 1)?);
        Ok(Flag { route, host, device, stream: bench.stream(true)? })
    }

    fn address(&self) -> u64 {
        match self.route {
            Route::Mapped => self.host.address(),
            Route::WriteValue | Route::Copy | Route::Fill => self.device.address(),
        }
    }

    fn set(&self, value: u32) -> Result<(), ProbeError> {
        match self.route {
            Route::Mapped => self.host.word(0).store(value, Ordering::Release),
            Route::WriteValue => self.stream.write_word(self.device.memory(), 0, value)?,
            Route::Copy => {
                self.host.word(0).store(value, Ordering::Release);
                self.stream.copy_word(self.device.memory(), 0, &self.host, 0)?;
            }
            Route::Fill => self.stream.fill_word(self.device.memory(), 0, value)?,
        }
        Ok(())
    }
}

/// Round-trip times in microseconds.
fn measure(bench: &Bench, route: Route, loaded: bool) -> Result<Vec<f64>, ProbeError> {
    let echo = Module::load(&bench.context, FLAG_PTX.as_bytes())?.kernel("echo")?;
    let load = Load::new(bench, &Module::load(&bench.context, SPIN_PTX.as_bytes())?)?;
    let echo_stream = bench.stream(false)?;
    let answer = HostWords::new(&bench.context, 1)?;
    let flag = Flag::new(bench, route)?;
    let (word, back) = (Arg::U64(flag.address()), Arg::U64(answer.address()));
    echo.launch(&echo_stream, 1, 1, &[word, back, Arg::U32(1), Arg::U32(ROUNDS), Arg::U64(ECHO_TIME_MAX_NS)])?;
    let samples = rounds(&flag, &answer, loaded.then_some(&load));
    // After a missed answer the kernel still uses the words; it ends after its time limit.
    echo_stream.synchronize()?;
    Ok(samples?.get(WARM_UP..).unwrap_or_default().to_vec())
}

fn rounds(flag: &Flag, answer: &HostWords, load: Option<&Load>) -> Result<Vec<f64>, ProbeError> {
    let mut samples = Vec::new();
    for round in 1..=ROUNDS {
        load.map_or(Ok(()), Load::start)?;
        let started = Instant::now();
        flag.set(round)?;
        let Some(elapsed) = wait_for_answer(answer, round, started) else { break };
        samples.push(elapsed.as_secs_f64() * 1e6);
        load.map_or(Ok(()), Load::wait)?;
    }
    Ok(samples)
}

/// A load that fills the device.
struct Load {
    kernel: Kernel,
    stream: Stream,
    blocks: u32,
}

impl Load {
    fn new(bench: &Bench, module: &Module) -> Result<Load, ProbeError> {
        Ok(Load {
            kernel: module.kernel("busy")?,
            stream: bench.stream(false)?,
            blocks: bench.compute_units * LOAD_BLOCKS_PER_UNIT,
        })
    }

    /// Starts the load and waits until it fills the device.
    fn start(&self) -> Result<(), ProbeError> {
        self.kernel.launch(&self.stream, self.blocks, LOAD_THREADS, &[Arg::U64(LOAD_BLOCK_NS)])?;
        std::thread::sleep(LOAD_START_TIME);
        Ok(())
    }

    fn wait(&self) -> Result<(), ProbeError> {
        Ok(self.stream.synchronize()?)
    }
}

/// The time from `started` to the answer; `None` if there was none in time.
fn wait_for_answer(answer: &HostWords, expected: u32, started: Instant) -> Option<Duration> {
    loop {
        let seen = answer.word(0).load(Ordering::Acquire);
        let elapsed = started.elapsed();
        if seen == expected {
            return Some(elapsed);
        }
        if seen == GAVE_UP || elapsed > ANSWER_TIME_MAX {
            return None;
        }
        std::hint::spin_loop();
    }
}
