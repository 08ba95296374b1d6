//! Fixed fractions, as in KaaS's baseline with MPS percentages.

use super::Policy;
use super::heads::{ByGroup, Heads};
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::state::{Order, State};
use crate::placement::{FunctionId, GroupId};

/// Each group may use its share of all slots, by weight and at least one slot. It never gets more,
/// even if other groups are idle. Among the groups below their share, the oldest request runs,
/// preferably on a free device that holds its function.
#[derive(Default)]
pub(super) struct StaticShares {
    heads: ByGroup,
    /// The parts of `heads` whose group is below its share, by class and their first request.
    ready: Heads<ClassId, (Order, FunctionId), (GroupId, ClassId)>,
    /// Slots of each active device.
    slots: Vec<u32>,
    total: u64,
    /// The sum of the weights of all groups with functions.
    weights: u64,
    /// Whether the shares of all groups may have changed since `ready` was updated.
    changed: bool,
}

impl StaticShares {
    fn is_below_share(&self, state: &State, id: GroupId) -> bool {
        let Some(group) = state.groups.get(id) else { return false };
        let share = self.total * u64::from(group.weight) / self.weights.max(1);
        u64::from(group.in_flight) < share.max(1)
    }

    /// Updates `ready` for a part of `heads`.
    fn update(&mut self, state: &State, part: (GroupId, ClassId)) {
        let entry = self.heads.part(part).next().filter(|_| self.is_below_share(state, part.0));
        self.ready.set(part, entry.map(|first| (part.1, first)));
    }

    fn update_all(&mut self, state: &State) {
        let groups = state.groups.iter().map(|(_, group)| group).filter(|group| group.functions > 0);
        self.weights = groups.map(|group| u64::from(group.weight)).sum();
        let parts: Vec<(GroupId, ClassId)> = self.heads.firsts().map(|(part, ..)| part).collect();
        parts.into_iter().for_each(|part| self.update(state, part));
    }

    /// The function to run next, found without `ready`.
    #[cfg(test)]
    fn scanned(&self, state: &State) -> Option<FunctionId> {
        let may_run = |part: &(GroupId, ClassId)| {
            self.is_below_share(state, part.0) && !state.classes.get(part.1).free.is_empty()
        };
        let parts = self.heads.firsts().filter(|(part, ..)| may_run(part));
        parts.min_by_key(|(_, order, _)| *order).map(|(.., function)| function)
    }
}

impl Policy for StaticShares {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        for part in self.heads.update_group(state, function).into_iter().flatten() {
            self.update(state, part);
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
        let classes: Vec<ClassId> = self.heads.of_group(group).map(|(class, ..)| class).collect();
        classes.into_iter().for_each(|class| self.update(state, (group, class)));
    }

    fn weights_changed(&mut self, _state: &State) {
        self.changed = true;
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        if std::mem::take(&mut self.changed) {
            self.update_all(state);
        }
        let with_free = self.ready.firsts().filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let found = with_free.min_by_key(|(_, (order, _), _)| *order).map(|(_, (_, function), _)| function);
        #[cfg(test)]
        assert_eq!(found, self.scanned(state), "the index finds what a scan finds");
        let function = found?;
        let free = state.free(function);
        let warm = state.function(function).resident.both(free).next();
        Some((function, warm.or_else(|| free.first_from(state.cursor))?))
    }
}
