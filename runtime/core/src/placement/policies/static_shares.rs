//! Fixed fractions, as in KaaS's baseline with MPS percentages.

use super::Policy;
use super::heads::{Heads, head_of};
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::state::{Order, State};
use crate::placement::{FunctionId, GroupId, RequestId};

/// Each group may use its share of all slots, by weight and at least one slot. It never gets more,
/// even if other groups are idle. Among the groups below their share, the oldest request runs,
/// preferably on a free device that holds its function.
#[derive(Default)]
pub(super) struct StaticShares {
    heads: Heads<(GroupId, ClassId), Order>,
    /// Slots of each active device.
    slots: Vec<u32>,
    total: u64,
}

impl Policy for StaticShares {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(order, _)| {
            let function = state.function(function);
            ((function.group, function.class), order)
        });
        self.heads.set(function, entry);
    }

    fn device_changed(&mut self, state: &State, device: DeviceId) {
        let index = usize::from(device.0);
        if index >= self.slots.len() {
            self.slots.resize(index + 1, 0);
        }
        let slots = state.device(device).filter(|device| !device.draining).map_or(0, |device| device.spec.slots);
        let before = std::mem::replace(&mut self.slots[index], slots);
        self.total = self.total + u64::from(slots) - u64::from(before);
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(RequestId, DeviceId)> {
        let weights: u64 =
            state.groups.values().filter(|group| group.functions > 0).map(|group| u64::from(group.weight)).sum();
        let below_share = |id: &GroupId| {
            let group = state.groups[id];
            let share = self.total * u64::from(group.weight) / weights.max(1);
            u64::from(group.in_flight) < share.max(1)
        };
        let may_run = |part: &(GroupId, ClassId)| below_share(&part.0) && !state.classes.get(part.1).free.is_empty();
        let (_, _, function) =
            self.heads.firsts().filter(|(part, ..)| may_run(part)).min_by_key(|(_, order, _)| *order)?;
        let free = state.free(function);
        let warm = state.function(function).resident.both(free).next();
        Some((head_of(state, function), warm.or_else(|| free.first_from(state.cursor))?))
    }
}
