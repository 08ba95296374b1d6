//! The work of the instances, and clients that keep them busy.

use super::Args;
use crate::artifact;
use crate::commands::model_file;
use crate::commands::spin::{Shape, spin};
use crate::device_name::DeviceName;
use crate::invoker::{invoke, load, request};
use crate::random::Random;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result};
use atoll_engine::{Class, EngineHandle, FunctionKey, FunctionOptions, InvocationRequest, InvokeError, LaneId};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_pipeline::Target;
use atoll_server::tensor_metadata;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Kernels of a request with blocks of a given time.
const SPIN_KERNELS: u32 = 4;

/// Loop iterations of the kernel that measures the speed of the loop, and number of runs; the
/// fastest run counts.
const CALIBRATION_ROUNDS: u32 = 200_000;
const CALIBRATIONS: usize = 15;

/// The requests of a client, one after the other: stages of a graph of functions, or only one.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Work {
    stages: Vec<InvocationRequest>,
}

impl Work {
    /// Loads the functions of `args`. `queue` is their capacity in requests.
    pub(super) fn load(args: &Args, handle: &EngineHandle, queue: usize) -> Result<Work> {
        let bundle = match args.block_us {
            Some(us) => spinning(handle, us)?,
            None => open(&args.model)?,
        };
        let names = if args.graph { &["first", "second"][..] } else { &["first"] };
        Work::of_bundle(handle, &bundle, names, queue, args.seed)
    }

    /// Loads a bundle under some names, for requests that call all of them in turn.
    pub(in crate::commands) fn of_bundle(
        handle: &EngineHandle,
        bundle: &Arc<Bundle>,
        names: &[&str],
        queue: usize,
        seed: u64,
    ) -> Result<Work> {
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
        let inputs = InputSpecs::default().tensors(&metadata, &mut Random::new(seed))?;
        let stage = |name: &&str| {
            let options = FunctionOptions {
                key: FunctionKey::local(*name),
                class: Class::BestEffort,
                queue_capacity: Some(queue),
                lane: LaneId::DEFAULT,
                batching: None,
            };
            handle.load(bundle.clone(), options).context("cannot load the model")?;
            Ok(request(name, &inputs, None))
        };
        Ok(Work { stages: names.iter().map(stage).collect::<Result<_>>()? })
    }

    /// Makes one request without an instance.
    pub(in crate::commands) fn ask(&self, handle: &EngineHandle) -> Result<()> {
        self.stages.iter().try_for_each(|stage| invoke(handle, stage.clone()).map(drop))?;
        Ok(())
    }

    /// The same work under an instance.
    pub(in crate::commands) fn of(&self, instance: &str) -> Work {
        let of = |stage: &InvocationRequest| InvocationRequest { instance: Some(instance.into()), ..stage.clone() };
        Work { stages: self.stages.iter().map(of).collect() }
    }

    /// Keeps `outstanding` requests in flight until it is stopped. A stage of a graph is submitted
    /// when the one before it has ended. Returns when requests ended.
    pub(in crate::commands) fn keep_busy(
        &self,
        handle: &EngineHandle,
        outstanding: usize,
        stop: &AtomicBool,
    ) -> Result<Vec<Instant>> {
        let (answers, answered) = mpsc::channel::<(usize, Result<(), InvokeError>)>();
        let submit = |stage: usize| {
            let (request, answers) = (self.stages[stage].clone(), answers.clone());
            handle.submit(request, Box::new(move |result| drop(answers.send((stage, result.map(drop))))));
        };
        (0..outstanding).for_each(|_| submit(0));
        let (mut left, mut ended) = (outstanding, Vec::new());
        while left > 0 {
            let (stage, result) = answered.recv()?;
            result?;
            if stage + 1 < self.stages.len() {
                submit(stage + 1);
                continue;
            }
            ended.push(Instant::now());
            match stop.load(Ordering::Relaxed) {
                true => left -= 1,
                false => submit(0),
            }
        }
        Ok(ended)
    }
}

/// A bundle, or a model compiled for the host.
pub(in crate::commands) fn open(model: &str) -> Result<Arc<Bundle>> {
    if model.ends_with(".kg") {
        return artifact::open(model.as_ref(), DeviceName::Host);
    }
    let folder = tempfile::tempdir()?;
    artifact::open(&model_file(model, folder.path(), false)?, DeviceName::Host)
}

/// Kernels with one block of a given time for each compute unit. The speed of their loop is
/// measured first.
pub(in crate::commands) fn spinning(handle: &EngineHandle, block_us: u32) -> Result<Arc<Bundle>> {
    let shape = Shape { blocks: handle.device_info().compute_units, threads: 32 };
    let of = |kernels, rounds| spin(Target::this_host(), shape, kernels, rounds);
    load(handle, &of(1, CALIBRATION_ROUNDS)?, "calibration", Class::BestEffort)?;
    let mut fastest_ns = u64::MAX;
    for _ in 0..CALIBRATIONS {
        let result = invoke(handle, request("calibration", &[], None))?;
        fastest_ns = fastest_ns.min(result.timing.compute_ns.max(1));
    }
    handle.unload(&FunctionKey::local("calibration"))?;
    let rounds = f64::from(block_us) * 1e3 * f64::from(CALIBRATION_ROUNDS) / fastest_ns as f64;
    of(SPIN_KERNELS, rounds.max(1.0) as u32)
}
