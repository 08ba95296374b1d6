//! Exclusive devices for each group (thesis §6.1), with three rules for moving a device to another
//! group.

use super::Policy;
use super::deepest::Deepest;
use super::heads::ByGroup;
use crate::ids::{DeviceId, Nanos};
use crate::placement::config::{PoolOptions, Steal, StealMeasure};
use crate::placement::id_set::IdSet;
use crate::placement::id_table::IdTable;
use crate::placement::requests::Order;
use crate::placement::state::State;
use crate::placement::{FunctionId, GroupId, PoolAction};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Weight of the newest arrival in the load of a group, for [`StealMeasure::Rate`].
const LOAD_GAIN: f64 = 1.0 / 256.0;

/// Every group has a list of devices and a queue. Until the first dispatch the devices are divided
/// evenly, in order. Devices that are added later go to the group with the fewest.
///
/// An idle device moves by the rule in [`Steal`], at most one per decision, and never the last
/// device of a group. If there are more groups than devices, a group without one takes an idle
/// device: from the group with the most devices, or from a group with one device and no older
/// waiting request.
///
/// If none of a group's devices suits a request, the request runs on any suitable free device.
pub(super) struct Exclusive {
    steal: Steal,
    heads: ByGroup,
    groups: IdTable<GroupId, Own>,
    owners: IdTable<DeviceId, Owned>,
    index: Index,
    /// Whether devices or groups were added or removed.
    changed: bool,
    /// Whether a request was dispatched.
    started: bool,
    /// Arrivals so far, for loads.
    arrivals: u64,
}

/// The devices and the load of a group.
#[derive(Default)]
struct Own {
    /// Devices by their position in the list.
    devices: BTreeMap<u64, DeviceId>,
    /// Positions of the devices with a free slot.
    free: BTreeSet<u64>,
    /// Decaying mean of the group's expected service time per arrival of any group. Only for
    /// [`StealMeasure::Rate`].
    load: f64,
    /// The number of arrivals at which `load` was updated.
    load_at: u64,
    /// Its waiting requests, as in the index; `None` if it is not in the index.
    depth: Option<usize>,
    /// Whether it is in the index of groups with a free device.
    is_free: bool,
}

/// Sets of groups, so that a decision need not examine all groups.
#[derive(Default)]
struct Index {
    /// All groups by waiting requests.
    depths: Deepest,
    /// Groups with a free device, by waiting requests.
    with_free: BTreeSet<(usize, GroupId)>,
    /// Groups without a device.
    poor: IdSet<GroupId>,
    /// Groups that have waiting requests and a free device.
    ready: IdSet<GroupId>,
    /// Groups with waiting requests that some of the devices do not suit.
    picky: IdSet<GroupId>,
}

#[derive(Clone, Copy)]
struct Owned {
    group: GroupId,
    position: u64,
    since: Nanos,
}

impl Exclusive {
    pub(super) fn new(options: &PoolOptions) -> Exclusive {
        Exclusive {
            steal: options.steal,
            heads: ByGroup::default(),
            groups: IdTable::default(),
            owners: IdTable::default(),
            index: Index::default(),
            changed: false,
            started: false,
            arrivals: 0,
        }
    }

    /// Updates the index for a group of `groups`; ignored for others.
    fn update(&mut self, state: &State, group: GroupId) {
        let Some(own) = self.groups.get_mut(group) else { return };
        let index = &mut self.index;
        let depth = Self::depth(state, group);
        let is_free = !own.free.is_empty();
        let former = own.depth.filter(|former| *former != depth);
        if own.depth != Some(depth) {
            index.depths.set(group, depth);
        }
        if own.is_free && (former.is_some() || !is_free) {
            index.with_free.remove(&(former.unwrap_or(depth), group));
        }
        if is_free && (former.is_some() || !own.is_free) {
            index.with_free.insert((depth, group));
        }
        (own.depth, own.is_free) = (Some(depth), is_free);
        index.poor.set(group, own.devices.is_empty());
        let mut classes = self.heads.of_group(group).map(|(class, ..)| class).peekable();
        index.ready.set(group, is_free && classes.peek().is_some());
        let is_partial = |class| state.classes.get(class).members.len() < self.owners.len();
        index.picky.set(group, classes.any(is_partial));
    }

    /// Rebuilds the index after devices or groups were added or removed.
    fn update_all(&mut self, state: &State) {
        self.index = Index::default();
        let groups: Vec<GroupId> = self.groups.keys().collect();
        for group in groups {
            let own = self.groups.get_or_default(group);
            (own.depth, own.is_free) = (None, false);
            self.update(state, group);
        }
    }

    fn give(&mut self, now: Nanos, state: &State, device: DeviceId, to: GroupId, actions: &mut Vec<PoolAction>) {
        let from = self.owners.get(device).map(|owned| owned.group);
        if from == Some(to) {
            return;
        }
        self.release(device);
        from.into_iter().for_each(|from| self.update(state, from));
        let own = self.groups.get_or_default(to);
        let position = own.devices.last_key_value().map_or(0, |(last, _)| last + 1);
        own.devices.insert(position, device);
        self.owners.insert(device, Owned { group: to, position, since: now });
        self.device_changed(state, device);
        actions.push(PoolAction::Move { device, from, to });
    }

    fn release(&mut self, device: DeviceId) {
        let Some(owned) = self.owners.remove(device) else { return };
        let own = self.groups.get_mut(owned.group).expect("the owner of a device is a group");
        own.devices.remove(&owned.position);
        own.free.remove(&owned.position);
    }

    /// Assigns devices to groups after devices or groups were added or removed.
    fn redistribute(&mut self, now: Nanos, state: &State, actions: &mut Vec<PoolAction>) {
        self.divide(now, state, actions);
        self.update_all(state);
    }

    fn divide(&mut self, now: Nanos, state: &State, actions: &mut Vec<PoolAction>) {
        let gone: Vec<DeviceId> = self.owners.keys().filter(|id| state.device(*id).is_none()).collect();
        gone.into_iter().for_each(|device| self.release(device));
        let is_group = |group: GroupId| state.groups.get(group).is_some_and(|group| group.functions > 0);
        let orphans = self.owners.iter().filter(|(_, owned)| !is_group(owned.group)).map(|(id, _)| id);
        let orphans: Vec<DeviceId> = orphans.collect();
        orphans.into_iter().for_each(|device| self.release(device));
        self.groups.retain(is_group);
        for group in state.groups.keys().filter(|group| is_group(*group)) {
            self.groups.get_or_default(group);
        }
        let groups: Vec<GroupId> = self.groups.keys().collect();
        if groups.is_empty() {
            return;
        }
        let devices = (0..state.devices.len()).map(|id| DeviceId(id as u16)).filter(|id| state.device(*id).is_some());
        let devices: Vec<DeviceId> = devices.collect();
        for (index, &device) in devices.iter().enumerate() {
            if !self.started {
                let group = groups[index * groups.len() / devices.len()];
                if self.owners.get(device).is_some_and(|owned| owned.group != group) {
                    // A new division before the first dispatch is reported without a former group.
                    self.release(device);
                }
                self.give(now, state, device, group, actions);
            } else if !self.owners.contains(device) {
                let fewest = groups.iter().copied().min_by_key(|group| self.devices_of(*group));
                self.give(now, state, device, fewest.expect("there are groups"), actions);
            }
        }
    }

    /// The first idle device of a group that was not moved within the hysteresis.
    fn idle(&self, now: Nanos, state: &State, group: GroupId) -> Option<DeviceId> {
        let own = self.groups.get(group)?;
        let settled = |device: &DeviceId| {
            let since = self.since(*device);
            since == Nanos(0) || now.0.saturating_sub(since.0) >= self.steal.hysteresis.0
        };
        let free = own.free.iter().map(|position| own.devices[position]);
        free.filter(|device| state.member(*device).in_flight.is_empty()).find(settled)
    }

    /// Number of devices of a group.
    fn devices_of(&self, group: GroupId) -> usize {
        self.groups.get(group).map_or(0, |own| own.devices.len())
    }

    /// When a device was moved to its group.
    fn since(&self, device: DeviceId) -> Nanos {
        self.owners.get(device).map_or(Nanos(0), |owned| owned.since)
    }

    fn depth(state: &State, group: GroupId) -> usize {
        state.groups.get(group).map_or(0, |group| group.waiting)
    }

    /// The oldest waiting request of a group that can run now, with its function and device.
    fn first_of(&self, state: &State, group: GroupId) -> Option<(Order, FunctionId, DeviceId)> {
        let own = self.groups.get(group)?;
        let with_device = self.heads.of_group(group).filter_map(|(class, order, function)| {
            let class = state.classes.get(class);
            if class.free.is_empty() {
                return None;
            }
            let mut free = own.free.iter().map(|position| own.devices[position]);
            let device = free.find(|device| class.free.contains(*device)).or_else(|| {
                let suits = own.devices.values().any(|device| class.members.contains(*device));
                if suits || own.devices.is_empty() { None } else { class.free.first_from(state.cursor) }
            })?;
            Some((order, function, device))
        });
        with_device.min_by_key(|(order, ..)| *order)
    }

    /// The oldest waiting request of each group that has one.
    fn oldest(&self) -> BTreeMap<GroupId, Order> {
        let mut oldest = BTreeMap::new();
        for (group, _, order, _) in self.heads.firsts() {
            let first = oldest.entry(group).or_insert(order);
            *first = order.min(*first);
        }
        oldest
    }

    /// Finds a device for a group that has waiting requests and no device.
    fn rescue(&self, now: Nanos, state: &State) -> Option<(DeviceId, GroupId)> {
        // Usually every group has a device.
        if self.index.poor.is_empty() {
            return None;
        }
        let oldest = self.oldest();
        let poor = self.index.poor.iter();
        let (order, taker) = poor.filter_map(|group| Some((*oldest.get(&group)?, group))).min()?;
        let may_give =
            |group: &GroupId| self.devices_of(*group) > 1 || oldest.get(group).is_none_or(|oldest| *oldest > order);
        let donors = self.index.with_free.iter().map(|(_, group)| *group).filter(may_give);
        let idle = donors.filter_map(|group| Some((group, self.idle(now, state, group)?)));
        let (_, device) = idle.min_by_key(|(group, device)| {
            let since = self.since(*device);
            (Reverse(self.devices_of(*group)), Self::depth(state, *group), since, *group)
        })?;
        Some((device, taker))
    }

    /// The rule of the thesis: compares the lengths of queues.
    fn by_depth(&self, now: Nanos, state: &State) -> Option<(DeviceId, GroupId)> {
        let (taker, depth) = self.index.depths.first()?;
        let donors = self.index.with_free.iter().filter(|(_, group)| *group != taker);
        let mut can_give = donors.filter(|(_, group)| self.devices_of(*group) > 1);
        let idle = can_give.find_map(|&(least, group)| Some((least, self.idle(now, state, group)?)));
        #[cfg(test)]
        assert_eq!((taker, idle), self.scanned(now, state), "the index finds what a scan finds");
        let (least, device) = idle?;
        (depth * 100 > least.max(1) * self.steal.percent as usize).then_some((device, taker))
    }

    /// The group with most waiting requests, and the idle device of the one with the fewest, found
    /// without the index.
    #[cfg(test)]
    fn scanned(&self, now: Nanos, state: &State) -> (GroupId, Option<(usize, DeviceId)>) {
        let groups = self.groups.keys();
        let taker = groups.clone().rev().max_by_key(|group| Self::depth(state, *group)).expect("there are groups");
        let can_give = groups.filter(|group| *group != taker && self.devices_of(*group) > 1);
        let donors = can_give.filter_map(|group| Some((Self::depth(state, group), self.idle(now, state, group)?)));
        (taker, donors.min_by_key(|(depth, _)| *depth))
    }

    /// Compares groups by load per device. Avoids moves that would have to be undone.
    fn by_rate(&self, now: Nanos, state: &State) -> Option<(DeviceId, GroupId)> {
        let load = |group: GroupId, devices: usize| {
            let Some(own) = self.groups.get(group) else { return 0.0 };
            let age = (self.arrivals - own.load_at).min(1 << 20) as i32;
            own.load * (1.0 - LOAD_GAIN).powi(age) / devices as f64
        };
        let devices = |group: GroupId| self.devices_of(group);
        let needs = self.groups.keys().filter(|group| devices(*group) > 0);
        let taker = needs.max_by(|a, b| load(*a, devices(*a)).total_cmp(&load(*b, devices(*b))))?;
        let can_give = self.groups.keys().filter(|group| *group != taker && devices(*group) > 1);
        let donors = can_give.filter_map(|group| Some((group, self.idle(now, state, group)?)));
        let (donor, device) = donors.min_by(|a, b| load(a.0, devices(a.0)).total_cmp(&load(b.0, devices(b.0))))?;
        let factor = f64::from(self.steal.percent) / 100.0;
        let is_needed = load(taker, devices(taker)) > factor * load(donor, devices(donor));
        let is_kept = load(taker, devices(taker) + 1) >= load(donor, devices(donor) - 1);
        (is_needed && is_kept).then_some((device, taker))
    }
}

impl Policy for Exclusive {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let known = state.functions.get(function);
        self.changed |= known.is_none_or(|known| !self.groups.contains(known.group));
        for change in self.heads.update(state, function).into_iter().flatten() {
            self.update(state, change.group);
        }
    }

    fn group_changed(&mut self, state: &State, group: GroupId) {
        if self.groups.get(group).is_some_and(|own| own.depth != Some(Self::depth(state, group))) {
            self.update(state, group);
        }
    }

    fn device_changed(&mut self, state: &State, device: DeviceId) {
        let known = state.device(device);
        let Some(owned) = self.owners.get(device).filter(|_| known.is_some()) else {
            self.changed = true;
            return;
        };
        let free = &mut self.groups.get_mut(owned.group).expect("the owner of a device is a group").free;
        if known.is_some_and(|known| known.has_slot()) {
            free.insert(owned.position);
        } else {
            free.remove(&owned.position);
        }
        let group = owned.group;
        self.update(state, group);
    }

    fn arrived(&mut self, state: &State, function: FunctionId) {
        self.arrivals += 1;
        let (arrivals, function) = (self.arrivals, state.function(function));
        let group = function.group;
        let is_new = !self.groups.contains(group);
        let own = self.groups.get_or_default(group);
        if self.steal.measure == StealMeasure::Rate {
            let age = (arrivals - own.load_at).min(1 << 20) as i32;
            own.load = own.load * (1.0 - LOAD_GAIN).powi(age) + LOAD_GAIN * function.shortest_service() as f64;
            own.load_at = arrivals;
        }
        if is_new {
            self.update(state, group);
        }
    }

    fn before(&mut self, now: Nanos, state: &State, actions: &mut Vec<PoolAction>) {
        if std::mem::take(&mut self.changed) {
            self.redistribute(now, state, actions);
        }
        if state.waiting == 0 {
            return;
        }
        let stolen = self.rescue(now, state).or_else(|| match self.steal.measure {
            StealMeasure::Never => None,
            StealMeasure::Depth => self.by_depth(now, state),
            StealMeasure::Rate => self.by_rate(now, state),
        });
        if let Some((device, taker)) = stolen {
            self.give(now, state, device, taker, actions);
        }
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        let Index { ready, picky, .. } = &self.index;
        let found = ready.either(picky).find_map(|group| self.first_of(state, group));
        #[cfg(test)]
        assert_eq!(
            found,
            self.groups.keys().find_map(|group| self.first_of(state, group)),
            "the index finds what a scan finds"
        );
        let (_, function, device) = found?;
        Some((function, device))
    }

    fn dispatched(&mut self, _now: Nanos, _state: &State, _function: FunctionId, _device: DeviceId) {
        self.started = true;
    }
}
