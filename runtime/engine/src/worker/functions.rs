//! Functions on the device: loading and unloading.
//!
//! Loading happens in pieces between events, so that a large model delays nobody; only the loading of its code is one piece, because devices offer it as one.

use super::Worker;
use crate::config::{FunctionInfo, FunctionKey};
use crate::error::{EngineError, InvokeError};
use crate::function::{Function, FunctionId};
use crate::instance::Instance;
use crate::limits::LOAD_CHUNK_BYTES;
use crate::memory::Allocation;
use crate::request::InvocationTiming;
use crate::statistics::FunctionStatistics;
use atoll_core::{DeviceOffset, TaskId};
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use crossbeam_channel::Sender;
use std::sync::Arc;

type LoadAnswer = Sender<Result<FunctionInfo, EngineError>>;

/// A function on the device.
pub(super) struct Loaded {
    function: Arc<Function>,
    pub(super) module: ModuleId,
    pub(super) weights: DeviceOffset,
    has_weights: bool,
    /// Memory of past invocations, released longest ago first.
    pub(super) idle: Vec<Instance>,
    /// Invocations that are not finished.
    pub(super) invocations: u64,
    totals: FunctionStatistics,
    unloading: Option<Sender<Result<(), EngineError>>>,
}

impl Loaded {
    pub(super) fn is_unloading(&self) -> bool {
        self.unloading.is_some()
    }

    /// Counts a finished invocation, with where its time went if it gave a result.
    pub(super) fn count(&mut self, timing: Option<InvocationTiming>, preemptions: u64, evicted_launches: u64) {
        let totals = &mut self.totals;
        totals.preemptions += preemptions;
        totals.evicted_launches += evicted_launches;
        match timing {
            Some(timing) => {
                totals.success += 1;
                totals.queue_ns += timing.queue_ns;
                totals.input_ns += timing.input_ns;
                totals.compute_ns += timing.compute_ns;
                totals.output_ns += timing.output_ns;
            }
            None => totals.failure += 1,
        }
    }

    pub(super) fn statistics(&self) -> FunctionStatistics {
        let in_queue = self.function.waiting() as u64;
        FunctionStatistics {
            key: self.function.key.clone(),
            rejected: self.function.rejected(),
            in_queue,
            running: self.invocations.saturating_sub(in_queue),
            ..self.totals.clone()
        }
    }
}

/// A function on its way to the device.
pub(super) struct LoadJob {
    function: Arc<Function>,
    answer: LoadAnswer,
    stage: Stage,
}

enum Stage {
    /// Nothing has happened.
    Waiting,
    /// The code is there; so many bytes of the constants are.
    Weights { module: ModuleId, allocation: Allocation, written: usize },
}

impl Worker {
    pub(super) fn begin_load(&mut self, function: Arc<Function>, answer: LoadAnswer) {
        let taken = self.functions.values().map(|loaded| &loaded.function).chain(self.loads.iter().map(|job| &job.function));
        let refusal = if self.closing.is_some() {
            Some(EngineError::ShuttingDown)
        } else if let Some(reason) = &self.lost {
            Some(EngineError::Device(DeviceError::Lost(reason.clone())))
        } else if taken.into_iter().any(|other| other.key == function.key) {
            Some(EngineError::AlreadyLoaded(function.key.clone()))
        } else {
            None
        };
        match refusal {
            // Who asks and leaves does not want the answer; here and below.
            Some(error) => drop(answer.send(Err(error))),
            None => self.loads.push_back(LoadJob { function, answer, stage: Stage::Waiting }),
        }
    }

    /// Does the next piece of the first load. Returns whether there was one.
    pub(super) fn advance_load(&mut self) -> bool {
        let Some(mut job) = self.loads.pop_front() else { return false };
        let step = match job.stage {
            Stage::Waiting => self.load_code(&job.function),
            Stage::Weights { module, allocation, written } => self.write_weights(&job.function, module, allocation, written),
        };
        match step {
            Ok(LoadStep::Continue(stage)) => {
                job.stage = stage;
                self.loads.push_front(job);
            }
            Ok(LoadStep::Done(loaded, weights_shared)) => {
                let info = info(&job.function, weights_shared);
                tracing::info!(function = %info.key, target = %info.target, weights_bytes = info.weights_bytes, weights_shared, "function loaded");
                self.functions.insert(job.function.id, *loaded);
                self.shared.publish(&job.function);
                drop(job.answer.send(Ok(info)));
            }
            Err(error) => drop(job.answer.send(Err(error))),
        }
        self.act();
        true
    }

    /// Loads the code, and reserves memory for the constants unless they are there.
    fn load_code(&mut self, function: &Arc<Function>) -> Result<LoadStep, EngineError> {
        let bundle = &function.bundle;
        let code = bundle.code(&function.target).unwrap_or_default();
        let answer = self.device.load_module(ModuleImage { target: &function.target, code, kernels: &function.image().kernels });
        let module = self.check(answer)?;
        if bundle.weights().is_empty() {
            return Ok(LoadStep::done(function, module, None, false));
        }
        if let Some(offset) = self.weights.share(bundle.weights_digest()) {
            return Ok(LoadStep::done(function, module, Some(offset), true));
        }
        let wanted = bundle.weights().len() as u64;
        match self.allocate(wanted) {
            Some(allocation) => Ok(LoadStep::Continue(Stage::Weights { module, allocation, written: 0 })),
            None => {
                self.device.unload_module(module);
                let (free, total) = (self.memory.free_bytes(), self.memory.total());
                Err(EngineError::OutOfMemory { name: function.key.clone(), wanted, free, total })
            }
        }
    }

    fn write_weights(
        &mut self,
        function: &Arc<Function>,
        module: ModuleId,
        allocation: Allocation,
        written: usize,
    ) -> Result<LoadStep, EngineError> {
        let weights = function.bundle.weights();
        let end = (written + LOAD_CHUNK_BYTES).min(weights.len());
        let answer = match &self.lost {
            Some(reason) => Err(DeviceError::Lost(reason.clone())),
            None => self.device.write(DeviceOffset(allocation.offset().0 + written as u64), &weights[written..end]),
        };
        if let Err(error) = self.check(answer) {
            self.memory.free(allocation);
            if self.lost.is_none() {
                self.device.unload_module(module);
            }
            return Err(error.into());
        }
        if end < weights.len() {
            return Ok(LoadStep::Continue(Stage::Weights { module, allocation, written: end }));
        }
        let offset = allocation.offset();
        self.weights.insert(function.bundle.weights_digest(), allocation);
        Ok(LoadStep::done(function, module, Some(offset), false))
    }

    /// Withdraws a function, ends those of its invocations that wait, and frees it when the others are over.
    pub(super) fn unload(&mut self, key: &FunctionKey, answer: Sender<Result<(), EngineError>>) {
        let Some(loaded) = self.functions.values_mut().find(|loaded| loaded.function.key == *key && !loaded.is_unloading()) else {
            return drop(answer.send(Err(EngineError::NotLoaded(key.clone()))));
        };
        loaded.unloading = Some(answer);
        let id = loaded.function.id;
        self.shared.withdraw(key);
        let waits = |invocation: &&crate::invocation::Invocation| {
            let chain = &invocation.submission.chain;
            chain.calls(id) && chain.is_waiting()
        };
        let waiting: Vec<TaskId> = self.invocations.values().filter(waits).map(|invocation| TaskId(invocation.submission.id.0)).collect();
        waiting.into_iter().for_each(|task| self.cancel(task, InvokeError::Unloaded));
        self.act();
        self.finish_unload(id);
    }

    /// Frees a function that is being unloaded, if none of its invocations is left.
    pub(super) fn finish_unload(&mut self, id: FunctionId) {
        if !self.functions.get(&id).is_some_and(|loaded| loaded.is_unloading() && loaded.invocations == 0) {
            return;
        }
        let Some(loaded) = self.functions.remove(&id) else { return };
        for instance in loaded.idle {
            self.memory.free(instance.into_allocation());
        }
        if loaded.has_weights {
            self.weights.release(loaded.function.bundle.weights_digest(), &mut self.memory);
        }
        if self.lost.is_none() {
            self.device.unload_module(loaded.module);
        }
        tracing::info!(function = %loaded.function.key, "function unloaded");
        if let Some(answer) = loaded.unloading {
            drop(answer.send(Ok(())));
        }
        self.prepare_waiting();
    }
}

/// What a piece of loading leads to.
enum LoadStep {
    Continue(Stage),
    Done(Box<Loaded>, bool),
}

impl LoadStep {
    fn done(function: &Arc<Function>, module: ModuleId, weights: Option<DeviceOffset>, shared: bool) -> LoadStep {
        let loaded = Loaded {
            function: Arc::clone(function),
            module,
            weights: weights.unwrap_or_default(),
            has_weights: weights.is_some(),
            idle: Vec::new(),
            invocations: 0,
            totals: FunctionStatistics::default(),
            unloading: None,
        };
        LoadStep::Done(Box::new(loaded), shared)
    }
}

fn info(function: &Function, weights_shared: bool) -> FunctionInfo {
    FunctionInfo {
        key: function.key.clone(),
        target: function.target.clone(),
        class: function.class,
        queue_capacity: function.queue_capacity,
        weights_bytes: function.bundle.weights().len() as u64,
        weights_shared,
    }
}
