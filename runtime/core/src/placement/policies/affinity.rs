//! Fair queueing with affinity, as in KaaS's worker pool.

use super::Policy;
use super::heads::{ByGroup, Heads};
use super::srtf::shortest_service;
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::id_set::DeviceSet;
use crate::placement::state::{Order, State};
use crate::placement::{FunctionId, GroupId};
use std::collections::BTreeMap;

/// The factor for device time on a device that does not hold the function.
const ELSEWHERE: u64 = 10;

/// Each group has a virtual time: the expected device time of its requests so far, divided by its
/// weight. Requests on devices that do not hold their function count tenfold. The next group is the
/// one whose virtual time would be lowest after its next request; of equal ones, the one that ran
/// longest ago. A group that was idle starts at least at the highest virtual time at which a group
/// was dispatched.
#[derive(Default)]
pub(super) struct Affinity {
    heads: ByGroup,
    /// The parts of `heads` by class and by the key that they have on a device that does not hold
    /// their first function.
    elsewhere: Heads<ClassId, (Key, FunctionId), (GroupId, ClassId)>,
    clocks: BTreeMap<GroupId, Clock>,
    dispatches: u64,
    /// The highest virtual time at which a group was dispatched.
    base: u64,
    /// Devices with a free slot.
    free: DeviceSet,
    /// Whether weights of groups may have changed since `elsewhere` was updated.
    changed: bool,
}

/// Virtual time of a group after its next request, its last run, and the order of the request.
type Key = (u64, u64, Order);

#[derive(Clone, Copy, Default)]
struct Clock {
    virtual_time: u64,
    last_run: u64,
}

impl Affinity {
    /// The virtual time that a request of a function adds to its group.
    fn added(state: &State, function: FunctionId, is_resident: bool) -> u64 {
        let weight = state.groups.get(state.function(function).group).map_or(1, |group| u64::from(group.weight));
        let factor = if is_resident { 1 } else { ELSEWHERE };
        (shortest_service(state, function).max(1) / weight.max(1)).saturating_mul(factor)
    }

    fn key(&self, state: &State, function: FunctionId, order: Order, is_resident: bool) -> Key {
        let clock = self.clocks.get(&state.function(function).group).copied().unwrap_or_default();
        let added = Affinity::added(state, function, is_resident);
        (clock.virtual_time.saturating_add(added), clock.last_run, order)
    }

    /// A free device for the function, preferably one that holds it.
    fn device(state: &State, function: FunctionId) -> Option<DeviceId> {
        let free = state.free(function);
        state.function(function).resident.both(free).next().or_else(|| free.first_from(state.cursor))
    }

    /// Updates `elsewhere` for a part of `heads`.
    fn update(&mut self, state: &State, part: (GroupId, ClassId)) {
        let first = self.heads.part(part).next();
        let entry = first.map(|(order, function)| (part.1, (self.key(state, function, order, false), function)));
        self.elsewhere.set(part, entry);
    }

    fn update_group(&mut self, state: &State, group: GroupId) {
        let classes: Vec<ClassId> = self.heads.of_group(group).map(|(class, ..)| class).collect();
        classes.into_iter().for_each(|class| self.update(state, (group, class)));
    }

    /// The next function, by examining the first function of every part.
    fn scanned(&self, state: &State) -> Option<FunctionId> {
        let candidates = self.heads.firsts().filter_map(|(_, order, function)| {
            let device = Affinity::device(state, function)?;
            let is_resident = state.function(function).resident.contains(device);
            Some((self.key(state, function, order, is_resident), function))
        });
        candidates.min().map(|(_, function)| function)
    }

    /// The next function, by examining the functions on the free devices, and the first function of
    /// each class that would run elsewhere. A function that is resident on a free device has a
    /// lower key there than elsewhere, so the lowest of these keys is the lowest of all.
    fn indexed(&self, state: &State) -> Option<FunctionId> {
        let elsewhere = self.elsewhere.firsts().filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let elsewhere = elsewhere.map(|(_, entry, _)| entry);
        let resident = self.free.iter().flat_map(|device| {
            let on_device = state.member(device).resident.iter();
            on_device.filter_map(move |function| {
                let part = self.heads.part_of(function)?;
                let (order, first) = self.heads.part(part).next()?;
                let may_run = first == function && state.classes.get(part.1).free.contains(device);
                may_run.then(|| (self.key(state, first, order, true), first))
            })
        });
        elsewhere.chain(resident).min().map(|(_, function)| function)
    }
}

impl Policy for Affinity {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        for part in self.heads.update_group(state, function).into_iter().flatten() {
            self.update(state, part);
        }
    }

    fn device_changed(&mut self, state: &State, device: DeviceId) {
        self.free.set(device, state.device(device).is_some_and(|device| device.has_slot()));
    }

    fn weights_changed(&mut self, _state: &State) {
        self.changed = true;
    }

    fn arrived(&mut self, state: &State, function: FunctionId) {
        let id = state.function(function).group;
        let group = state.groups.get(id).copied().unwrap_or_default();
        let clock = self.clocks.entry(id).or_default();
        if group.waiting <= 1 && group.in_flight == 0 && clock.virtual_time < self.base {
            clock.virtual_time = self.base;
            self.update_group(state, id);
        }
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        if std::mem::take(&mut self.changed) {
            let parts: Vec<(GroupId, ClassId)> = self.heads.firsts().map(|(part, ..)| part).collect();
            parts.into_iter().for_each(|part| self.update(state, part));
        }
        // If many devices are free, few requests wait.
        let mut left = self.heads.parts();
        let has_few_residents = self.free.iter().all(|device| {
            let residents = state.member(device).resident.len() + 1;
            left = left.saturating_sub(residents);
            left > 0
        });
        let found = if has_few_residents { self.indexed(state) } else { self.scanned(state) };
        #[cfg(test)]
        assert_eq!((found, found), (self.scanned(state), self.indexed(state)), "the index finds what a scan finds");
        let function = found?;
        Some((function, Affinity::device(state, function)?))
    }

    fn dispatched(&mut self, _now: Nanos, state: &State, function: FunctionId, device: DeviceId) {
        let group = state.function(function).group;
        let added = Affinity::added(state, function, state.function(function).resident.contains(device));
        self.dispatches += 1;
        let clock = self.clocks.entry(group).or_default();
        self.base = self.base.max(clock.virtual_time);
        clock.virtual_time = clock.virtual_time.saturating_add(added);
        clock.last_run = self.dispatches;
        if self.clocks.len() > 2 * state.groups.len() {
            self.clocks.retain(|group, _| state.groups.contains(*group));
        }
        self.update_group(state, group);
    }
}
