//! Functions on the device: loading and unloading.
//!
//! Constants are loaded in pieces between events, so that a large model delays nobody (`residency.rs`); only the loading of its code is one piece, because devices offer it as one.

use super::Worker;
use crate::accounts::{AccountId, MemoryKind, Usage};
use crate::clock;
use crate::config::{FunctionInfo, FunctionKey};
use crate::constants::{Membership, SetState, divide};
use crate::error::{EngineError, InvokeError};
use crate::function::{Function, FunctionId};
use crate::instance::Instance;
use crate::request::InvocationTiming;
use crate::statistics::{ConstantStatistics, FunctionStatistics};
use atoll_core::residency::ItemId;
use atoll_core::{Class, TaskId};
use atoll_device::{DeviceError, ModuleId, ModuleImage};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;
use std::sync::Arc;

type LoadAnswer = Sender<Result<FunctionInfo, EngineError>>;

/// A function on the device.
pub(super) struct Loaded {
    pub(super) function: Arc<Function>,
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
    pub(super) fn function_id(&self) -> FunctionId {
        self.function.id
    }

    pub(super) fn key(&self) -> &FunctionKey {
        &self.function.key
    }

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
            class: self.function.class,
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
    /// The code is on its way.
    Code { module: ModuleId },
    /// The code is there; the constants are on their way, were there, or stay away for now; what had happened to them before.
    Constants { module: ModuleId, membership: Membership, was_there: bool, before: ConstantStatistics },
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
            Stage::Waiting => self.begin_code(&job.function),
            Stage::Code { module } => match self.device.poll_load(module) {
                Some(answer) => self.check(answer).map_err(EngineError::from).and_then(|()| self.after_code(&job.function, module)),
                None => {
                    job.stage = Stage::Code { module };
                    self.loads.push_front(job);
                    return false;
                }
            },
            Stage::Constants { module, membership, was_there, before } => {
                self.after_constants(&job.function, module, membership, was_there, before)
            }
        };
        match step {
            Ok(LoadStep::Continue(stage)) => {
                job.stage = stage;
                let waits = self.waits_for_constants(&job);
                self.loads.push_front(job);
                if waits {
                    return false;
                }
            }
            Ok(LoadStep::Done { module, membership, shared, written_bytes, from_disk }) => {
                let info = self.info(&job.function, module, shared, self.constants.is_resident(membership.set));
                tracing::info!(function = %info.key, target = %info.target, weights_bytes = info.weights_bytes, shared, resident = info.weights_resident, "function loaded");
                self.add_function(&job.function, module, membership);
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

    /// A function is on the device: opens its accounts and lets it be found.
    fn add_function(&mut self, function: &Arc<Function>, module: ModuleId, membership: Membership) {
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
        if self.constants.state(loaded.membership.set) != SetState::Away {
            self.show_constants(function, &loaded.membership);
        }
        self.functions.insert(function.id, loaded);
        self.bill_constants();
        self.recorder.add_function(function);
        self.shared.publish(function);
        self.repad(&function.key.tenant);
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

    fn waits_for_constants(&self, job: &LoadJob) -> bool {
        matches!(&job.stage, Stage::Constants { membership, .. } if matches!(self.constants.state(membership.set), SetState::Loading { .. }))
    }

    /// Begins to load the code.
    fn begin_code(&mut self, function: &Arc<Function>) -> Result<LoadStep, EngineError> {
        let Function { bundle, target, key, .. } = &**function;
        let (code, ptx) = (bundle.code(target).unwrap_or_default(), bundle.ptx(target));
        let image = ModuleImage { domain: key.tenant.as_str(), target, code, ptx, kernels: &function.image().kernels };
        let answer = self.device.begin_load(image);
        Ok(LoadStep::Continue(Stage::Code { module: self.check(answer)? }))
    }

    /// The code is there: begins to load the constants, if there is room that nobody has.
    fn after_code(&mut self, function: &Arc<Function>, module: ModuleId) -> Result<LoadStep, EngineError> {
        let before = self.constants.bytes();
        let membership = self.constants.join(&function.bundle, function.class);
        let set = membership.set;
        if let Err(refusal) = self.check_commitment(function, set, before) {
            self.abandon_load(function, module, &membership);
            return Err(refusal);
        }
        let was_there = !membership.constants.is_empty() && self.constants.homeless(set).is_empty();
        if self.constants.state(set) == SetState::Away && self.charge_load(&function.key.tenant, function.class, set) {
            // Otherwise the first invocation brings them.
            self.hold_if_free(set);
        }
        if self.constants.state(set) != SetState::Away {
            self.show_constants(function, &membership);
        }
        let before = self.resident.counters(set);
        Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there, before }))
    }

    /// Refuses constants that do not fit the device, or that are too many with those of the other functions.
    fn check_commitment(&self, function: &Function, set: ItemId, before: u64) -> Result<(), EngineError> {
        let (name, total, free) = (function.key.clone(), self.memory.total(), self.memory.free_bytes());
        let wanted = self.constants.set_bytes(set);
        if wanted > total {
            return Err(EngineError::OutOfMemory { name, wanted, free, total });
        }
        let (all, limit) = (self.constants.bytes(), (total as f64 * self.memory_overcommit) as u64);
        if all > limit && all > before {
            return Err(EngineError::OverCommitted { name, wanted: all - before, all, limit, total });
        }
        self.check_quota_commitment(&function.key, set)
    }

    /// The constants have come, or stay away.
    fn after_constants(
        &mut self,
        function: &Function,
        module: ModuleId,
        membership: Membership,
        was_there: bool,
        before: ConstantStatistics,
    ) -> Result<LoadStep, EngineError> {
        if let Some(reason) = self.lost.clone() {
            self.abandon_load(function, module, &membership);
            return Err(DeviceError::Lost(reason).into());
        }
        match self.constants.state(membership.set) {
            SetState::Loading { .. } => Ok(LoadStep::Continue(Stage::Constants { module, membership, was_there, before })),
            SetState::Away | SetState::Resident => {
                let now = self.resident.counters(membership.set);
                let (written_bytes, from_disk) = (now.loaded_bytes - before.loaded_bytes, now.disk_loads > before.disk_loads);
                Ok(LoadStep::Done { module, membership, shared: was_there, written_bytes, from_disk })
            }
        }
    }

    fn abandon_load(&mut self, function: &Function, module: ModuleId, membership: &Membership) {
        self.hide_constants(function, membership);
        self.discharge_unless_used(&function.key.tenant, membership.set);
        self.leave_set(membership.set);
        if self.lost.is_none() {
            self.device.unload_module(module);
        }
    }

    fn info(&self, function: &Function, module: ModuleId, weights_shared: bool, weights_resident: bool) -> FunctionInfo {
        FunctionInfo {
            key: function.key.clone(),
            target: function.target.clone(),
            class: function.class,
            queue_capacity: function.queue_capacity,
            weights_bytes: function.bundle.weights().len() as u64,
            weights_shared,
            weights_resident,
            occupancy: (0..function.image().kernels.len() as u32).map(|kernel| self.device.occupancy(module, kernel)).collect(),
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
        self.recorder.remove_function(id);
        self.accounts.set(loaded.own_account(), MemoryKind::Constants, 0, clock::now());
        for instance in loaded.idle {
            self.free(instance);
        }
        self.hide_constants(&loaded.function, &loaded.membership);
        self.discharge_unless_used(&loaded.function.key.tenant, loaded.membership.set);
        self.leave_set(loaded.membership.set);
        self.bill_constants();
        loaded.accounts.into_iter().for_each(|account| self.accounts.close(account));
        if self.lost.is_none() {
            self.device.unload_module(loaded.module);
        }
        self.repad(&loaded.function.key.tenant);
        tracing::info!(function = %loaded.function.key, "function unloaded");
        if let Some(answer) = loaded.unloading {
            drop(answer.send(Ok(())));
        }
        self.serve_cold();
    }
}

/// What a piece of loading leads to.
enum LoadStep {
    Continue(Stage),
    /// What is on the device; whether the constants were there already, how many bytes of them were written, and whether from disk.
    Done {
        module: ModuleId,
        membership: Membership,
        shared: bool,
        written_bytes: u64,
        from_disk: bool,
    },
}
