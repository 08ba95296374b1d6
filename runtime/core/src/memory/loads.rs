//! Residency: loads constant sets onto the device and reclaims them.

use super::constants::Chunk;
use super::event::Action;
use super::ledger::Purpose;
use super::limits::LOAD_CHUNK_BYTES;
use super::min_residency::Victims;
use super::spec::{FunctionId, Place, Turn};
use super::{Memory, SetState};
use crate::ids::{Class, TaskId};
use crate::residency::{ItemFacts, ItemId};
use std::sync::Arc;

/// A set that is being loaded.
pub(super) struct Load {
    set: ItemId,
    /// Bytes before this offset in the weights are in host memory.
    staged: usize,
    /// Whether the outcome of [`Action::Reserve`] is still open.
    reserving: bool,
}

impl Memory {
    /// Assigns a place to every constant of a set, reclaiming unpinned memory, and starts loading
    /// it. Returns whether there was memory for all constants.
    pub(super) fn start_loading(&mut self, set: ItemId, victims: Victims) -> bool {
        self.constants.acquire(set);
        let wanted = self.unplaced_bytes(set);
        let is_possible = wanted <= self.obtainable_bytes();
        self.place_all(set, is_possible, |memory, bytes| memory.allocate(Purpose::Constant, bytes, victims))
    }

    /// Like [`Memory::start_loading`], but reclaims nothing.
    pub(super) fn start_loading_if_free(&mut self, set: ItemId) -> bool {
        self.constants.acquire(set);
        let is_possible = self.unplaced_bytes(set) <= self.ledger.free_bytes();
        self.place_all(set, is_possible, |memory, bytes| memory.ledger.allocate(Purpose::Constant, bytes))
    }

    fn unplaced_bytes(&self, set: ItemId) -> u64 {
        self.constants.unplaced(set).iter().map(|(_, bytes)| bytes).sum()
    }

    fn place_all(
        &mut self,
        set: ItemId,
        is_possible: bool,
        allocate: impl Fn(&mut Memory, u64) -> Option<Place>,
    ) -> bool {
        let unplaced = if is_possible { self.constants.unplaced(set) } else { Vec::new() };
        let mut places = Vec::with_capacity(unplaced.len());
        let placed = is_possible
            && unplaced.into_iter().all(|(id, bytes)| {
                let Some(place) = allocate(self, bytes) else { return false };
                self.constants.place(id, place);
                places.push(place);
                true
            });
        if !placed {
            // The places are not reserved on the device yet.
            let freed = self.constants.release(set);
            self.free_unreserved(freed, &places);
            self.quotas.forget(set);
            return false;
        }
        let generation = self.constants.generation(set);
        self.loading.push(Load { set, staged: 0, reserving: true });
        self.actions.push_back(Action::Reserve { set, generation, places });
        true
    }

    /// Frees places; those in `unreserved` were never reserved on the device.
    fn free_unreserved(&mut self, freed: Vec<Place>, unreserved: &[Place]) {
        let (unknown, known): (Vec<Place>, Vec<Place>) =
            freed.into_iter().partition(|place| unreserved.contains(place));
        unknown.into_iter().for_each(|place| self.ledger.free(place));
        self.free_constants(known);
    }

    /// Handles the outcome of [`Action::Reserve`].
    pub(super) fn reserved(&mut self, set: ItemId, generation: u64, refused: Option<(Vec<Place>, Arc<str>)>) {
        let is_current = self.constants.contains(set) && self.constants.generation(set) == generation;
        let load = self.loading.iter_mut().find(|load| load.set == set && load.reserving && is_current);
        match (load, refused) {
            (Some(load), None) => {
                load.reserving = false;
                let functions: Vec<_> = self.constants.functions(set).iter().copied().collect();
                for function in functions {
                    // A function that is being registered gets its constants mapped when it is
                    // loaded.
                    let Some(known) = self.functions.get(&function) else { continue };
                    self.actions.push_back(Action::MapConstants { function, tenant: known.tenant.clone() });
                }
                let (ranges, urgent) = (self.constants.missing(set), self.constants.class(set) == Class::RealTime);
                self.actions.push_back(Action::Stage { set, ranges, urgent });
            }
            (Some(_), Some((places, why))) => {
                let sets = self.constants.unplace(&places);
                places.into_iter().for_each(|place| self.ledger.free(place));
                sets.into_iter().for_each(|set| self.fail_loading(set, &why));
            }
            // The set was released meanwhile, and its places are about to be released too.
            (None, Some((places, _))) => {
                for place in places {
                    let release = self.actions.iter().position(|action| *action == Action::Release { place });
                    release.map(|at| self.actions.remove(at));
                }
            }
            (None, None) => {}
        }
    }

    /// Releases the constants of a set and removes all charges for it.
    fn release_set(&mut self, set: ItemId) {
        let freed = self.constants.release(set);
        self.free_constants(freed);
        self.quotas.forget(set);
    }

    /// Releases places that constants no longer need.
    pub(super) fn free_constants(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            self.actions.push_back(Action::Release { place });
            self.ledger.free(place);
        }
    }

    /// Bytes that are free or could be reclaimed from unpinned memory. Constants shared by several
    /// sets count for each of them.
    pub(super) fn obtainable_bytes(&self) -> u64 {
        let unpinned = self.loading.iter().map(|load| load.set).filter(|&set| !self.constants.is_pinned(set));
        let unpinned: u64 = unpinned.map(|set| self.constants.set_bytes(set)).sum();
        self.ledger.free_bytes()
            + self.constants.cached_bytes()
            + self.slots.idle_bytes()
            + self.residency.reclaimable_bytes()
            + unpinned
    }

    /// Reclaims an unpinned set; its constants are then cached and reclaimed one by one. Returns
    /// whether there was one.
    pub(super) fn reclaim_set(&mut self, victims: Victims) -> bool {
        if let Some(load) = self.loading.iter().find(|load| !self.constants.is_pinned(load.set)) {
            self.cancel_loading(load.set);
            return true;
        }
        let victims = match victims {
            Victims::All => self.residency.reclaim(self.now, 1).unwrap_or_default(),
            Victims::Cool => self.residency.reclaim_cool(self.now).into_iter().collect(),
        };
        let any = !victims.is_empty();
        victims.into_iter().for_each(|set| self.set_reclaimed(set));
        any
    }

    /// Loads the constants of a function, if there is memory that no set holds.
    pub(super) fn preload(&mut self, function: FunctionId) {
        let Some(known) = self.functions.get(&function) else { return };
        let (tenant, class, set) = (known.tenant.clone(), known.class, known.membership.set);
        if self.lost || self.constants.state(set) != SetState::Absent || !self.charge_load(&tenant, class, set) {
            return;
        }
        let wanted = self.unplaced_bytes(set);
        let room = self.ledger.free_bytes() + self.constants.cached_bytes();
        while wanted <= room && self.ledger.free_bytes() < self.unplaced_bytes(set) {
            let Some(place) = self.constants.reclaim_cached() else { break };
            self.free_constants([place]);
        }
        self.start_loading_if_free(set);
    }

    /// Reclaims the set of a function, unless an invocation needs it.
    pub(super) fn reclaim_function(&mut self, function: FunctionId) {
        let Some(known) = self.functions.get(&function) else { return };
        let set = known.membership.set;
        match self.constants.state(set) {
            _ if self.constants.is_pinned(set) => {}
            SetState::Absent => {}
            SetState::Loading { .. } => self.cancel_loading(set),
            SetState::Resident => {
                let reclaimed = self.residency.reclaim_one_of(self.now, std::iter::once(set));
                reclaimed.into_iter().for_each(|set| self.set_reclaimed(set));
            }
        }
    }

    /// Releases a set that was reclaimed.
    pub(super) fn set_reclaimed(&mut self, set: ItemId) {
        let bytes = self.constants.set_bytes(set);
        self.release_set(set);
        self.actions.push_back(Action::Reclaimed { set, bytes });
        self.actions.push_back(Action::ChargesChanged);
    }

    /// Stops loading a set.
    pub(super) fn cancel_loading(&mut self, set: ItemId) {
        self.drop_load(set);
        if matches!(self.constants.state(set), SetState::Loading { .. }) {
            self.release_set(set);
        }
    }

    pub(super) fn drop_load(&mut self, set: ItemId) {
        let count = self.loading.len();
        self.loading.retain(|load| load.set != set);
        if self.loading.len() < count {
            self.actions.push_back(Action::CancelStage { set });
        }
    }

    /// Handles the loss of all constants on the device, pinned or not. Waiting invocations are cold
    /// until their constants are loaded again; running ones have lost their memory too and are
    /// about to fail.
    pub(super) fn lose_constants(&mut self) {
        let waiting: Vec<Turn> = self.pinning.iter().copied().collect();
        waiting.into_iter().for_each(|(_, task)| self.make_cold(task));
        for set in self.constants.held() {
            if self.residency.contains(set) {
                self.residency.lose(set);
            }
            self.cancel_loading(set);
            self.release_set(set);
        }
        while let Some(place) = self.constants.reclaim_cached() {
            self.free_constants([place]);
        }
        self.actions.push_back(Action::ChargesChanged);
        self.serve_cold();
    }

    pub(super) fn note_staged(&mut self, set: ItemId, end: usize) {
        self.loading.iter_mut().filter(|load| load.set == set).for_each(|load| load.staged = end);
    }

    /// Writes the next chunk of a set: of the most urgent set that has bytes in host memory.
    pub(super) fn advance(&mut self) {
        for (set, task) in self.loading_by_urgency() {
            if self.lost {
                return self.cancel_loading(set);
            }
            let load = self.loading.iter().find(|load| load.set == set);
            let staged = load.filter(|load| !load.reserving).map_or(0, |load| load.staged);
            if let Some(Chunk { to, from }) = self.constants.next_chunk(set, LOAD_CHUNK_BYTES, staged) {
                return self.actions.push_back(Action::Write { set, task, to, from });
            } else if self.constants.is_resident(set) {
                return self.loaded(set);
            }
        }
    }

    /// Updates the estimated load time after a chunk was written.
    pub(super) fn note_written(&mut self, bytes: u64, took_ns: u64) {
        let ns_per_byte = took_ns as f64 / bytes.max(1) as f64;
        // A small chunk says little about the time per byte of large ones.
        let weight = bytes as f64 / LOAD_CHUNK_BYTES as f64 / 16.0;
        self.ns_per_byte += (ns_per_byte - self.ns_per_byte) * weight;
    }

    /// The sets that are being loaded, in the turns of the first invocations that wait for them,
    /// each with that invocation.
    fn loading_by_urgency(&self) -> Vec<(ItemId, Option<TaskId>)> {
        let first_of =
            |set: ItemId| self.constants.cold(set).iter().find(|(_, task)| self.invocations[task].pinned).copied();
        let mut order: Vec<(Option<Turn>, ItemId)> =
            self.loading.iter().map(|load| (first_of(load.set), load.set)).collect();
        // Sets of one invocation in its order; sets without a waiting invocation in the order of
        // loading.
        let within = |turn: Option<Turn>, set: ItemId| {
            turn.and_then(|(_, task)| self.invocations[&task].sets.iter().position(|other| *other == set))
        };
        order.sort_by_key(|&(turn, set)| (turn.is_none(), turn, within(turn, set)));
        order.into_iter().map(|(turn, set)| (set, turn.map(|(_, task)| task))).collect()
    }

    /// Estimated time to load `bytes` bytes, in nanoseconds, from recent loads.
    pub(super) fn reload_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.ns_per_byte) as u64
    }

    fn loaded(&mut self, set: ItemId) {
        self.loading.retain(|load| load.set != set);
        let bytes = self.constants.set_bytes(set);
        let facts = ItemFacts { bytes, reload_ns: self.reload_ns(bytes), class: self.constants.class(set) };
        self.residency.add(self.now, set, &facts);
        let waiting: Vec<TaskId> = self.constants.cold(set).iter().map(|(_, task)| *task).collect();
        let mut tasks = Vec::new();
        for task in waiting {
            let missing = &mut self.invocation_mut(task).missing;
            if let Some(at) = missing.iter().position(|other| *other == set) {
                missing.swap_remove(at);
                tasks.push(task);
            }
        }
        self.actions.push_back(Action::Loaded { set, tasks });
        self.actions.push_back(Action::ChargesChanged);
        if self.constants.is_pinned(set) {
            self.residency.pin(set);
        }
        self.serve_cold();
    }

    /// The device refused a set's constants: invocations that wait for them fail.
    pub(super) fn fail_loading(&mut self, set: ItemId, why: &Arc<str>) {
        if !self.constants.contains(set) {
            return;
        }
        let waiting: Vec<TaskId> = self.constants.cold(set).iter().map(|(_, task)| *task).collect();
        for task in waiting {
            if !std::mem::replace(&mut self.invocation_mut(task).ending, true) {
                self.actions.push_back(Action::Fail { task, why: Arc::clone(why) });
            }
        }
        self.cancel_loading(set);
    }
}
