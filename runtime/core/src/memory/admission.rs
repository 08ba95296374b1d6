//! Admission: which invocations get memory, in which order.
//!
//! Memory is given to cold invocations in turn, real-time ones first; each gets all that it needs
//! or nothing. To make room, unpinned memory is reclaimed: cached constants, memory kept from past
//! invocations, then constant sets by the residency policy. Warm invocations may overtake the first
//! cold one while it waits, but at most [`OVERTAKES_MAX`] times. After that, later invocations are
//! held back and lose their pins, so that only running invocations delay it. So no invocation
//! starves, and a waiting invocation holds nothing that the first one needs. Constants that were
//! used recently stay for a minimum residency (`min_residency.rs`).

use super::event::Action;
use super::limits::{LOADS_MAX, OVERTAKES_MAX};
use super::min_residency::Victims;
use super::quota::TenantBytes;
use super::refusal::Refusal;
use super::spec::{InvocationSpec, SessionSpec, Turn};
use super::{Invocation, Memory, SetState};
use crate::ids::{Class, TaskId};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use std::ops::Bound;

impl Memory {
    /// Returns an error if an invocation would not fit even if it had the device, or its tenant's
    /// quota, to itself.
    ///
    /// # Errors
    ///
    /// The refusal tells which of the two it exceeds, with bytes.
    pub fn check(&self, spec: &InvocationSpec) -> Result<(), Refusal> {
        let sets = self.sets_of(spec);
        match self.misfit(&sets, spec.stages.iter().map(|stage| stage.bytes), spec.session.as_ref()) {
            Some(refusal) => Err(refusal),
            None => self.check_quota(spec, &sets),
        }
    }

    /// Why an invocation with these constants and this memory per stage would not fit the device if
    /// it had all memory that sessions leave which cannot be suspended for it; `None` if it would
    /// fit.
    fn misfit(
        &self,
        sets: &[ItemId],
        stages: impl Iterator<Item = u64>,
        session: Option<&SessionSpec>,
    ) -> Option<Refusal> {
        let constants = self.constants.bytes_of(sets);
        let wanted = stages.fold(constants, u64::saturating_add).saturating_add(self.state_bytes(session));
        let all = self.sessions.bytes();
        self.out_of_memory((wanted, constants), session, all)?;
        self.out_of_memory((wanted, constants), session, all - self.movable_bytes(session, None).all)
    }

    /// Why a waiting invocation would not fit the device beside these bytes of sessions.
    pub(super) fn misfit_beside(&self, task: TaskId, sessions: u64) -> Option<Refusal> {
        let Invocation { sets, stages, session, .. } = &self.invocations[&task];
        let constants = self.constants.bytes_of(sets);
        let own = stages.iter().map(|stage| stage.bytes).fold(constants, u64::saturating_add);
        let wanted = own.saturating_add(self.state_bytes(session.as_ref()));
        self.out_of_memory((wanted, constants), session.as_ref(), sessions)
    }

    /// Why `wanted` bytes, `constants` of them for constants, would not fit the device beside these
    /// bytes of sessions.
    fn out_of_memory(
        &self,
        (wanted, constants): (u64, u64),
        session: Option<&SessionSpec>,
        sessions: u64,
    ) -> Option<Refusal> {
        let total = self.ledger.total().saturating_sub(self.ledger.withheld() + sessions);
        let refusal = || Refusal::OutOfMemory {
            wanted,
            constants,
            free: self.ledger.free_bytes(),
            obtainable: self.obtainable_bytes(),
            total,
        };
        (wanted > total || self.exceeds_share(sessions, self.state_bytes(session))).then(refusal)
    }

    /// Refuses waiting invocations that fitted when they arrived and no longer do, because memory
    /// was withheld or taken by a session since.
    pub(super) fn refuse_misfits(&mut self) {
        let waiting: Vec<TaskId> = self.cold.keys().map(|(_, task)| *task).collect();
        for task in waiting {
            let invocation = &self.invocations[&task];
            let Invocation { class, ref tenant, ref stages, ref sets, ref session, .. } = *invocation;
            let misfit = self.misfit(sets, stages.iter().map(|stage| stage.bytes), session.as_ref());
            if let Some(refusal) = misfit.or_else(|| self.quota_misfit(tenant, class, stages, sets, session.as_ref())) {
                self.refuse(task, refusal);
            }
        }
    }

    fn refuse(&mut self, task: TaskId, refusal: Refusal) {
        if !std::mem::replace(&mut self.invocation_mut(task).ending, true) {
            self.actions.push_back(Action::Refuse { task, refusal });
        }
    }

    /// The constant sets of an invocation, each once.
    fn sets_of(&self, spec: &InvocationSpec) -> Vec<ItemId> {
        let mut sets: Vec<ItemId> =
            spec.stages.iter().map(|stage| self.functions[&stage.function].membership.set).collect();
        sets.sort_unstable();
        sets.dedup();
        sets
    }

    /// An invocation arrives: pins its constant sets if all of them are on the device.
    pub(super) fn arrive(&mut self, spec: InvocationSpec) {
        let sets = self.sets_of(&spec);
        self.join_session(&spec);
        let InvocationSpec { task, class, tenant, stages, session } = spec;
        let turn = (class, task);
        let missing: Vec<ItemId> = sets.iter().copied().filter(|&set| !self.constants.is_resident(set)).collect();
        self.actions.extend(missing.iter().map(|&set| Action::ColdStart { task, set }));
        self.tenant_mut(&tenant).invocations += 1;
        let has_constants = missing.is_empty();
        let new = Invocation {
            class,
            tenant,
            stages,
            sets,
            missing,
            pinned: false,
            waits_until: None,
            lacks_memory: false,
            prepared: false,
            ending: false,
            slots: Vec::new(),
            session,
            arrived: self.now,
        };
        let before = self.invocations.insert(task, new);
        assert!(before.is_none(), "an invocation arrives once");
        let may_begin = !self.is_held_back(turn) && !self.waits_for_quota(turn) && !self.is_unmapped(task);
        let ready = has_constants && may_begin && self.fits_quota(task);
        if ready {
            self.pin(task);
            self.charge(task);
        } else {
            self.set_cold(turn, true);
        }
        self.actions.push_back(Action::Admitted { task, ready });
        if !ready {
            self.serve_cold();
        }
    }

    /// An invocation has ended: releases everything it holds.
    pub(super) fn invocation_ended(&mut self, task: TaskId) {
        let turn = self.turn(task);
        self.set_cold(turn, false);
        let prepared = self.invocations[&task].prepared;
        for slot in std::mem::take(&mut self.invocation_mut(task).slots) {
            self.keep(slot);
        }
        if prepared {
            self.prepared -= 1;
            for set in self.invocations[&task].sets.clone() {
                // The device may have lost all constants since.
                if self.residency.contains(set) {
                    self.residency.use_ended(self.now, set);
                }
            }
        }
        self.unpin(task);
        self.session_invocation_ended(task, prepared);
        let Invocation { tenant, .. } = self.invocations.remove(&task).expect("an invocation ends once");
        self.tenant_mut(&tenant).invocations -= 1;
        self.forget_tenant(&tenant);
    }

    /// Adds an invocation to the cold ones, or removes it. Returns whether that changed anything.
    pub(super) fn set_cold(&mut self, turn: Turn, is_cold: bool) -> bool {
        let tenant = &self.invocations[&turn.1].tenant;
        let changed =
            if is_cold { self.cold.insert(turn, tenant.clone()).is_none() } else { self.cold.remove(&turn).is_some() };
        if changed {
            let cold = &mut self.tenant_of(turn.1).cold;
            *cold = if is_cold { *cold + 1 } else { *cold - 1 };
            for &set in &self.invocations[&turn.1].sets {
                self.constants.note_cold(set, turn, is_cold);
            }
        }
        changed
    }

    /// The scheduler wants an invocation prepared: grants its memory or makes it cold.
    pub(super) fn prepare(&mut self, task: TaskId) {
        let turn = self.turn(task);
        if self.is_held_back(turn) || self.waits_for_quota(turn) {
            return self.make_cold(task);
        }
        let has_memory = !self.invocations[&task].slots.is_empty()
            || (self.make_quota_room(turn, true, Victims::All)
                && self.until_room(turn, true, |memory| memory.obtain_all(task)));
        if has_memory {
            self.actions.push_back(Action::Begin { task });
        } else {
            self.invocation_mut(task).lacks_memory = true;
            self.make_cold(task);
            self.serve_cold();
        }
    }

    /// Records that an invocation was prepared.
    pub(super) fn note_prepared(&mut self, task: TaskId) {
        let turn = self.turn(task);
        self.overtakes += u32::from(self.blocked.is_some_and(|first| turn > first));
        self.pinning.remove(&turn);
        self.tenant_of(task).pinning.remove(&turn);
        self.prepared += 1;
        self.invocation_mut(task).prepared = true;
        self.begin_session(task);
        for &set in &self.invocations[&task].sets {
            if self.residency.contains(set) {
                self.residency.used(self.now, set);
            }
        }
    }

    /// Whether an earlier invocation has waited for memory for too long to be overtaken.
    fn is_held_back(&self, turn: Turn) -> bool {
        self.blocked.is_some_and(|first| turn > first && self.has_priority(first))
    }

    /// Whether the first cold invocation gets memory before all later ones.
    fn has_priority(&self, first: Turn) -> bool {
        first.0 == Class::RealTime || self.overtakes >= OVERTAKES_MAX
    }

    fn pin(&mut self, task: TaskId) {
        let turn = self.turn(task);
        let sets = self.invocations[&task].sets.clone();
        for &set in &sets {
            if self.constants.pin(set) && self.residency.contains(set) {
                self.residency.pin(set);
            }
        }
        let tenant = self.tenants.get_mut(&self.invocations[&task].tenant).expect("its tenant has an invocation");
        for &set in &sets {
            let pins = tenant.pins.entry((set, turn.0)).or_default();
            *pins += 1;
            if *pins == 1 {
                tenant.pinned += TenantBytes::of(turn.0, self.constants.set_bytes(set));
            }
        }
        tenant.pinning.insert(turn);
        self.pinning.insert(turn);
        self.invocation_mut(task).pinned = true;
    }

    /// Undoes an invocation's pins, if it has any.
    fn unpin(&mut self, task: TaskId) {
        if !std::mem::take(&mut self.invocation_mut(task).pinned) {
            return;
        }
        let turn = self.turn(task);
        let sets = self.invocations[&task].sets.clone();
        self.pinning.remove(&turn);
        let tenant = self.tenants.get_mut(&self.invocations[&task].tenant).expect("its tenant has an invocation");
        tenant.pinning.remove(&turn);
        for &set in &sets {
            let pins = tenant.pins.get_mut(&(set, turn.0)).expect("what is unpinned was pinned");
            *pins -= 1;
            if *pins == 0 {
                tenant.pins.remove(&(set, turn.0));
                tenant.pinned = tenant.pinned.without(TenantBytes::of(turn.0, self.constants.set_bytes(set)));
            }
        }
        for set in sets {
            if !self.constants.unpin(set) {
                continue;
            }
            if self.residency.contains(set) {
                self.residency.unpin(set);
            } else {
                self.cancel_loading(set);
            }
        }
    }

    /// Takes the pins and the memory of an invocation that is not prepared; it is cold afterwards.
    pub(super) fn make_cold(&mut self, task: TaskId) {
        let turn = self.turn(task);
        let invocation = self.invocation_mut(task);
        assert!(!invocation.prepared, "a prepared invocation keeps its memory");
        let slots = std::mem::take(&mut invocation.slots);
        if !slots.is_empty() {
            self.actions.push_back(Action::Revoke { task });
            slots.into_iter().for_each(|slot| self.keep(slot));
        }
        self.take_state_back(task);
        self.unpin(task);
        if self.set_cold(turn, true) {
            self.actions.push_back(Action::Unready { task });
        }
    }

    /// Serves cold invocations in turn, while there is memory.
    pub(super) fn serve_cold(&mut self) {
        if self.lost {
            return;
        }
        self.short_of_quota.clear();
        let (mut first_in_turn, mut tried, mut next) = (None, 0, self.cold.keys().next().copied());
        while let Some(turn) = next {
            next = self.cold_after(turn).next().map(|(&turn, _)| turn);
            if self.waits_for_quota(turn) {
                next = self.cold_after(turn).find(|&(&later, of)| !self.is_behind(of, later)).map(|(&turn, _)| turn);
                continue;
            }
            // An invocation that only waits for an executor to map constants blocks no other.
            if self.waits_for_mapping(turn.1) || !self.passes_quota(turn) {
                continue;
            }
            if tried == LOADS_MAX {
                break;
            }
            tried += 1;
            let first = *first_in_turn.get_or_insert(turn);
            if self.blocked != Some(first) {
                self.unblock();
            }
            let is_first = turn == first;
            if self.try_serve(turn, is_first) {
                if is_first {
                    self.unblock();
                    // If this invocation has all it needs, the next one is first in turn.
                    first_in_turn = first_in_turn.filter(|first| self.cold.contains_key(first));
                }
                continue;
            }
            if is_first {
                self.blocked = Some(turn);
            }
            if self.has_priority(first) {
                break;
            }
        }
        if first_in_turn.is_none() {
            self.unblock();
        }
    }

    /// Serves a cold invocation at its turn. Returns whether it got the constants or
    /// the memory that it needs next.
    fn try_serve(&mut self, turn: Turn, is_first: bool) -> bool {
        if is_first {
            self.note_first(turn);
        }
        let has_priority = is_first && self.has_priority(turn);
        let respects = !has_priority && self.respects_residency(turn);
        // If nothing is running, nothing will be freed either.
        let alone = is_first && !respects && self.prepared == 0;
        if self.serve(turn, alone || has_priority, respects) {
            return true;
        }
        // An empty device is of no use if a session has to leave anyway.
        let in_vain = || self.suspend_idle_ns.is_some() && self.misfit_beside(turn.1, self.sessions.bytes()).is_some();
        if alone && !in_vain() && self.serve_on_empty_device(turn) {
            return true;
        }
        if is_first && self.suspend_for(turn, alone) {
            return false;
        }
        if alone && self.sessions.bytes() > 0 {
            // The memory that sessions leave is fragmented; only the end of a session would help.
            let (total, free, obtainable) =
                (self.ledger.total() - self.sessions.bytes(), self.ledger.free_bytes(), self.obtainable_bytes());
            let Invocation { sets, stages, session, .. } = &self.invocations[&turn.1];
            let constants = self.constants.bytes_of(sets);
            let wanted = stages
                .iter()
                .map(|stage| stage.bytes)
                .fold(constants + self.state_bytes(session.as_ref()), u64::saturating_add);
            self.refuse(turn.1, Refusal::OutOfMemory { wanted, constants, free, obtainable, total });
            return true;
        }
        false
    }

    /// The cold invocations after `turn`, in turn.
    fn cold_after(&self, turn: Turn) -> impl Iterator<Item = (&Turn, &Tenant)> {
        self.cold.range((Bound::Excluded(turn), Bound::Unbounded))
    }

    /// Whether a cold invocation fits its tenant's quota, after making room if necessary. If not,
    /// later invocations of the same tenant wait too, or only those without their constants.
    fn passes_quota(&mut self, turn: Turn) -> bool {
        let (_, task) = turn;
        let Invocation { lacks_memory, ref tenant, .. } = self.invocations[&task];
        if self.short_of_quota.contains_key(tenant) && !self.has_constants(task) {
            return false;
        }
        if !lacks_memory && self.fits_quota(task) {
            return true;
        }
        let tenant = tenant.clone();
        let victims = if !lacks_memory && self.respects_own_residency(turn) { Victims::Cool } else { Victims::All };
        let passes = self.make_quota_room(turn, lacks_memory, victims);
        if !passes {
            self.suspend_for_quota(turn);
            self.short_of_quota.insert(tenant, (turn, victims));
        }
        passes
    }

    /// Whether all constants of an invocation are on the device.
    fn has_constants(&self, task: TaskId) -> bool {
        self.invocations[&task].sets.iter().all(|&set| self.constants.is_resident(set))
    }

    /// Whether a cold invocation has all its constants on the device, but not all of them mapped by
    /// its executors.
    fn waits_for_mapping(&self, task: TaskId) -> bool {
        self.invocations[&task].pinned && self.is_unmapped(task) && self.has_constants(task)
    }

    fn unblock(&mut self) {
        (self.blocked, self.overtakes) = (None, 0);
    }

    /// Gives a cold invocation its constants, and its memory if it lacks that; all or nothing. If
    /// `takes`, takes memory from later invocations. If `respects`, leaves other constants their
    /// minimum residency. Returns whether it succeeded.
    fn serve(&mut self, turn: Turn, takes: bool, respects: bool) -> bool {
        let (_, task) = turn;
        if self.invocations[&task].ending {
            return true;
        }
        if !self.invocations[&task].pinned {
            self.pin(task);
        }
        let sets = self.invocations[&task].sets.clone();
        let has_room = self.loading.len() < LOADS_MAX || turn.0 == Class::RealTime;
        let victims = if respects { Victims::Cool } else { Victims::All };
        let may_hold = has_room && (!respects || self.fits_beside_warm(task));
        let held = sets.iter().all(|&set| {
            self.constants.state(set) != SetState::Absent
                || (may_hold && self.until_room(turn, takes, |memory| memory.start_loading(set, victims)))
        });
        if !held {
            self.unpin(task);
            return false;
        }
        self.charge(task);
        if !self.has_constants(task) || self.is_unmapped(task) {
            return true;
        }
        if self.invocations[&task].lacks_memory && !self.until_room(turn, takes, |memory| memory.obtain_all(task)) {
            self.unpin(task);
            return false;
        }
        self.set_cold(turn, false);
        self.actions.push_back(Action::Ready { task });
        true
    }

    /// Serves the first cold invocation after emptying the device: if nothing is running and its
    /// memory still cannot be allocated, the memory is fragmented.
    fn serve_on_empty_device(&mut self, turn: Turn) -> bool {
        while self.revoke_from_behind(turn, None) || self.reclaim_one(Victims::All) {}
        self.serve(turn, true, false)
    }

    /// Repeats `attempt` until it succeeds; if `takes`, takes memory from later invocations in
    /// between.
    fn until_room(&mut self, turn: Turn, takes: bool, attempt: impl Fn(&mut Memory) -> bool) -> bool {
        loop {
            if attempt(self) {
                return true;
            }
            if !takes || !self.revoke_from_behind(turn, None) {
                return false;
            }
        }
    }

    /// Makes the last pinning invocation after `turn` cold, among all or among those of a tenant.
    /// Returns whether there was one.
    pub(super) fn revoke_from_behind(&mut self, turn: Turn, tenant: Option<&Tenant>) -> bool {
        let pinning = match tenant {
            None => Some(&self.pinning),
            Some(tenant) => self.tenants.get(tenant).map(|state| &state.pinning),
        };
        let last = pinning.and_then(|pinning| pinning.last().copied()).filter(|&last| last > turn);
        last.inspect(|&(_, task)| self.make_cold(task)).is_some()
    }
}
