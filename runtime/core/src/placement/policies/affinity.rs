//! Fair queueing with affinity, as in KaaS's worker pool.

use super::Policy;
use super::heads::{ByGroup, Heads};
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::id_set::{DeviceSet, FunctionSet};
use crate::placement::id_table::IdTable;
use crate::placement::requests::Order;
use crate::placement::state::{Function, State};
use crate::placement::{FunctionId, GroupId};

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
    index: Index,
    dispatches: u64,
    /// The highest virtual time at which a group was dispatched.
    base: u64,
    /// Devices with a free slot.
    free: DeviceSet,
    /// Whether weights of groups may have changed since the index was updated.
    changed: bool,
    /// The group that was dispatched last, until the index is updated.
    ran: Option<GroupId>,
}

/// The keys of the first functions of each group and class.
#[derive(Default)]
struct Index {
    /// By class and by the key that they have on a device that does not hold them.
    elsewhere: Heads<ClassId, Key>,
    /// Their classes, and the keys that they have on a device that holds them.
    holding: IdTable<FunctionId, (ClassId, Key)>,
    /// The functions of the two.
    members: FunctionSet,
    clocks: IdTable<GroupId, Clock>,
}

/// Virtual time of a group after its next request, its last run, and the order of the request.
type Key = (u64, u64, Order);

#[derive(Clone, Copy, Default)]
struct Clock {
    virtual_time: u64,
    last_run: u64,
}

/// The virtual time that a request of a function adds to its group.
fn added(state: &State, function: &Function, is_resident: bool) -> u64 {
    let weight = state.groups.get(function.group).map_or(1, |group| u64::from(group.weight));
    let factor = if is_resident { 1 } else { ELSEWHERE };
    (function.shortest_service().max(1) / weight.max(1)).saturating_mul(factor)
}

impl Index {
    fn key(&self, state: &State, function: &Function, order: Order, is_resident: bool) -> Key {
        let clock = self.clocks.get(function.group).copied().unwrap_or_default();
        (clock.virtual_time.saturating_add(added(state, function, is_resident)), clock.last_run, order)
    }

    /// Adds or updates the first function of a group and class.
    fn set(&mut self, state: &State, class: ClassId, order: Order, id: FunctionId) {
        let function = state.function(id);
        self.holding.insert(id, (class, self.key(state, function, order, true)));
        self.elsewhere.set(id, Some((class, self.key(state, function, order, false))));
        self.members.set(id, true);
    }

    /// Removes a function that is no longer the first one.
    fn remove(&mut self, function: FunctionId) {
        self.holding.remove(function);
        self.elsewhere.set(function, None);
        self.members.set(function, false);
    }
}

impl Affinity {
    /// A free device for the function, preferably one that holds it.
    fn device(state: &State, function: FunctionId) -> Option<DeviceId> {
        let free = state.free(function);
        state.function(function).resident.both(free).next().or_else(|| free.first_from(state.cursor))
    }

    fn update_group(&mut self, state: &State, group: GroupId) {
        for (class, order, function) in self.heads.of_group(group) {
            self.index.set(state, class, order, function);
        }
    }

    /// The next function, by examining the first function of every group and class.
    fn scanned(&self, state: &State) -> Option<FunctionId> {
        let candidates = self.heads.firsts().filter_map(|(_, _, order, id)| {
            let device = Affinity::device(state, id)?;
            let function = state.function(id);
            Some((self.index.key(state, function, order, function.resident.contains(device)), id))
        });
        candidates.min().map(|(_, function)| function)
    }

    /// The next function, by examining the functions on the free devices, and the first function of
    /// each class that would run elsewhere. A function that is resident on a free device has a
    /// lower key there than elsewhere, so the lowest of these keys is the lowest of all.
    fn indexed(&self, state: &State) -> Option<FunctionId> {
        let elsewhere = self.index.elsewhere.firsts();
        let elsewhere = elsewhere.filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let mut best = elsewhere.map(|(_, key, function)| (key, function)).min();
        for device in self.free.iter() {
            best = self.best_on(state, device, best);
        }
        best.map(|(_, function)| function)
    }

    /// The best function that is resident on a device, if it is better than the best one so far.
    fn best_on(
        &self,
        state: &State,
        device: DeviceId,
        mut best: Option<(Key, FunctionId)>,
    ) -> Option<(Key, FunctionId)> {
        // One comparison tells for most functions that their key is higher than the best one.
        let lead = |key: &Key| u128::from(key.0) << 64 | u128::from(key.1);
        let mut bound = best.map_or(u128::MAX, |(key, _)| lead(&key));
        state.member(device).resident.for_each_of_both(&self.index.members, |function| {
            let Some((class, key)) = self.index.holding.get(function).filter(|(_, key)| lead(key) <= bound) else {
                return;
            };
            let is_better = best.is_none_or(|best| (*key, function) < best);
            if is_better && state.classes.get(*class).free.contains(device) {
                (bound, best) = (lead(key), Some((*key, function)));
            }
        });
        best
    }
}

impl Policy for Affinity {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let ran = self.ran.take();
        for change in self.heads.update(state, function).into_iter().flatten() {
            let first = change.first.map(|(_, function)| function);
            if let Some(former) = change.before.filter(|former| Some(*former) != first) {
                self.index.remove(former);
            }
            if let Some((order, first)) = change.first.filter(|_| ran != Some(change.group)) {
                self.index.set(state, change.class, order, first);
            }
        }
        if let Some(group) = ran {
            self.update_group(state, group);
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
        let clock = self.index.clocks.get_or_default(id);
        if group.waiting <= 1 && group.in_flight == 0 && clock.virtual_time < self.base {
            clock.virtual_time = self.base;
            self.update_group(state, id);
        }
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        if std::mem::take(&mut self.changed) {
            for (_, class, order, function) in self.heads.firsts() {
                self.index.set(state, class, order, function);
            }
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

    /// The index is updated once the request has left the queue.
    fn dispatched(&mut self, _now: Nanos, state: &State, id: FunctionId, device: DeviceId) {
        let function = state.function(id);
        self.dispatches += 1;
        let clock = self.index.clocks.get_or_default(function.group);
        self.base = self.base.max(clock.virtual_time);
        let added = added(state, function, function.resident.contains(device));
        clock.virtual_time = clock.virtual_time.saturating_add(added);
        clock.last_run = self.dispatches;
        if self.index.clocks.len() > 2 * state.groups.len() {
            self.index.clocks.retain(|group| state.groups.contains(group));
        }
        self.ran = Some(function.group);
    }
}
