//! Constants come to the device and go, and invocations wait for them.
//!
//! An invocation *claims* the constants it needs; what is claimed is neither evicted nor overwritten. If they are all there when it arrives, it is ready at once. Otherwise it is *cold*: it keeps
//! its place in the scheduler's queue and stands in nobody's way, while its constants are read ahead (`staging.rs`) and written in pieces between events. Loading begins on arrival, not at its turn.
//!
//! Memory is given to cold invocations in turn, real-time ones first, all that one needs or nothing. First goes what nobody claims: leftovers, memory kept from past invocations, constants by
//! the residency policy. Warm invocations may overtake the first cold one while it waits, but only so often ([`OVERTAKES_MAX`]); then those behind it are held back, what they claimed is taken
//! from them, and nothing but invocations that are running stands between it and its memory. So everybody's turn comes, and who waits holds nothing that the first one needs. What was in use a
//! moment ago is spared for a while (`sparing.rs`).

use super::Worker;
use super::sparing::{Sparing, Victims};
use crate::accounts::AccountId;
use crate::clock;
use crate::constants::{Chunk, SetState};
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::invocation::Invocation;
use crate::limits::{LOAD_CHUNK_BYTES, LOADS_MAX, OVERTAKES_MAX};
use crate::memory::{Allocation, Purpose};
use crate::staging::{Staged, Stager};
use crate::statistics::ConstantStatistics;
use atoll_core::residency::{ItemFacts, ItemId, Residency};
use atoll_core::{Action, Class, Event, TaskId, Tenant};
use atoll_device::DeviceError;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// The order in which invocations get memory.
pub(super) type Turn = (Class, TaskId);

/// What the engine's thread knows about constants that come and go.
pub(super) struct ResidencyState {
    pub(super) residency: Residency,
    /// Invocations that wait for constants or memory.
    cold: BTreeSet<Turn>,
    /// Sets that are being loaded, in the order in which that began.
    loading: Vec<(ItemId, Arc<Staged>)>,
    /// Reads what is about to be loaded.
    stager: Stager,
    /// The first cold invocation, if there is no memory for it.
    blocked: Option<Turn>,
    /// The invocation of each tenant that waits for the tenant's quota, and what it would take: the first, or behind one that spares others the first that does not.
    pub(super) short_of_quota: BTreeMap<Tenant, (Turn, Victims)>,
    /// Invocations behind `blocked` that were prepared meanwhile.
    overtakes: u32,
    pub(super) sparing: Sparing,
    /// What loading a byte takes, by those loaded lately.
    ns_per_byte: f64,
    counters: BTreeMap<ItemId, ConstantStatistics>,
    /// The bytes of constants are to be divided anew among those who pay for them.
    bills_due: bool,
    pub(super) totals: ConstantStatistics,
}

/// Five gigabytes a second, until something was loaded.
const NS_PER_BYTE_DEFAULT: f64 = 0.2;

impl ResidencyState {
    pub(super) fn new(residency: Residency, stager: Stager) -> ResidencyState {
        ResidencyState {
            residency,
            cold: BTreeSet::new(),
            loading: Vec::new(),
            stager,
            blocked: None,
            short_of_quota: BTreeMap::new(),
            overtakes: 0,
            sparing: Sparing::default(),
            ns_per_byte: NS_PER_BYTE_DEFAULT,
            counters: BTreeMap::new(),
            bills_due: false,
            totals: ConstantStatistics::default(),
        }
    }

    /// Whether constants are being loaded.
    pub(super) fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }

    /// What happened to a set since its first function was loaded.
    pub(super) fn counters(&self, set: ItemId) -> ConstantStatistics {
        self.counters.get(&set).copied().unwrap_or_default()
    }

    fn count(&mut self, set: ItemId, count: impl Fn(&mut ConstantStatistics)) {
        count(self.counters.entry(set).or_default());
        count(&mut self.totals);
    }
}

impl Worker {
    // Invocations.

    /// An invocation arrives: claims what it needs if all of that is there. Returns whether it is ready.
    pub(super) fn enter(&mut self, task: TaskId) -> bool {
        let turn = self.turn(task);
        let sets = self.invocation(task).sets.clone();
        let missing: Vec<ItemId> = sets.into_iter().filter(|&set| !self.constants.is_resident(set)).collect();
        missing.iter().for_each(|&set| self.note_cold_start(task, set));
        self.invocation(task).missing.clone_from(&missing);
        let is_held_back = self.is_held_back(turn) || self.waits_for_quota(turn) || self.is_unseeing(task);
        let ready = missing.is_empty() && !is_held_back && self.fits_quota(task);
        if ready {
            self.claim(task);
            self.charge(task);
        } else {
            self.resident.cold.insert(turn);
        }
        ready
    }

    fn note_cold_start(&mut self, task: TaskId, set: ItemId) {
        self.resident.count(set, |counters| counters.cold_starts += 1);
        if let Some(account) = self.account_for(task, set) {
            self.accounts.of(account).cold_starts += 1;
        }
    }

    /// Where it is billed what an invocation causes to happen to a set.
    fn account_for(&self, task: TaskId, set: ItemId) -> Option<AccountId> {
        let Submission { chain, class, .. } = &self.invocations.get(&task)?.submission;
        let mut functions = chain.stages.iter().map(|stage| &self.functions[&stage.function.id]);
        functions.find(|loaded| loaded.membership.set == set).map(|loaded| loaded.account(*class))
    }

    /// An invocation is over, or never came to be.
    pub(super) fn leave(&mut self, task: TaskId, class: Class) {
        self.resident.cold.remove(&(class, task));
    }

    /// Whether somebody in front of this turn has waited for memory for too long.
    pub(super) fn is_held_back(&self, turn: Turn) -> bool {
        self.resident.blocked.is_some_and(|first| turn > first && self.has_priority(first))
    }

    /// Whether the first cold invocation gets memory before anybody behind it.
    fn has_priority(&self, first: Turn) -> bool {
        first.0 == Class::RealTime || self.resident.overtakes >= OVERTAKES_MAX
    }

    pub(super) fn turn(&mut self, task: TaskId) -> Turn {
        (self.invocation(task).submission.class, task)
    }

    /// An invocation was prepared.
    pub(super) fn note_prepared(&mut self, task: TaskId) {
        let turn = self.turn(task);
        self.resident.overtakes += u32::from(self.resident.blocked.is_some_and(|first| turn > first));
        let now = clock::now();
        for set in self.invocation(task).sets.clone() {
            if self.resident.residency.contains(set) {
                self.resident.residency.used(now, set);
            }
        }
    }

    fn claim(&mut self, task: TaskId) {
        for set in self.invocation(task).sets.clone() {
            if self.constants.claim(set) && self.resident.residency.contains(set) {
                self.resident.residency.pin(set);
            }
        }
        self.invocation(task).claimed = true;
    }

    /// An invocation that ran is over.
    pub(super) fn note_use_ended(&mut self, sets: &[ItemId]) {
        let now = clock::now();
        for &set in sets {
            // All may have been lost with the device's memory meanwhile.
            if self.resident.residency.contains(set) {
                self.resident.residency.use_ended(now, set);
            }
        }
    }

    /// Takes back what an invocation claimed, if it did.
    pub(super) fn unclaim(&mut self, sets: &[ItemId]) {
        for &set in sets {
            if !self.constants.unclaim(set) {
                continue;
            }
            if self.resident.residency.contains(set) {
                self.resident.residency.unpin(set);
            } else {
                self.cancel_loading(set);
            }
        }
    }

    /// Takes from an invocation that is not prepared what it claimed and what memory it got; it is cold from then on.
    pub(super) fn make_cold(&mut self, task: TaskId) {
        let turn = self.turn(task);
        let invocation = self.invocation(task);
        assert!(!invocation.prepared, "what runs keeps what it has");
        let instances = std::mem::take(&mut invocation.instances);
        let functions: Vec<FunctionId> = invocation.submission.chain.stages.iter().map(|stage| stage.function.id).collect();
        let sets = if std::mem::take(&mut invocation.claimed) { invocation.sets.clone() } else { Vec::new() };
        functions.iter().zip(instances).for_each(|(&function, instance)| self.release(function, instance));
        self.unclaim(&sets);
        if self.resident.cold.insert(turn) {
            // It may have been told to prepare itself a moment ago.
            self.actions.retain(|action| *action != Action::Prepare { task });
            self.tell(Event::TaskUnready { task });
        }
    }

    /// Gives cold invocations what they need, as far as there is memory.
    pub(super) fn serve_cold(&mut self) {
        if self.lost.is_some() {
            return;
        }
        self.resident.short_of_quota.clear();
        let (mut first_in_turn, mut tried, mut next) = (None, 0, self.resident.cold.first().copied());
        while let Some(turn) = next {
            next = self.resident.cold.range((Bound::Excluded(turn), Bound::Unbounded)).next().copied();
            // Who waits for nothing but an executor is in nobody's way.
            if self.waits_for_sight(turn.1) || !self.passes_quota(turn) {
                continue;
            }
            if tried == LOADS_MAX {
                break;
            }
            tried += 1;
            let first = *first_in_turn.get_or_insert(turn);
            if self.resident.blocked != Some(first) {
                self.unblock();
            }
            let is_first = turn == first;
            if is_first {
                self.note_first(turn);
            }
            let has_priority = is_first && self.has_priority(turn);
            let spares = !has_priority && self.spares(turn);
            // Where nothing runs, nothing will be given back either.
            let alone = is_first && !spares && !self.invocations.values().any(|invocation| invocation.prepared);
            if self.serve(turn, alone || has_priority, spares) || (alone && self.serve_afresh(turn)) {
                if is_first {
                    self.unblock();
                    // The next one is first where this one has all it needs.
                    first_in_turn = first_in_turn.filter(|first| self.resident.cold.contains(first));
                }
                continue;
            }
            if is_first {
                self.resident.blocked = Some(turn);
            }
            if self.has_priority(first) {
                break;
            }
        }
        if first_in_turn.is_none() {
            self.unblock();
        }
    }

    /// Whether there is room for a cold invocation in its tenant's quota; if not, those behind it of the same tenant wait too, or those of them that lack constants.
    fn passes_quota(&mut self, turn: Turn) -> bool {
        let (_, task) = turn;
        let Invocation { short, ref submission, .. } = self.invocations[&task];
        let tenant = submission.chain.tenant().clone();
        if self.waits_for_quota(turn) || (self.resident.short_of_quota.contains_key(&tenant) && !self.has_constants(task)) {
            return false;
        }
        if !short && self.fits_quota(task) {
            return true;
        }
        let victims = if !short && self.spares_own(turn) { Victims::Cool } else { Victims::All };
        let passes = self.make_quota_room(turn, short, victims);
        if !passes {
            self.resident.short_of_quota.insert(tenant, (turn, victims));
        }
        passes
    }

    /// Whether all constants that an invocation needs are there.
    fn has_constants(&self, task: TaskId) -> bool {
        self.invocations[&task].sets.iter().all(|&set| self.constants.is_resident(set))
    }

    /// Whether a cold invocation has all constants it needs, and its executors have not mapped all of them.
    fn waits_for_sight(&self, task: TaskId) -> bool {
        let invocation = &self.invocations[&task];
        invocation.claimed && self.is_unseeing(task) && self.has_constants(task)
    }

    fn unblock(&mut self) {
        (self.resident.blocked, self.resident.overtakes) = (None, 0);
    }

    /// Gives a cold invocation all that it needs, or nothing; takes it from those behind if it may, and spares what was in use a moment ago if it has to. Returns whether it got it.
    fn serve(&mut self, turn: Turn, takes: bool, spares: bool) -> bool {
        let (_, task) = turn;
        if self.invocation(task).failure.is_some() {
            return true;
        }
        if !self.invocation(task).claimed {
            self.claim(task);
        }
        let sets = self.invocation(task).sets.clone();
        let has_room = self.resident.loading.len() < LOADS_MAX || turn.0 == Class::RealTime;
        let victims = if spares { Victims::Cool } else { Victims::All };
        let may_hold = has_room && (!spares || self.fits_beside_warm(task));
        let held = sets.iter().all(|&set| {
            self.constants.state(set) != SetState::Away
                || (may_hold && self.until_room(turn, takes, |worker| worker.hold(set, victims).then_some(())).is_some())
        });
        if !held {
            self.invocation(task).claimed = false;
            self.unclaim(&sets);
            return false;
        }
        self.charge(task);
        if !self.has_constants(task) || self.is_unseeing(task) {
            return true;
        }
        if self.invocation(task).short {
            let Some(instances) = self.until_room(turn, takes, |worker| worker.obtain_all(task)) else {
                self.invocation(task).claimed = false;
                self.unclaim(&sets);
                return false;
            };
            self.invocation(task).instances = instances;
        }
        self.resident.cold.remove(&turn);
        let before = self.actions.len();
        self.tell(Event::TaskReady { task });
        self.note_preemptions(task, before);
        true
    }

    /// Gives the first cold invocation what it needs on a device that is empty but for that: where nothing runs and yet its memory is not to be had, it is in pieces.
    fn serve_afresh(&mut self, turn: Turn) -> bool {
        while self.take_from_behind(turn, None) || self.reclaim_one(Victims::All).is_some() {}
        self.serve(turn, true, false)
    }

    /// Tries something that takes memory; where it may, takes from those behind until it succeeds.
    pub(super) fn until_room<T>(&mut self, turn: Turn, takes: bool, attempt: impl Fn(&mut Worker) -> Option<T>) -> Option<T> {
        loop {
            if let Some(success) = attempt(self) {
                return Some(success);
            }
            if !takes || !self.take_from_behind(turn, None) {
                return None;
            }
        }
    }

    /// Makes the last of those cold that are not running and come after a turn, of anybody's or of a tenant's. Returns whether there was one.
    pub(super) fn take_from_behind(&mut self, turn: Turn, tenant: Option<&Tenant>) -> bool {
        let is_meant = |invocation: &Invocation| tenant.is_none_or(|tenant| invocation.submission.chain.tenant() == tenant);
        let holds = self.invocations.iter().filter(|(_, invocation)| invocation.claimed && !invocation.prepared && is_meant(invocation));
        let last = holds.map(|(&task, invocation)| (invocation.submission.class, task)).filter(|&other| other > turn).max();
        last.inspect(|&(_, task)| self.make_cold(task)).is_some()
    }

    // Sets.

    /// Gives every constant of a set its place, at the cost of what nobody claims, and has it loaded. Returns whether there was memory for all of them.
    fn hold(&mut self, set: ItemId, victims: Victims) -> bool {
        self.constants.hold(set);
        let homeless = self.constants.homeless(set);
        let wanted: u64 = homeless.iter().map(|(_, bytes)| bytes).sum();
        self.settle(set, wanted <= self.obtainable_bytes(), |worker, bytes| worker.allocate(Purpose::Constant, bytes, victims))
    }

    /// The same where that costs nothing.
    pub(super) fn hold_if_free(&mut self, set: ItemId) -> bool {
        self.constants.hold(set);
        let wanted: u64 = self.constants.homeless(set).iter().map(|(_, bytes)| bytes).sum();
        self.settle(set, wanted <= self.memory.free_bytes(), |worker, bytes| worker.memory.allocate(Purpose::Constant, bytes))
    }

    fn settle(&mut self, set: ItemId, is_possible: bool, allocate: impl Fn(&mut Worker, u64) -> Option<Allocation>) -> bool {
        let homeless = if is_possible { self.constants.homeless(set) } else { Vec::new() };
        let mut refusal = None;
        let placed = is_possible
            && homeless.into_iter().all(|(id, bytes)| {
                let Some(place) = allocate(self, bytes) else { return false };
                let place = self.reserve_constant(place).map_err(|error| refusal = Some(error));
                place.map(|place| self.constants.place(id, place)).is_ok()
            });
        if placed {
            self.show_set(set);
            let (bundle, ranges) = self.constants.source(set);
            let staged = self.resident.stager.stage(bundle, ranges, self.constants.class(set) == Class::RealTime);
            self.resident.loading.push((set, staged));
        } else {
            self.let_go(set);
        }
        if let Some(error) = refusal {
            self.fail_loading(set, &error.to_string());
        }
        placed
    }

    /// Lets go of a set that is held; it is charged to nobody any more.
    fn let_go(&mut self, set: ItemId) {
        let freed = self.constants.let_go(set);
        self.free_constants(freed);
        self.quotas.forget(set);
    }

    /// What could be had at the cost of what nobody claims. Sets that share constants are counted as if they did not.
    pub(super) fn obtainable_bytes(&self) -> u64 {
        let unclaimed = self.resident.loading.iter().map(|(set, _)| *set).filter(|&set| !self.constants.is_claimed(set));
        let unclaimed: u64 = unclaimed.map(|set| self.constants.set_bytes(set)).sum();
        self.memory.free_bytes()
            + self.constants.leftover_bytes()
            + self.idle_bytes()
            + self.resident.residency.reclaimable_bytes()
            + unclaimed
    }

    /// Takes a set that nobody claims off the device; `None` if there is none. Its memory is reclaimed piece by piece.
    pub(super) fn evict_one(&mut self, victims: Victims) -> Option<()> {
        if let Some(&(set, _)) = self.resident.loading.iter().find(|(set, _)| !self.constants.is_claimed(*set)) {
            self.cancel_loading(set);
            return Some(());
        }
        let (residency, now) = (&mut self.resident.residency, clock::now());
        let victims = match victims {
            Victims::All => residency.reclaim(now, 1).ok()?,
            Victims::Cool => vec![residency.reclaim_cool(now)?],
        };
        victims.into_iter().for_each(|set| self.evicted(set));
        Some(())
    }

    /// A set had to go.
    pub(super) fn evicted(&mut self, set: ItemId) {
        let bytes = self.constants.set_bytes(set);
        self.let_go(set);
        self.bills_are_due();
        self.resident.count(set, |counters| {
            counters.evictions += 1;
            counters.evicted_bytes += bytes;
        });
        for loaded in self.functions.values().filter(|loaded| loaded.membership.set == set) {
            self.accounts.of(loaded.own_account()).reclaims += 1;
        }
    }

    pub(super) fn cancel_loading(&mut self, set: ItemId) {
        self.resident.loading.retain(|(other, _)| *other != set);
        if matches!(self.constants.state(set), SetState::Loading { .. }) {
            self.let_go(set);
        }
    }

    /// Where the device lost all constants, none is there any more, whoever claims it: what waits is cold until they have come again, and what runs has lost its memory too and is about to
    /// fail. Returns whether that happened.
    pub(super) fn take_constants_lost(&mut self) -> bool {
        if self.lost.is_some() || !self.device.take_constants_lost() {
            return false;
        }
        let waiting = self.invocations.iter().filter(|(_, invocation)| invocation.claimed && !invocation.prepared).map(|(&task, _)| task);
        waiting.collect::<Vec<_>>().into_iter().for_each(|task| self.make_cold(task));
        for set in self.constants.held() {
            if self.resident.residency.contains(set) {
                self.resident.residency.lose(set);
            }
            self.cancel_loading(set);
            self.let_go(set);
        }
        while let Some(place) = self.constants.reclaim_leftover() {
            self.free_constants([place]);
        }
        self.bills_are_due();
        self.serve_cold();
        self.act();
        true
    }

    /// Writes the next piece of a set that is being loaded, of the most urgent one whose bytes are in memory. Returns whether there was one.
    pub(super) fn advance_loading(&mut self) -> bool {
        if self.device.is_away() {
            return false;
        }
        for (set, task) in self.loading_by_urgency() {
            if self.lost.is_some() {
                self.cancel_loading(set);
                return true;
            }
            let staged = self.resident.loading.iter().find(|(other, _)| *other == set).map_or(0, |(_, staged)| staged.end());
            if let Some(chunk) = self.constants.next_chunk(set, LOAD_CHUNK_BYTES, staged) {
                self.write_chunk(set, task, &chunk);
            } else if self.constants.is_resident(set) {
                self.loaded(set);
            } else {
                continue;
            }
            self.act();
            return true;
        }
        false
    }

    fn write_chunk(&mut self, set: ItemId, task: Option<TaskId>, chunk: &Chunk) {
        let begin = clock::now();
        let bytes = chunk.from.len() as u64;
        let answer = self.device.write(chunk.to, &chunk.bundle.weights()[chunk.from.clone()]);
        match self.check(answer) {
            Ok(()) => {}
            // With all others, of which will be heard.
            Err(DeviceError::DomainLost(_)) => return,
            Err(error) => return self.fail_loading(set, &error.to_string()),
        }
        let ns_per_byte = clock::now().0.saturating_sub(begin.0) as f64 / bytes.max(1) as f64;
        // A small piece says little of how long large ones take.
        let weight = bytes as f64 / LOAD_CHUNK_BYTES as f64 / 16.0;
        self.resident.ns_per_byte += (ns_per_byte - self.resident.ns_per_byte) * weight;
        self.resident.count(set, |counters| counters.loaded_bytes += bytes);
        // What is loaded with its function is billed with it.
        if let Some(account) = task.and_then(|task| self.account_for(task, set)) {
            self.accounts.of(account).written_bytes += bytes;
        }
    }

    /// The sets that are being loaded, those first for which the first invocations wait; with the first invocation that does.
    fn loading_by_urgency(&self) -> Vec<(ItemId, Option<TaskId>)> {
        if self.resident.loading.is_empty() {
            return Vec::new();
        }
        let is_loading = |set: &ItemId| self.resident.loading.iter().any(|(other, _)| other == set);
        let mut order: Vec<(ItemId, Option<TaskId>)> = Vec::new();
        for (_, task) in &self.resident.cold {
            let Some(invocation) = self.invocations.get(task).filter(|invocation| invocation.claimed) else { continue };
            for set in invocation.sets.iter().filter(|set| is_loading(set)) {
                if order.iter().all(|(other, _)| other != set) {
                    order.push((*set, Some(*task)));
                }
            }
            if order.len() == self.resident.loading.len() {
                break;
            }
        }
        let rest = self.resident.loading.iter().map(|(set, _)| *set).filter(|set| order.iter().all(|(other, _)| other != set));
        let rest: Vec<_> = rest.map(|set| (set, None)).collect();
        order.extend(rest);
        order
    }

    /// The bytes of constants have moved: they are divided anew before anybody looks.
    fn bills_are_due(&mut self) {
        self.resident.bills_due = true;
    }

    pub(super) fn settle_bills(&mut self) {
        if std::mem::take(&mut self.resident.bills_due) {
            self.bill_constants();
        }
    }

    /// How long it takes to load so many bytes, by those loaded lately.
    pub(super) fn reload_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.resident.ns_per_byte) as u64
    }

    fn loaded(&mut self, set: ItemId) {
        let from_disk = self.resident.loading.extract_if(.., |(other, _)| *other == set).any(|(_, staged)| staged.was_on_disk());
        let bytes = self.constants.set_bytes(set);
        let reload_ns = self.reload_ns(bytes);
        self.resident.residency.add(clock::now(), set, &ItemFacts { bytes, reload_ns, class: self.constants.class(set) });
        self.resident.count(set, |counters| {
            counters.loads += 1;
            counters.disk_loads += u64::from(from_disk);
        });
        self.note_arrival(set, from_disk);
        self.bills_are_due();
        if self.constants.is_claimed(set) {
            self.resident.residency.pin(set);
        }
        self.serve_cold();
    }

    /// A set has come, maybe from disk, and with it what those had waited for who found it missing.
    fn note_arrival(&mut self, set: ItemId, from_disk: bool) {
        let waiting: Vec<TaskId> = self.resident.cold.iter().map(|(_, task)| *task).collect();
        for task in waiting {
            let missing = &mut self.invocation(task).missing;
            let Some(at) = missing.iter().position(|other| *other == set) else { continue };
            missing.swap_remove(at);
            if let Some(account) = self.account_for(task, set).filter(|_| from_disk) {
                self.accounts.of(account).disk_cold_starts += 1;
            }
        }
    }

    /// The device does not take a set's constants: whoever waits for them fails.
    fn fail_loading(&mut self, set: ItemId, why: &str) {
        let waiting: Vec<TaskId> = self.resident.cold.iter().map(|(_, task)| *task).collect();
        for task in waiting {
            if self.invocations.get(&task).is_some_and(|invocation| invocation.failure.is_none() && invocation.sets.contains(&set)) {
                self.fail(task, InvokeError::Device(format!("the constants cannot be loaded: {why}")));
            }
        }
        self.cancel_loading(set);
    }

    /// A function is gone.
    pub(super) fn leave_set(&mut self, set: ItemId) {
        if let Some(freed) = self.constants.leave(set) {
            self.free_constants(freed);
            self.quotas.forget(set);
            self.resident.loading.retain(|(other, _)| *other != set);
            self.resident.counters.remove(&set);
            self.resident.residency.forget(set);
        }
    }

    /// Whether an invocation waits for constants or memory.
    pub(super) fn is_cold(&self, turn: Turn) -> bool {
        self.resident.cold.contains(&turn)
    }

    /// How many invocations wait for constants or memory.
    pub(super) fn cold_count(&self) -> usize {
        self.resident.cold.len()
    }
}
