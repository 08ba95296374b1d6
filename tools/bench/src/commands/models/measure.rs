//! Measures one model with one number of threads: Atoll and the peer take turns.

use super::peer::Peer;
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::invoker::{invoke, load, request};
use crate::samples::quantile;
use anyhow::{Context, Result};
use atoll_core::POLICY_DEFAULT;
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_engine::{Class, EngineHandle};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::Tensor;
use atoll_server::tensor_metadata;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum duration of a turn; runs of a short model are repeated.
const TURN_MS: f64 = 10.0;
/// Maximum number of runs per turn.
const RUNS_MAX: u32 = 64;
/// Minimum number of pairs of turns, however long they take.
const PAIRS_MIN: u32 = 3;

/// Limits of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) pairs: u32,
    pub(super) time: Duration,
}

/// Several runs without a pause.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Turn {
    pub(super) milliseconds: Vec<f64>,
    /// CPU time of all threads per run, in milliseconds.
    cpu: f64,
}

/// Times of a run in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) min: f64,
    /// CPU time of a run: the minimum over all turns. Other programs affect it only through the
    /// caches.
    pub(super) cpu: f64,
}

impl Times {
    /// The times of at least one turn.
    fn of(turns: &[Turn]) -> Times {
        let mut runs: Vec<f64> = turns.iter().flat_map(|turn| &turn.milliseconds).copied().collect();
        runs.sort_unstable_by(f64::total_cmp);
        Times {
            median: quantile(&runs, 0.5),
            min: runs[0],
            cpu: turns.iter().map(|turn| turn.cpu).fold(f64::INFINITY, f64::min),
        }
    }
}

/// CPU time of this process, in milliseconds.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Atoll's side: a model in an engine of this process.
pub(super) struct Ours {
    engine: atoll_engine::Engine,
    handle: EngineHandle,
    name: String,
    inputs: Vec<Tensor>,
    /// Its outputs.
    pub(super) outputs: Vec<Tensor>,
}

impl Ours {
    pub(super) fn start(bundle: &Arc<Bundle>, inputs: Vec<Tensor>, threads: u32) -> Result<Ours> {
        let engine = bench_engine(DeviceName::Host, threads, POLICY_DEFAULT, DEVICE_QUEUE_CAPACITY_DEFAULT)?;
        let handle = engine.handle();
        let name = bundle.graph().name.clone();
        load(&handle, bundle, &name, Class::RealTime)?;
        let answer = invoke(&handle, request(&name, &inputs, None)).context("cannot run the model")?;
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Output);
        let output = |(metadata, output): (&atoll_protocol::TensorMetadata, atoll_engine::OutputTensor)| {
            Tensor::new(metadata.name.clone(), metadata.datatype, output.shape, output.bytes)
        };
        let outputs = metadata.iter().zip(answer.outputs).map(output).collect::<Result<_, _>>()?;
        Ok(Ours { engine, handle, name, inputs, outputs })
    }

    /// Runs the model `runs` times, after one uncounted run.
    fn run(&self, runs: u32) -> Result<Turn> {
        let once = || -> Result<f64> {
            let request = request(&self.name, &self.inputs, None);
            let start = Instant::now();
            invoke(&self.handle, request).context("cannot run the model")?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        once()?;
        let before = cpu_ms();
        let milliseconds = (0..runs).map(|_| once()).collect::<Result<_>>()?;
        Ok(Turn { milliseconds, cpu: (cpu_ms() - before) / f64::from(runs) })
    }

    pub(super) fn stop(self) {
        self.engine.shutdown();
    }
}

/// Runs turns of both sides, or of Atoll alone; the order alternates.
pub(super) fn alternate(
    ours: &Ours,
    mut peer: Option<&mut Peer>,
    effort: Effort,
) -> Result<(Times, Option<Times>, u32)> {
    let start = Instant::now();
    let once = ours.run(1)?.milliseconds[0];
    let runs = (TURN_MS / once.max(1e-3)).ceil().clamp(1.0, f64::from(RUNS_MAX)) as u32;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    let mut pairs = 0;
    while pairs < effort.pairs && (pairs < PAIRS_MIN || start.elapsed() < effort.time) {
        for side in [pairs % 2, (pairs + 1) % 2] {
            if side == 0 {
                mine.push(ours.run(runs)?);
            } else if let Some(peer) = &mut peer {
                theirs.push(peer.run(runs)?);
            }
        }
        pairs += 1;
    }
    let theirs = (!theirs.is_empty()).then(|| Times::of(&theirs));
    Ok((Times::of(&mine), theirs, pairs))
}
