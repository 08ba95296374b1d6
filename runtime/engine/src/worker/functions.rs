//! Functions on the device: loading and unloading.
//!
//! Loading happens in pieces between events, so that a large model delays nobody; only the loading of its code is one piece, because devices offer it as one.

use super::Worker;
use crate::accounts::{AccountId, MemoryKind, Usage};
use crate::clock;
use crate::config::{FunctionInfo, FunctionKey};
use crate::constants::{Membership, SetState, divide};
use crate::error::{EngineError, InvokeError};
use crate::function::{Function, FunctionId};
use crate::instance::Instance;
use crate::limits::LOAD_CHUNK_BYTES;
use crate::request::InvocationTiming;
use crate::statistics::FunctionStatistics;
use atoll_core::residency::ItemId;
use atoll_core::{Class, TaskId};
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;
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
    /// By [`Class`].
    accounts: [AccountId; 2],
    totals: FunctionStatistics,
    unloading: Option<Sender<Result<(), EngineError>>>,
}

impl Loaded {
    pub(super) fn is_unloading(&self) -> bool {
        self.unloading.is_some()
    }

    /// Where invocations of a class are billed.
    pub(super) fn account(&self, class: Class) -> AccountId {
        self.accounts[class as usize]
    }

    /// Where is billed what belongs to no invocation.
    pub(super) fn own_account(&self) -> AccountId {
        self.account(self.function.class)
    }

    /// Counts a finished invocation: what it used, and where its time went if it gave a result.
    pub(super) fn count(&mut self, timing: Option<InvocationTiming>, usage: &Usage) {
        let totals = &mut self.totals;
        totals.preemptions += usage.preemptions;
        totals.evicted_launches += usage.evicted_launches;
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
    Constants { module: ModuleId, membership: Membership, was_there: bool, written_bytes: u64 },
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
            Stage::Constants { module, membership, was_there, written_bytes } => {
                self.write_constants(module, membership, was_there, written_bytes)
            }
        };
        match step {
            Ok(LoadStep::Continue(stage)) => {
                job.stage = stage;
                self.loads.push_front(job);
            }
            Ok(LoadStep::Done { module, membership, shared, written_bytes }) => {
                let info = info(&job.function, shared);
                tracing::info!(function = %info.key, target = %info.target, weights_bytes = info.weights_bytes, shared, "function loaded");
                self.add_function(&job.function, module, membership, written_bytes);
                drop(job.answer.send(Ok(info)));
            }
            Err(error) => drop(job.answer.send(Err(error))),
        }
        self.act();
        true
    }

    /// A function is on the device: opens its accounts and lets it be found.
    fn add_function(&mut self, function: &Arc<Function>, module: ModuleId, membership: Membership, written_bytes: u64) {
        let now = clock::now();
        let accounts = [Class::RealTime, Class::BestEffort].map(|class| self.accounts.open(&function.key, class, now));
        let loaded = Loaded {
            function: Arc::clone(function),
            module,
            membership,
            idle: Vec::new(),
            invocations: 0,
            accounts,
            totals: FunctionStatistics::default(),
            unloading: None,
        };
        let usage = self.accounts.of(loaded.own_account());
        usage.written_bytes += written_bytes;
        usage.cold_starts += u64::from(written_bytes > 0);
        self.functions.insert(function.id, loaded);
        self.bill_constants();
        self.shared.publish(function);
    }

    /// Divides the bytes of constants among the functions that have them; to be called whenever that changes. What is being loaded is nobody's yet.
    pub(super) fn bill_constants(&mut self) {
        let now = clock::now();
        let mut sharers: BTreeMap<ItemId, Vec<AccountId>> = BTreeMap::new();
        for loaded in self.functions.values() {
            sharers.entry(loaded.membership.set).or_default().push(loaded.own_account());
        }
        let shares = self.constants.shares();
        for (set, accounts) in sharers {
            let bytes = shares.get(&set).copied().unwrap_or_default();
            for (account, share) in accounts.iter().zip(divide(bytes, accounts.len())) {
                self.accounts.set(*account, MemoryKind::Constants, share, now);
            }
        }
    }

    /// Loads the code, and reserves memory for those constants that are not there.
    fn load_code(&mut self, function: &Arc<Function>) -> Result<LoadStep, EngineError> {
        let code = function.bundle.code(&function.target).unwrap_or_default();
        let answer = self.device.load_module(ModuleImage {
            domain: function.key.tenant.as_str(),
            target: &function.target,
            code,
            kernels: &function.image().kernels,
        });
        let module = self.check(answer)?;
        let membership = self.constants.join(&function.bundle);
        let set = membership.set;
        if self.constants.state(set) == SetState::Resident {
            let shared = !membership.constants.is_empty();
            return Ok(LoadStep::Done { module, membership, shared, written_bytes: 0 });
        }
        let was_there = self.constants.homeless(set).is_empty();
        match self.hold(set) {
            Ok(()) => Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there, written_bytes: 0 })),
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
        module: ModuleId,
        membership: Membership,
        was_there: bool,
        written_bytes: u64,
    ) -> Result<LoadStep, EngineError> {
        let written = match (&self.lost, self.constants.next_chunk(membership.set, LOAD_CHUNK_BYTES)) {
            (Some(reason), _) => Err(DeviceError::Lost(reason.clone())),
            (None, Some(chunk)) => {
                let bytes = &chunk.bundle.weights()[chunk.from];
                self.device.write(chunk.to, bytes).map(|()| Some(bytes.len() as u64))
            }
            (None, None) => Ok(None),
        };
        match self.check(written) {
            Ok(Some(more)) => {
                Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there, written_bytes: written_bytes + more }))
            }
            Ok(None) => Ok(LoadStep::Done { module, membership, shared: was_there, written_bytes }),
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
        self.accounts.set(loaded.own_account(), MemoryKind::Constants, 0, clock::now());
        for instance in loaded.idle {
            self.free(instance);
        }
        self.constants.leave(loaded.membership.set, &mut self.memory);
        self.bill_constants();
        loaded.accounts.into_iter().for_each(|account| self.accounts.close(account));
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
    /// What is on the device; whether the constants were there already, and how many bytes of them were written.
    Done {
        module: ModuleId,
        membership: Membership,
        shared: bool,
        written_bytes: u64,
    },
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
