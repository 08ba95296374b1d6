//! Loads and unloads functions.
//!
//! Constants are loaded in chunks between events, so that a large model causes no noticeable delay
//! (`memory.rs`). Code is loaded in a single step, since devices cannot divide it.

use super::Worker;
use super::loaded::{LoadAnswer, LoadJob, Loaded, Stage};
use crate::accounts::{AccountId, MemoryKind};
use crate::branches::Capacity;
use crate::clock;
use crate::config::{FunctionInfo, FunctionKey};
use crate::error::{EngineError, InvokeError};
use crate::function::{Function, FunctionId};
use crate::statistics::{ConstantStatistics, FunctionStatistics};
use atoll_core::memory::{ConstantSpec, Event as MemoryEvent, FunctionSpec, SetState, divide};
use atoll_core::residency::ItemId;
use atoll_core::{Class, LaneError, TaskId};
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Worker {
    pub(super) fn begin_load(&mut self, function: Arc<Function>, answer: LoadAnswer) {
        let taken =
            self.functions.values().map(|loaded| &loaded.function).chain(self.loads.iter().map(|job| &job.function));
        let refusal = if self.closing.is_some() {
            Some(EngineError::ShuttingDown)
        } else if let Some(reason) = &self.lost {
            Some(EngineError::Device(DeviceError::Lost(reason.clone())))
        } else if !self.has_lane(function.lane) {
            Some(EngineError::Lane(LaneError::Unknown(function.lane)))
        } else if taken.into_iter().any(|other| other.key == function.key) {
            Some(EngineError::AlreadyLoaded(function.key.clone()))
        } else {
            None
        };
        match refusal {
            // Sending fails only if the caller no longer waits for the answer; here and below.
            Some(error) => drop(answer.send(Err(error))),
            None => self.loads.push_back(LoadJob { function, answer, stage: Stage::Waiting }),
        }
    }

    /// Does the next step of a load. Functions of a tenant are loaded one after the other; those of
    /// different tenants do not wait for each other. Returns whether there was a step.
    pub(super) fn advance_load(&mut self) -> bool {
        (0..self.loads.len()).any(|at| self.is_first_load_of_tenant(at) && self.step_load(at))
    }

    fn is_first_load_of_tenant(&self, at: usize) -> bool {
        let tenant = &self.loads[at].function.key.tenant;
        !self.loads.iter().take(at).any(|earlier| earlier.function.key.tenant == *tenant)
    }

    /// Does the next step of the load at an index. Returns whether there was one.
    fn step_load(&mut self, at: usize) -> bool {
        let Some(mut job) = self.loads.remove(at) else { return false };
        let step = match std::mem::replace(&mut job.stage, Stage::Waiting) {
            Stage::Waiting => self.begin_code(&job.function),
            Stage::Code { module } => match self.device.poll_load(module) {
                Some(answer) => {
                    self.check(answer).map_err(EngineError::from).and_then(|()| self.after_code(&job.function, module))
                }
                None => {
                    job.stage = Stage::Code { module };
                    self.loads.insert(at, job);
                    return false;
                }
            },
            Stage::Constants { module, set, was_there, before } => {
                self.after_constants(&job.function, module, set, was_there, before)
            }
        };
        match step {
            Ok(LoadStep::Continue(stage)) => {
                job.stage = stage;
                let waits = self.waits_for_constants(&job);
                self.loads.insert(at, job);
                if waits {
                    return false;
                }
            }
            Ok(LoadStep::Done { module, set, shared, written_bytes, from_disk }) => {
                let info = self.info(&job.function, module, shared, self.memory.state(set) == SetState::Resident);
                tracing::info!(
                    function = %info.key,
                    target = %info.target,
                    weights_bytes = info.weights_bytes,
                    shared,
                    resident = info.weights_resident,
                    "function loaded"
                );
                self.add_function(&job.function, module, set);
                let own = self.functions[&job.function.id].own_account();
                let usage = self.accounts.of(own);
                usage.written_bytes += written_bytes;
                usage.cold_starts += u64::from(written_bytes > 0);
                usage.disk_cold_starts += u64::from(written_bytes > 0 && from_disk);
                drop(job.answer.send(Ok(info)));
            }
            Err(error) => drop(job.answer.send(Err(error))),
        }
        self.act();
        true
    }

    /// Adds a function that is on the device: opens its accounts and publishes it.
    fn add_function(&mut self, function: &Arc<Function>, module: ModuleId, set: ItemId) {
        let now = clock::now();
        let accounts = [Class::RealTime, Class::BestEffort].map(|class| self.accounts.open(&function.key, class, now));
        let loaded = Loaded {
            function: Arc::clone(function),
            module,
            set,
            invocations: 0,
            batches: 0,
            accounts,
            totals: FunctionStatistics::default(),
            unloading: None,
        };
        self.functions.insert(function.id, loaded);
        self.holdings.residency_changed = true;
        self.bill_constants();
        let (compute_units, occupancy) = (self.units_of(function.lane), self.occupancy(function, module));
        function.set_capacity(Capacity { compute_units, occupancy, gain_ns_min: self.branch_gain_ns_min });
        self.recorder.add_function(function);
        self.gather_for(function.id);
        self.shared.publish(function);
        self.request_padding(&function.key.tenant);
    }

    /// Divides the bytes of constants among the functions that have them. Called whenever they
    /// change. Constants that are still being loaded with a function are charged to no account.
    pub(super) fn bill_constants(&mut self) {
        let now = clock::now();
        let mut sharers: BTreeMap<ItemId, Vec<AccountId>> = BTreeMap::new();
        for loaded in self.functions.values() {
            sharers.entry(loaded.set).or_default().push(loaded.own_account());
        }
        let shares = self.memory.shares();
        for (set, accounts) in sharers {
            let bytes = shares.get(&set).copied().unwrap_or_default();
            for (account, share) in accounts.iter().zip(divide(bytes, accounts.len())) {
                self.accounts.set(*account, MemoryKind::Constants, share, now);
            }
        }
    }

    fn waits_for_constants(&self, job: &LoadJob) -> bool {
        let Stage::Constants { set, .. } = &job.stage else { return false };
        matches!(self.memory.state(*set), SetState::Loading { .. })
    }

    /// Starts loading the code.
    fn begin_code(&mut self, function: &Arc<Function>) -> Result<LoadStep, EngineError> {
        let Function { bundle, target, key, .. } = &**function;
        let (code, ptx) = (bundle.code(target).unwrap_or_default(), bundle.ptx(target));
        self.bound_memory(&key.tenant);
        let image = ModuleImage { domain: key.tenant.as_str(), target, code, ptx, kernels: &function.image().kernels };
        let answer = self.device.begin_load(image);
        Ok(LoadStep::Continue(Stage::Code { module: self.check(answer)? }))
    }

    /// The code is on the device: registers the function and starts loading its constants, if there
    /// is free memory.
    fn after_code(&mut self, function: &Arc<Function>, module: ModuleId) -> Result<LoadStep, EngineError> {
        let spec = FunctionSpec {
            function: function.id,
            tenant: function.key.tenant.clone(),
            class: function.class,
            constants: constants_of(function),
        };
        let set = match self.memory.register(spec) {
            Ok(set) => set,
            Err(refusal) => {
                self.abandon_load(function, module);
                return Err(EngineError::refused(refusal, &function.key));
            }
        };
        self.holdings.bundles.entry(set).or_insert_with(|| Arc::clone(&function.bundle));
        let was_there = !function.bundle.constants().is_empty() && self.memory.is_placed(set);
        self.notify_memory(MemoryEvent::Load { function: function.id });
        let before = self.holdings.counters(set);
        Ok(LoadStep::Continue(Stage::Constants { module, set, was_there, before }))
    }

    /// Finishes the load once the constants are on the device, or will be loaded by the first
    /// invocation.
    fn after_constants(
        &mut self,
        function: &Function,
        module: ModuleId,
        set: ItemId,
        was_there: bool,
        before: ConstantStatistics,
    ) -> Result<LoadStep, EngineError> {
        if let Some(reason) = self.lost.clone() {
            self.abandon_load(function, module);
            return Err(DeviceError::Lost(reason).into());
        }
        match self.memory.state(set) {
            SetState::Loading { .. } => Ok(LoadStep::Continue(Stage::Constants { module, set, was_there, before })),
            SetState::Absent | SetState::Resident => {
                let now = self.holdings.counters(set);
                let (written_bytes, from_disk) =
                    (now.loaded_bytes - before.loaded_bytes, now.disk_loads > before.disk_loads);
                Ok(LoadStep::Done { module, set, shared: was_there, written_bytes, from_disk })
            }
        }
    }

    fn abandon_load(&mut self, function: &Function, module: ModuleId) {
        self.notify_memory(MemoryEvent::Unloaded { function: function.id });
        if self.lost.is_none() {
            self.device.unload_module(module);
        }
    }

    fn info(
        &self,
        function: &Function,
        module: ModuleId,
        weights_shared: bool,
        weights_resident: bool,
    ) -> FunctionInfo {
        FunctionInfo {
            key: function.key.clone(),
            target: function.target.clone(),
            class: function.class,
            queue_capacity: function.queue_capacity,
            weights_bytes: function.bundle.weights().len() as u64,
            weights_shared,
            weights_resident,
            occupancy: self.occupancy(function, module),
        }
    }

    /// The occupancy of each kernel of a function; see [`FunctionInfo::occupancy`].
    fn occupancy(&self, function: &Function, module: ModuleId) -> Vec<Option<u32>> {
        (0..function.image().kernels.len() as u32).map(|kernel| self.device.occupancy(module, kernel)).collect()
    }

    /// Unloads a function: rejects new invocations, cancels queued ones, and frees its memory once
    /// running ones finish.
    pub(super) fn unload(&mut self, key: &FunctionKey, answer: Sender<Result<(), EngineError>>) {
        let Some(loaded) =
            self.functions.values_mut().find(|loaded| loaded.function.key == *key && !loaded.is_unloading())
        else {
            return drop(answer.send(Err(EngineError::NotLoaded(key.clone()))));
        };
        loaded.unloading = Some(answer);
        let id = loaded.function.id;
        self.shared.withdraw(key);
        self.shared.residency.forget(key);
        self.shared.sessions.remove_of(&self.functions[&id].function);
        // Before invocations are cancelled, so that a batch that closes now is cancelled as well.
        self.answer_waiting(Some(id), &InvokeError::Unloaded);
        self.act();
        let waits = |invocation: &&crate::invocation::Invocation| {
            invocation.submission.chain.calls(id) && invocation.is_waiting()
        };
        let waiting: Vec<TaskId> =
            self.invocations.values().filter(waits).map(|invocation| TaskId(invocation.submission.id.0)).collect();
        waiting.into_iter().for_each(|task| self.cancel(task, InvokeError::Unloaded));
        self.act();
        self.finish_unload(id);
    }

    /// Frees a function that is being unloaded, if it has no invocations left.
    pub(super) fn finish_unload(&mut self, id: FunctionId) {
        let is_unused = |loaded: &Loaded| loaded.is_unloading() && loaded.invocations + loaded.batches == 0;
        if !self.functions.get(&id).is_some_and(is_unused) {
            return;
        }
        let Some(loaded) = self.functions.remove(&id) else { return };
        if loaded.function.batching.is_some() {
            self.gather_no_more(id);
        }
        self.recorder.remove_function(id);
        self.forget_suspended_of(id);
        self.accounts.set(loaded.own_account(), MemoryKind::Constants, 0, clock::now());
        self.notify_memory(MemoryEvent::Unloaded { function: id });
        self.bill_constants();
        loaded.accounts.into_iter().for_each(|account| self.accounts.close(account));
        if self.lost.is_none() {
            self.device.unload_module(loaded.module);
        }
        self.request_padding(&loaded.function.key.tenant);
        tracing::info!(function = %loaded.function.key, "function unloaded");
        if let Some(answer) = loaded.unloading {
            drop(answer.send(Ok(())));
        }
    }
}

fn constants_of(function: &Function) -> Vec<ConstantSpec> {
    let constants = function.bundle.constants().iter();
    constants
        .map(|constant| ConstantSpec {
            digest: constant.digest.bytes(),
            bytes: constant.bytes,
            offset: constant.offset,
        })
        .collect()
}

/// The result of one step of a load.
enum LoadStep {
    Continue(Stage),
    /// The function is on the device. The fields say whether its constants were there before, how
    /// many bytes of them were written, and whether any were read from disk.
    Done {
        module: ModuleId,
        set: ItemId,
        shared: bool,
        written_bytes: u64,
        from_disk: bool,
    },
}
