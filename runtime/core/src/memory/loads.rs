//! Residency: loads constant sets onto the device and evicts them.

use super::constants::Chunk;
use super::event::{Action, Place, Turn};
use super::ledger::Purpose;
use super::limits::LOAD_CHUNK_BYTES;
use super::min_residency::Victims;
use super::{Memory, SetState};
use crate::ids::{Class, TaskId};
use crate::residency::{ItemFacts, ItemId};
use std::sync::Arc;

/// A set that is being loaded.
pub(super) struct Load {
    set: ItemId,
    /// Bytes in front of this offset in the weights are in host memory.
    staged: usize,
    /// The device has not yet said whether it has memory for all constants.
    reserving: bool,
}

impl Memory {
    /// Gives every constant of a set its place, at the cost of what nobody pins, and has it loaded.
    /// Returns whether there was memory for all of them.
    pub(super) fn hold(&mut self, set: ItemId, victims: Victims) -> bool {
        self.constants.hold(set);
        let wanted = self.unplaced_bytes(set);
        let is_possible = wanted <= self.obtainable_bytes();
        self.place_all(set, is_possible, |memory, bytes| memory.allocate(Purpose::Constant, bytes, victims))
    }

    /// The same where that costs nothing.
    pub(super) fn hold_if_free(&mut self, set: ItemId) -> bool {
        self.constants.hold(set);
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
            // None of them was reserved.
            let freed = self.constants.let_go(set);
            self.free_unreserved(freed, &places);
            self.quotas.forget(set);
            return false;
        }
        let generation = self.constants.generation(set);
        self.loading.push(Load { set, staged: 0, reserving: true });
        self.actions.push_back(Action::Reserve { set, generation, places });
        true
    }

    /// Frees places, of which the device knows nothing of some.
    fn free_unreserved(&mut self, freed: Vec<Place>, unreserved: &[Place]) {
        let (unknown, known): (Vec<Place>, Vec<Place>) =
            freed.into_iter().partition(|place| unreserved.contains(place));
        unknown.into_iter().for_each(|place| self.ledger.free(place));
        self.free_constants(known);
    }

    /// The device has memory for the constants of a set, or not for some.
    pub(super) fn reserved(&mut self, set: ItemId, generation: u64, refused: Option<(Vec<Place>, Arc<str>)>) {
        let is_current = self.constants.contains(set) && self.constants.generation(set) == generation;
        let load = self.loading.iter_mut().find(|load| load.set == set && load.reserving && is_current);
        match (load, refused) {
            (Some(load), None) => {
                load.reserving = false;
                let functions: Vec<_> = self.constants.functions(set).iter().copied().collect();
                for function in functions {
                    // A function that is being made known is shown its constants when it is.
                    let Some(known) = self.functions.get(&function) else { continue };
                    self.actions.push_back(Action::Show { function, tenant: known.tenant.clone() });
                }
                let (ranges, urgent) = (self.constants.missing(set), self.constants.class(set) == Class::RealTime);
                self.actions.push_back(Action::Stage { set, ranges, urgent });
            }
            (Some(_), Some((places, why))) => {
                let sets = self.constants.unplace(&places);
                places.into_iter().for_each(|place| self.ledger.free(place));
                sets.into_iter().for_each(|set| self.fail_loading(set, &why));
            }
            // It was let go meanwhile, and its places are about to be released.
            (None, Some((places, _))) => {
                for place in places {
                    let release = self.actions.iter().position(|action| *action == Action::Release { place });
                    release.map(|at| self.actions.remove(at));
                }
            }
            (None, None) => {}
        }
    }

    /// Lets go of a set that is held; it is charged to nobody any more.
    fn let_go(&mut self, set: ItemId) {
        let freed = self.constants.let_go(set);
        self.free_constants(freed);
        self.quotas.forget(set);
    }

    /// Gives back what constants had that nobody needs.
    pub(super) fn free_constants(&mut self, places: impl IntoIterator<Item = Place>) {
        for place in places {
            self.actions.push_back(Action::Release { place });
            self.ledger.free(place);
        }
    }

    /// What could be had at the cost of what nobody pins. Sets that share constants are counted as
    /// if they did not.
    pub(super) fn obtainable_bytes(&self) -> u64 {
        let unpinned = self.loading.iter().map(|load| load.set).filter(|&set| !self.constants.is_pinned(set));
        let unpinned: u64 = unpinned.map(|set| self.constants.set_bytes(set)).sum();
        self.ledger.free_bytes()
            + self.constants.leftover_bytes()
            + self.slots.idle_bytes()
            + self.residency.reclaimable_bytes()
            + unpinned
    }

    /// Takes a set that nobody pins off the device; its memory is reclaimed piece by piece. Returns
    /// whether there was one.
    pub(super) fn evict_one(&mut self, victims: Victims) -> bool {
        if let Some(load) = self.loading.iter().find(|load| !self.constants.is_pinned(load.set)) {
            self.cancel_loading(load.set);
            return true;
        }
        let victims = match victims {
            Victims::All => self.residency.reclaim(self.now, 1).unwrap_or_default(),
            Victims::Cool => self.residency.reclaim_cool(self.now).into_iter().collect(),
        };
        let any = !victims.is_empty();
        victims.into_iter().for_each(|set| self.evicted(set));
        any
    }

    /// A set had to go.
    pub(super) fn evicted(&mut self, set: ItemId) {
        let bytes = self.constants.set_bytes(set);
        self.let_go(set);
        self.actions.push_back(Action::Evicted { set, bytes });
        self.actions.push_back(Action::BillsDue);
    }

    /// Gives up loading a set.
    pub(super) fn cancel_loading(&mut self, set: ItemId) {
        self.drop_load(set);
        if matches!(self.constants.state(set), SetState::Loading { .. }) {
            self.let_go(set);
        }
    }

    pub(super) fn drop_load(&mut self, set: ItemId) {
        let count = self.loading.len();
        self.loading.retain(|load| load.set != set);
        if self.loading.len() < count {
            self.actions.push_back(Action::CancelStage { set });
        }
    }

    /// Where the device lost all constants, none is there any more, pinned or not: invocations that
    /// wait are cold until theirs are loaded again; those that run have lost their memory too
    /// and are about to fail.
    pub(super) fn lose_constants(&mut self) {
        let waiting: Vec<Turn> = self.pinning.iter().copied().collect();
        waiting.into_iter().for_each(|(_, task)| self.make_cold(task));
        for set in self.constants.held() {
            if self.residency.contains(set) {
                self.residency.lose(set);
            }
            self.cancel_loading(set);
            self.let_go(set);
        }
        while let Some(place) = self.constants.reclaim_leftover() {
            self.free_constants([place]);
        }
        self.actions.push_back(Action::BillsDue);
        self.serve_cold();
    }

    pub(super) fn note_staged(&mut self, set: ItemId, end: usize) {
        self.loading.iter_mut().filter(|load| load.set == set).for_each(|load| load.staged = end);
    }

    /// Writes the next piece of a set that is being loaded, of the most urgent one whose bytes are
    /// in memory.
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

    /// A piece was written.
    pub(super) fn note_written(&mut self, bytes: u64, took_ns: u64) {
        let ns_per_byte = took_ns as f64 / bytes.max(1) as f64;
        // A small piece says little of how long large ones take.
        let weight = bytes as f64 / LOAD_CHUNK_BYTES as f64 / 16.0;
        self.ns_per_byte += (ns_per_byte - self.ns_per_byte) * weight;
    }

    /// The sets that are being loaded, those first for which the first invocations wait; with the
    /// first invocation that does.
    fn loading_by_urgency(&self) -> Vec<(ItemId, Option<TaskId>)> {
        let first_of =
            |set: ItemId| self.constants.cold(set).iter().find(|(_, task)| self.invocations[task].pinned).copied();
        let mut order: Vec<(Option<Turn>, ItemId)> =
            self.loading.iter().map(|load| (first_of(load.set), load.set)).collect();
        // Sets of one invocation in its order, those of none in the order in which loading began.
        let within = |turn: Option<Turn>, set: ItemId| {
            turn.and_then(|(_, task)| self.invocations[&task].sets.iter().position(|other| *other == set))
        };
        order.sort_by_key(|&(turn, set)| (turn.is_none(), turn, within(turn, set)));
        order.into_iter().map(|(turn, set)| (set, turn.map(|(_, task)| task))).collect()
    }

    /// How long it takes to load so many bytes, by those loaded lately.
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
        self.actions.push_back(Action::BillsDue);
        if self.constants.is_pinned(set) {
            self.residency.pin(set);
        }
        self.serve_cold();
    }

    /// The device does not take a set's constants: invocations that wait for them fail.
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
