//! Functions on the device: loading and unloading.
//!
//! Loading happens in pieces between events, so that a large model delays nobody; only the loading of its code is one piece, because devices offer it as one.

use super::Worker;
use crate::config::{FunctionInfo, FunctionKey};
use crate::constants::{Membership, SetState};
use crate::error::{EngineError, InvokeError};
use crate::function::{Function, FunctionId};
use crate::instance::Instance;
use crate::limits::LOAD_CHUNK_BYTES;
use crate::request::InvocationTiming;
use crate::statistics::FunctionStatistics;
use atoll_core::TaskId;
use atoll_core::residency::ItemId;
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use crossbeam_channel::Sender;
use std::sync::Arc;

type LoadAnswer = Sender<Result<FunctionInfo, EngineError>>;

/// A function on the device.
pub(super) struct Loaded {
    function: Arc<Function>,
    pub(super) module: ModuleId,
    pub(super) membership: Membership,
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
    /// The code is there; the constants are being written, unless they were there.
    Constants { module: ModuleId, membership: Membership, was_there: bool },
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
        let step = match std::mem::replace(&mut job.stage, Stage::Waiting) {
            Stage::Waiting => self.load_code(&job.function),
            Stage::Constants { module, membership, was_there } => self.write_constants(&job.function, module, membership, was_there),
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

    /// Loads the code, and reserves memory for those constants that are not there.
    fn load_code(&mut self, function: &Arc<Function>) -> Result<LoadStep, EngineError> {
        let code = function.bundle.code(&function.target).unwrap_or_default();
        let answer = self.device.load_module(ModuleImage { target: &function.target, code, kernels: &function.image().kernels });
        let module = self.check(answer)?;
        let membership = self.constants.join(&function.bundle);
        let set = membership.set;
        if self.constants.state(set) == SetState::Resident {
            let shared = !membership.constants.is_empty();
            return Ok(LoadStep::done(function, module, membership, shared));
        }
        let was_there = self.constants.homeless(set).is_empty();
        match self.hold(set) {
            Ok(()) => Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there })),
            Err(wanted) => {
                self.abandon_load(module, set);
                let (free, total) = (self.memory.free_bytes(), self.memory.total());
                Err(EngineError::OutOfMemory { name: function.key.clone(), wanted, free, total })
            }
        }
    }

    /// Gives every constant of a set its place on the device, or none; the error is the number of bytes that were wanted.
    fn hold(&mut self, set: ItemId) -> Result<(), u64> {
        self.constants.hold(set);
        let homeless = self.constants.homeless(set);
        let wanted = homeless.iter().map(|(_, bytes)| bytes).sum();
        for (id, bytes) in homeless {
            match self.allocate(bytes) {
                Some(place) => self.constants.place(id, place),
                None => {
                    self.constants.release(set, &mut self.memory);
                    return Err(wanted);
                }
            }
        }
        Ok(())
    }

    fn write_constants(
        &mut self,
        function: &Arc<Function>,
        module: ModuleId,
        membership: Membership,
        was_there: bool,
    ) -> Result<LoadStep, EngineError> {
        let written = match (&self.lost, self.constants.next_chunk(membership.set, LOAD_CHUNK_BYTES)) {
            (Some(reason), _) => Err(DeviceError::Lost(reason.clone())),
            (None, Some(chunk)) => self.device.write(chunk.to, &chunk.bundle.weights()[chunk.from]).map(|()| true),
            (None, None) => Ok(false),
        };
        match self.check(written) {
            Ok(true) => Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there })),
            Ok(false) => Ok(LoadStep::done(function, module, membership, was_there)),
            Err(error) => {
                self.abandon_load(module, membership.set);
                Err(error.into())
            }
        }
    }

    fn abandon_load(&mut self, module: ModuleId, set: ItemId) {
        self.constants.leave(set, &mut self.memory);
        if self.lost.is_none() {
            self.device.unload_module(module);
        }
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
        self.constants.leave(loaded.membership.set, &mut self.memory);
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
    fn done(function: &Arc<Function>, module: ModuleId, membership: Membership, shared: bool) -> LoadStep {
        let loaded = Loaded {
            function: Arc::clone(function),
            module,
            membership,
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
