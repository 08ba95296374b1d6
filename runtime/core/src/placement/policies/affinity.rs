//! Fair queueing with affinity, as in KaaS's worker pool.

use super::Policy;
use super::heads::{Heads, head_of};
use super::srtf::shortest_service;
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::state::{Order, State};
use crate::placement::{FunctionId, GroupId, RequestId};
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
    heads: Heads<(GroupId, ClassId), Order>,
    clocks: BTreeMap<GroupId, Clock>,
    dispatches: u64,
    /// The highest virtual time at which a group was dispatched.
    base: u64,
}

#[derive(Clone, Copy, Default)]
struct Clock {
    virtual_time: u64,
    last_run: u64,
}

impl Affinity {
    /// The device for the function, and the virtual time that a request adds there.
    fn placed(state: &State, function: FunctionId) -> Option<(DeviceId, u64)> {
        let free = state.free(function);
        let weight = state.groups.get(&state.function(function).group).map_or(1, |group| u64::from(group.weight));
        let service = shortest_service(state, function).max(1) / weight.max(1);
        if let Some(device) = state.function(function).resident.both(free).next() {
            return Some((device, service));
        }
        Some((free.first_from(state.cursor)?, service.saturating_mul(ELSEWHERE)))
    }
}

impl Policy for Affinity {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(order, _)| {
            let function = state.function(function);
            ((function.group, function.class), order)
        });
        self.heads.set(function, entry);
    }

    fn arrived(&mut self, state: &State, function: FunctionId) {
        let id = state.function(function).group;
        let group = state.groups[&id];
        let clock = self.clocks.entry(id).or_default();
        if group.waiting <= 1 && group.in_flight == 0 {
            clock.virtual_time = clock.virtual_time.max(self.base);
        }
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(RequestId, DeviceId)> {
        let candidates = self.heads.firsts().filter_map(|((group, _), order, function)| {
            let (device, added) = Affinity::placed(state, function)?;
            let clock = self.clocks.get(&group).copied().unwrap_or_default();
            Some(((clock.virtual_time.saturating_add(added), clock.last_run, order), function, device))
        });
        let (_, function, device) = candidates.min_by_key(|(key, ..)| *key)?;
        Some((head_of(state, function), device))
    }

    fn dispatched(&mut self, _now: Nanos, state: &State, function: FunctionId, device: DeviceId) {
        let group = state.function(function).group;
        let weight = state.groups.get(&group).map_or(1, |group| u64::from(group.weight)).max(1);
        let factor = if state.function(function).resident.contains(device) { 1 } else { ELSEWHERE };
        let added = (shortest_service(state, function).max(1) / weight).saturating_mul(factor);
        self.dispatches += 1;
        let clock = self.clocks.entry(group).or_default();
        self.base = self.base.max(clock.virtual_time);
        clock.virtual_time = clock.virtual_time.saturating_add(added);
        clock.last_run = self.dispatches;
        if self.clocks.len() > 2 * state.groups.len() {
            self.clocks.retain(|group, _| state.groups.contains_key(group));
        }
    }
}
