//! Carries out the actions of [`atoll_core::memory`] and reports their outcomes.

use super::Worker;
use crate::accounts::{AccountId, Holder, MemoryKind};
use crate::allowance::Part;
use crate::clock::{self, saturating_nanos};
use crate::config::EngineConfig;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::statistics::TenantMemory;
use atoll_core::memory::{self, Action, Event, Granted, MemorySpec, Place, SlotId};
use atoll_core::residency::{ItemId, Residency, ResidencyPolicyEntry};
use atoll_core::{Action as TaskAction, DeviceOffset, Event as TaskEvent, TaskId, Tenant};
use atoll_device::{DeviceError, DeviceInfo, ModuleId};
use std::ops::Range;
use std::sync::Arc;

const _: () = assert!(memory::ALIGN == atoll_kgraph::BUFFER_ALIGN);

/// Offsets at which engines begin to look for memory of sessions, of which each takes another one.
const SESSION_OFFSETS: u64 = 8;

/// The memory decisions of a device.
pub(super) fn of_device(info: &DeviceInfo, config: &EngineConfig, policy: &ResidencyPolicyEntry) -> memory::Memory {
    let spec = MemorySpec {
        memory_bytes: info.memory_bytes,
        constants_base: info.constants_base,
        constants_bytes: info.constants_bytes,
        constants_granule: info.constants_granule,
        limit_bytes: config.memory_limit_bytes,
        overcommit: config.memory_overcommit,
    };
    let number = 1 + u64::from(config.device.0) % (SESSION_OFFSETS - 1);
    let sessions_from = DeviceOffset(info.memory_bytes / SESSION_OFFSETS * number);
    memory::Memory::new(&spec, Residency::new((policy.make)()), config.memory_quotas.clone())
        .with_suspension(config.suspension.idle.map(saturating_nanos), sessions_from)
}

impl Worker {
    /// Sends an event to the memory decisions and carries out the resulting actions. Returns
    /// whether there were any. Resulting actions of the scheduler wait for [`Worker::act`].
    pub(super) fn notify_memory(&mut self, event: Event) -> bool {
        self.note_memory(event);
        let mut any = false;
        while let Some(action) = self.memory.next_action() {
            self.carry_out(action);
            any = true;
        }
        any
    }

    /// Sends an event without carrying out actions: the outcome of an action that is being carried
    /// out, or an event that causes none.
    pub(super) fn note_memory(&mut self, event: Event) {
        self.memory.handle(clock::now(), event);
    }

    fn carry_out(&mut self, action: Action) {
        self.holdings.residency_changed |= action.moves_constants();
        match action {
            Action::Admitted { task, ready } => self.admit(task, ready),
            Action::Ready { task } => self.become_ready(task),
            Action::Unready { task } => self.become_unready(task),
            Action::Begin { task } => self.write_all_inputs(task),
            Action::Fail { task, why } => {
                self.fail(task, InvokeError::Device(format!("the constants cannot be loaded: {why}")))
            }
            Action::Refuse { task, refusal } => {
                let error = InvokeError::refused(refusal, self.invocation(task).submission.chain.tenant());
                self.fail(task, error);
            }
            Action::Grant { task, slots } => self.grant(task, slots),
            Action::Revoke { task } => self.revoke(task),
            Action::SaveOutputs { slot } => self.save_outputs(slot),
            Action::FreeSlot { slot, place } => self.free_slot(slot, place),
            Action::SessionExpired { session } => self.session_expired(session),
            Action::FreeState { session, place } => self.free_state(session, place),
            Action::Suspend { session, place } => self.suspend(session, place),
            Action::Reserve { set, generation, places } => self.reserve(set, generation, places),
            Action::Release { place } if self.lost.is_none() => self.device.release_constant(place.at),
            Action::Release { .. } => {}
            Action::MapConstants { function, tenant } => self.map_constants(function, &tenant),
            Action::UnmapConstants { tenant, places } if self.lost.is_none() => {
                self.device.hide_constants(tenant.as_str(), &places)
            }
            Action::UnmapConstants { .. } => {}
            Action::Stage { set, ranges, urgent } => {
                let bundle = Arc::clone(&self.holdings.bundles[&set]);
                let staged = self.holdings.stager.stage(bundle, ranges, urgent);
                self.holdings.staged.push((set, staged));
            }
            Action::CancelStage { set } => self.holdings.staged.retain(|(other, _)| *other != set),
            Action::Write { set, task, to, from } => self.write_piece(set, task, to, from),
            Action::ColdStart { task, set } => self.note_cold_start(task, set),
            Action::Loaded { set, tasks } => self.note_loaded(set, &tasks),
            Action::Reclaimed { set, bytes } => self.note_reclaimed(set, bytes),
            Action::Forgotten { set } => {
                self.holdings.bundles.remove(&set);
                self.holdings.counters.remove(&set);
            }
            Action::ChargesChanged => self.holdings.charges_changed = true,
        }
    }

    // Invocations.

    pub(super) fn become_ready(&mut self, task: TaskId) {
        let (before, client) = (self.actions.len(), self.client_of(task));
        self.notify_scheduler(TaskEvent::TaskReady { task });
        self.note_ready(task, Some(client));
        self.note_preemptions(task, before);
    }

    fn become_unready(&mut self, task: TaskId) {
        // A pending `Prepare` of it is obsolete.
        self.actions.retain(|action| *action != TaskAction::Prepare { task });
        if !self.waits_for_memory(task) {
            self.note_ready(task, None);
            self.notify_scheduler(TaskEvent::TaskUnready { task });
        }
        // Last, since other invocations may become ready by this.
        self.return_memory(task);
    }

    /// Binds memory to an invocation.
    fn grant(&mut self, task: TaskId, slots: Vec<Granted>) {
        let tenant = self.invocation(task).submission.chain.tenant().clone();
        if let Err(error) = self.allow_slots(&tenant, &slots) {
            self.note_memory(Event::GrantFailed { task, slots });
            return self.fail(task, InvokeError::Unavailable(error.to_string()));
        }
        if let Err(error) = self.clear_fresh(&slots) {
            self.withdraw_fresh(&slots);
            self.note_memory(Event::GrantFailed { task, slots });
            return self.fail_on(task, "its memory cannot be cleared", &error);
        }
        let Submission { chain, class, .. } = &self.invocations[&task].submission;
        let stages: Vec<_> = chain.stages.iter().map(|stage| (stage.function.id, Arc::clone(&stage.binding))).collect();
        let class = *class;
        let mut instances = Vec::with_capacity(slots.len());
        for (granted, (function, binding)) in slots.iter().zip(stages) {
            let loaded = &self.functions[&function];
            let holder = (loaded.account(class), MemoryKind::Invocations);
            let mut instance = match granted.fresh {
                None => self.holdings.kept.remove(&granted.slot).expect("present: `clear_fresh` checked it").1,
                Some(fresh) => {
                    let (generation, offsets) = self.memory.constant_offsets(function);
                    Instance::new(Arc::clone(&binding), fresh.place, offsets, generation, loaded.module)
                }
            };
            if !Arc::ptr_eq(&instance.binding, &binding) {
                // The previous invocation in this memory had read sizes back.
                instance.bind(binding);
            }
            if !instance.binding.code.is_empty() {
                instance.set_modules(self.modules_of(&instance.binding.code));
            }
            if instance.generation != self.memory.generation(function) {
                let (generation, offsets) = self.memory.constant_offsets(function);
                instance.move_constants(generation, offsets);
            }
            self.charge_to(&mut instance, Some(holder));
            instances.push(instance);
        }
        let invocation = self.invocation(task);
        invocation.instances = instances;
        invocation.slots = slots.iter().map(|granted| granted.slot).collect();
    }

    /// The modules of functions. A function that was unloaded gets an invalid module id, so the
    /// device refuses its launches.
    fn modules_of(&self, functions: &[FunctionId]) -> Vec<ModuleId> {
        let module = |id| self.functions.get(id).map_or(ModuleId(u32::MAX), |loaded| loaded.module);
        functions.iter().map(module).collect()
    }

    /// Clears new memory that may hold data of other tenants, and checks that kept memory is still
    /// there.
    fn clear_fresh(&mut self, slots: &[Granted]) -> Result<(), DeviceError> {
        for Granted { slot, fresh } in slots {
            match fresh {
                Some(fresh) if fresh.clear && self.lost.is_none() => {
                    let answer = self.device.fill(fresh.place.at, 0, fresh.place.bytes);
                    self.check(answer)?;
                }
                Some(_) => {}
                // The slot was lost with an earlier grant that failed.
                None if !self.holdings.kept.contains_key(slot) => {
                    return Err(DeviceError::DomainLost("the memory was lost before it could be cleared".into()));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn revoke(&mut self, task: TaskId) {
        let invocation = self.invocation(task);
        let (instances, slots) = (std::mem::take(&mut invocation.instances), std::mem::take(&mut invocation.slots));
        let functions: Vec<FunctionId> =
            invocation.submission.chain.stages.iter().map(|stage| stage.function.id).collect();
        self.keep(functions, slots, instances);
    }

    /// Keeps memory of an invocation for later ones.
    pub(super) fn keep(&mut self, functions: Vec<FunctionId>, slots: Vec<SlotId>, instances: Vec<Instance>) {
        for ((function, slot), mut instance) in functions.into_iter().zip(slots).zip(instances) {
            let holder = (self.functions[&function].own_account(), MemoryKind::Idle);
            self.charge_to(&mut instance, Some(holder));
            self.holdings.kept.insert(slot, (function, instance));
        }
    }

    fn free_slot(&mut self, slot: SlotId, place: Place) {
        // The memory of a failed grant was not kept.
        if let Some((_, mut instance)) = self.holdings.kept.remove(&slot) {
            self.charge_to(&mut instance, None);
            if self.lost.is_none() {
                let answer = self.device.give_back(instance.at(0), place.bytes);
                if self.check(answer).is_err() {
                    self.note_memory(Event::ClearFailed { place });
                }
            }
        }
        self.withdraw(Part::Slot(slot));
    }

    /// Changes the account that is charged for an instance.
    fn charge_to(&mut self, instance: &mut Instance, holder: Option<Holder>) {
        let before = std::mem::replace(&mut instance.holder, holder);
        self.accounts.pass(instance.bytes(), before, holder, clock::now());
    }

    // Constants.

    fn reserve(&mut self, set: ItemId, generation: u64, places: Vec<Place>) {
        let mut refused = None;
        for (index, place) in places.iter().enumerate() {
            let answer = self.device.reserve_constant(place.at, place.bytes);
            if let Err(error) = self.check(answer) {
                refused = Some((places[index..].to_vec(), Arc::from(error.to_string())));
                break;
            }
        }
        self.note_memory(Event::Reserved { set, generation, refused });
    }

    /// Maps the constants of a function that have places into its tenant's executor.
    fn map_constants(&mut self, function: FunctionId, tenant: &Tenant) {
        if self.lost.is_some() {
            return;
        }
        self.device.show_constants(tenant.as_str(), &self.memory.places(function));
        if !self.device.sees_constants(tenant.as_str()) {
            self.note_memory(Event::Unmapped { function });
        }
    }

    /// Reports functions whose constants are now mapped. Returns whether there were any.
    pub(super) fn take_mapped(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let (memory, device) = (&self.memory, &self.device);
        let mapped = memory.unmapped().filter(|(_, tenant)| device.sees_constants(tenant.as_str()));
        let functions: Vec<FunctionId> = mapped.map(|(function, _)| function).collect();
        if functions.is_empty() {
            return false;
        }
        self.notify_memory(Event::Mapped { functions });
        self.act();
        true
    }

    /// Reports if the device lost all constants. Returns whether it did.
    pub(super) fn take_constants_lost(&mut self) -> bool {
        if self.lost.is_some() || !self.device.take_constants_lost() {
            return false;
        }
        self.notify_memory(Event::ConstantsLost);
        self.act();
        true
    }

    /// Writes the next chunk of a set that is being loaded. Returns whether there was one.
    pub(super) fn advance_loading(&mut self) -> bool {
        if !self.memory.is_loading() || self.device.is_unready() {
            return false;
        }
        let now = clock::now();
        for (set, staged) in &self.holdings.staged {
            self.memory.handle(now, Event::Staged { set: *set, end: staged.end() });
        }
        let any = self.notify_memory(Event::Advance);
        if any {
            self.act();
        }
        any
    }

    fn write_piece(&mut self, set: ItemId, task: Option<TaskId>, to: DeviceOffset, from: Range<usize>) {
        let (begin, bytes) = (clock::now(), from.len() as u64);
        let bundle = Arc::clone(&self.holdings.bundles[&set]);
        let answer = self.device.write(to, &bundle.weights()[from]);
        match self.check(answer) {
            Ok(()) => {}
            // All constants are lost, which is reported separately.
            Err(DeviceError::DomainLost(_)) => return,
            Err(error) => return self.note_memory(Event::WriteFailed { set, why: error.to_string().into() }),
        }
        self.note_memory(Event::Written { bytes, took_ns: clock::now().0.saturating_sub(begin.0) });
        self.holdings.count(set, |counters| counters.loaded_bytes += bytes);
        // Bytes loaded with a function are charged when the load ends.
        if let Some(account) = task.and_then(|task| self.account_for(task, set)) {
            self.accounts.of(account).written_bytes += bytes;
        }
    }

    // Accounts.

    fn note_cold_start(&mut self, task: TaskId, set: ItemId) {
        self.holdings.count(set, |counters| counters.cold_starts += 1);
        if let Some(invocation) = self.invocations.get_mut(&task) {
            invocation.cold_start = true;
        }
        if let Some(account) = self.account_for(task, set) {
            self.accounts.of(account).cold_starts += 1;
        }
    }

    /// The account that is charged for loading a set for an invocation.
    fn account_for(&self, task: TaskId, set: ItemId) -> Option<AccountId> {
        let Submission { chain, class, .. } = &self.invocations.get(&task)?.submission;
        let mut functions = chain.stages.iter().map(|stage| &self.functions[&stage.function.id]);
        functions.find(|loaded| loaded.set == set).map(|loaded| loaded.account(*class))
    }

    fn note_loaded(&mut self, set: ItemId, tasks: &[TaskId]) {
        let now = clock::now();
        for task in tasks {
            if let Some(invocation) = self.invocations.get_mut(task) {
                invocation.load_ns = now.0.saturating_sub(invocation.times.entered.0);
            }
        }
        let from_disk =
            self.holdings.staged.extract_if(.., |(other, _)| *other == set).any(|(_, staged)| staged.was_on_disk());
        self.holdings.count(set, |counters| {
            counters.loads += 1;
            counters.disk_loads += u64::from(from_disk);
        });
        for &task in tasks.iter().filter(|_| from_disk) {
            if let Some(account) = self.account_for(task, set) {
                self.accounts.of(account).disk_cold_starts += 1;
            }
        }
    }

    fn note_reclaimed(&mut self, set: ItemId, bytes: u64) {
        self.holdings.count(set, |counters| {
            counters.evictions += 1;
            counters.evicted_bytes += bytes;
        });
        // A function that is still being loaded has no account.
        for loaded in self.memory.functions_of(set).filter_map(|function| self.functions.get(&function)) {
            self.accounts.of(loaded.own_account()).reclaims += 1;
        }
    }

    pub(super) fn update_charges(&mut self) {
        if std::mem::take(&mut self.holdings.charges_changed) {
            self.bill_constants();
        }
    }

    /// Memory use of tenants with quotas.
    pub(super) fn tenant_memory(&self) -> Vec<TenantMemory> {
        let tenants = self.memory.tenant_memory().into_iter();
        tenants
            .map(|memory::TenantUse { tenant, quota, used, most }| TenantMemory { tenant, quota, used, most })
            .collect()
    }
}
