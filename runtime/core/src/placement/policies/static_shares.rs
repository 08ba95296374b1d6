//! Fixed fractions, as in KaaS's baseline with MPS percentages.

use super::Policy;
use super::heads::{ByGroup, Fifo};
use crate::ids::{DeviceId, Nanos};
use crate::placement::id_table::IdTable;
use crate::placement::state::State;
use crate::placement::{FunctionId, GroupId};

/// Each group may use its share of all slots, by weight and at least one slot. It never gets more,
/// even if other groups are idle. Among the groups below their share, the oldest request runs,
/// preferably on a free device that holds its function.
#[derive(Default)]
pub(super) struct StaticShares {
    heads: ByGroup,
    /// The first function of each group and class whose group is below its share, in the order of
    /// their requests.
    ready: Fifo,
    shares: IdTable<GroupId, Share>,
    /// Slots of each active device.
    slots: Vec<u32>,
    total: u64,
    /// Whether the shares of all groups may have changed since they were updated.
    changed: bool,
}

/// The share of a group.
#[derive(Clone, Copy, Default)]
struct Share {
    /// Requests that it may have in flight.
    slots: u64,
    /// Whether it has fewer in flight.
    is_below: bool,
}

impl StaticShares {
    fn is_below_share(&self, group: GroupId) -> bool {
        self.shares.get(group).is_some_and(|share| share.is_below)
    }

    /// Updates all shares, and `ready`.
    fn update_all(&mut self, state: &State) {
        let groups = || state.groups.iter().filter(|(_, group)| group.functions > 0);
        let weights: u64 = groups().map(|(_, group)| u64::from(group.weight)).sum();
        self.shares = IdTable::default();
        for (id, group) in groups() {
            let slots = (self.total * u64::from(group.weight) / weights.max(1)).max(1);
            self.shares.insert(id, Share { slots, is_below: u64::from(group.in_flight) < slots });
        }
        for (group, class, order, function) in self.heads.firsts() {
            let entry = self.is_below_share(group).then_some((class, order));
            self.ready.set(function, entry);
        }
    }

    /// The function to run next, found without `ready`.
    #[cfg(test)]
    fn scanned(&self, state: &State) -> Option<FunctionId> {
        let weights = state.groups.iter().map(|(_, group)| group).filter(|group| group.functions > 0);
        let weights: u64 = weights.map(|group| u64::from(group.weight)).sum();
        let is_below_share = |id: GroupId| {
            state.groups.get(id).is_some_and(|group| {
                let share = self.total * u64::from(group.weight) / weights.max(1);
                u64::from(group.in_flight) < share.max(1)
            })
        };
        let parts = self.heads.firsts();
        let may_run =
            parts.filter(|(group, class, ..)| is_below_share(*group) && !state.classes.get(*class).free.is_empty());
        may_run.min_by_key(|(_, _, order, _)| *order).map(|(.., function)| function)
    }
}

impl Policy for StaticShares {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        for change in self.heads.update(state, function).into_iter().flatten() {
            let first = change.first.map(|(_, function)| function);
            if let Some(former) = change.before.filter(|former| Some(*former) != first) {
                self.ready.set(former, None);
            }
            if let Some((order, first)) = change.first {
                let entry = self.is_below_share(change.group).then_some((change.class, order));
                self.ready.set(first, entry);
            }
        }
    }

    fn device_changed(&mut self, state: &State, device: DeviceId) {
        let index = usize::from(device.0);
        if index >= self.slots.len() {
            self.slots.resize(index + 1, 0);
        }
        let slots = state.device(device).filter(|device| !device.draining).map_or(0, |device| device.spec.slots);
        let before = std::mem::replace(&mut self.slots[index], slots);
        self.total = self.total + u64::from(slots) - u64::from(before);
        self.changed |= slots != before;
    }

    fn group_changed(&mut self, state: &State, group: GroupId) {
        let (Some(known), Some(share)) = (state.groups.get(group), self.shares.get_mut(group)) else { return };
        let is_below = u64::from(known.in_flight) < share.slots;
        if std::mem::replace(&mut share.is_below, is_below) == is_below {
            return;
        }
        for (class, order, function) in self.heads.of_group(group) {
            self.ready.set(function, is_below.then_some((class, order)));
        }
    }

    fn weights_changed(&mut self, _state: &State) {
        self.changed = true;
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        if std::mem::take(&mut self.changed) {
            self.update_all(state);
        }
        let with_free = self.ready.firsts().filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let found = with_free.min_by_key(|(_, order, _)| *order).map(|(.., function)| function);
        #[cfg(test)]
        assert_eq!(found, self.scanned(state), "the index finds what a scan finds");
        let function = found?;
        let free = state.free(function);
        let warm = state.function(function).resident.both(free).next();
        Some((function, warm.or_else(|| free.first_from(state.cursor))?))
    }
}
