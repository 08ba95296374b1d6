//! The ledger: all leases of a daemon.

use crate::action::{Action, Answer, Ending, Grant};
use crate::ask::{Ask, Want};
use crate::capacity::{Capacity, Device, Free};
use crate::event::Event;
use crate::ids::{Epoch, Holder, LeaseId, RequestKey};
use crate::limits::{ENDED_KEYS_MAX, KEY_MEMORY, LEASES_MAX};
use crate::refusal::Refusal;
use atoll_core::{DeviceId, Nanos};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The record of a lease on disk. It has no expiry time: a restart gives the lease its full time to
/// live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The request, with the present holder.
    pub ask: Ask,
    /// The holder that sent the request.
    pub asked_by: Holder,
    /// Its device.
    pub device: DeviceId,
}

struct Lease {
    kept: Kept,
    expires: Nanos,
}

impl Lease {
    fn want(&self) -> &Want {
        &self.kept.ask.want
    }
}

/// All leases of a daemon. See the [crate](crate).
#[derive(Default)]
pub struct Ledger {
    devices: BTreeMap<DeviceId, Device>,
    leases: BTreeMap<LeaseId, Lease>,
    /// Leases, sorted by the time at which they expire.
    ends: BTreeSet<(Nanos, LeaseId)>,
    keys: BTreeMap<RequestKey, LeaseId>,
    /// Keys of leases that have ended, oldest first, with the time at which they are forgotten.
    ended: VecDeque<(Nanos, RequestKey)>,
    ended_keys: BTreeSet<RequestKey>,
    /// The highest number that was used. Leases and epochs share one sequence.
    last: u64,
    now: Nanos,
    /// Arrival of the earliest renewal that waits to be handled.
    awaited: Option<Nanos>,
}

impl Ledger {
    /// Restores a ledger after a restart from its records (`kept`) and the keys of ended leases
    /// (`ended`), on the present devices. Each lease expires its full time to live after `now`. The
    /// actions place the leases again, the oldest first; a lease whose device is gone is moved or
    /// revoked. Keys of ended leases are remembered for [`KEY_MEMORY`] from `now`. `last` is that
    /// of the last [`Action::Keep`].
    pub fn restore(
        now: Nanos,
        last: u64,
        devices: impl IntoIterator<Item = (DeviceId, Capacity)>,
        kept: impl IntoIterator<Item = Kept>,
        ended: impl IntoIterator<Item = RequestKey>,
        actions: &mut Vec<Action>,
    ) -> Ledger {
        let devices = devices.into_iter().map(|(id, capacity)| (id, Device::new(capacity))).collect();
        let mut ledger = Ledger { devices, now, last, ..Ledger::default() };
        for kept in kept {
            ledger.last = ledger.last.max(kept.lease.0).max(kept.epoch.0);
            let expires = Nanos(now.0.saturating_add(kept.ask.want.ttl.0));
            ledger.keys.insert(kept.ask.key, kept.lease);
            ledger.ends.insert((expires, kept.lease));
            ledger.leases.insert(kept.lease, Lease { kept, expires });
        }
        ended.into_iter().for_each(|key| ledger.remember(key));
        let all: Vec<LeaseId> = ledger.leases.keys().copied().collect();
        ledger.place_again(all, actions);
        ledger
    }

    /// Handles an event and appends the resulting actions. A `now` before that of an earlier event
    /// counts as the latest one.
    pub fn handle(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        self.advance(now, actions);
        let answer = match event {
            Event::Grant(ask) => self.grant(ask, actions),
            Event::Renew { lease, epoch, holder } => self.renew(lease, epoch, &holder),
            Event::TakeOver { lease, epoch, holder } => self.take_over(lease, epoch, holder, actions),
            Event::Release { lease, epoch, holder } => self.release(lease, epoch, &holder, actions),
            Event::Unplaced { lease } => return self.unplaced(lease, actions),
            Event::Revoke { lease } => return self.end(lease, Ending::Revoked, actions),
            Event::NotTaken { lease, epoch, holder } => return self.not_taken(lease, epoch, holder, actions),
            Event::Device { device, capacity } => return self.set_device(device, Some(capacity), actions),
            Event::Lost { device } => return self.set_device(device, None, actions),
            Event::Drained { device, is_drained } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    device.is_drained = is_drained;
                }
                return;
            }
            Event::Tick => return,
        };
        actions.push(Action::Answer(answer.unwrap_or_else(Answer::Refused)));
    }

    /// Sets the arrival time of the earliest renewal that the caller has not passed to
    /// [`Ledger::handle`] yet; `None` if there is none. From the next event on, only leases that
    /// expired by then end, so that a renewal that arrived in time is accepted however long it
    /// waits.
    pub fn wait_for(&mut self, arrived: Option<Nanos>) {
        self.awaited = arrived;
    }

    /// The time at which the caller has to send [`Event::Tick`], unless it sends another event
    /// earlier.
    pub fn wakeup(&self) -> Option<Nanos> {
        self.ends.first().map(|first| first.0)
    }

    /// All leases, by number.
    pub fn leases(&self) -> impl Iterator<Item = (Grant, &Want)> {
        self.leases.values().map(|lease| (lease.grant(), lease.want()))
    }

    /// The free resources of each device, and whether it is drained.
    pub fn free(&self) -> impl Iterator<Item = (DeviceId, Free, bool)> {
        self.devices.iter().map(|(id, device)| (*id, device.free(), device.is_drained))
    }

    fn advance(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        let until = self.awaited.map_or(self.now, |arrived| arrived.min(self.now));
        while let Some((_, lease)) = self.ends.first().copied().filter(|first| first.0 <= until) {
            self.end(lease, Ending::Expired, actions);
        }
        while self.ended.front().is_some_and(|first| first.0 <= self.now) || self.ended.len() > ENDED_KEYS_MAX {
            if let Some((_, key)) = self.ended.pop_front() {
                self.ended_keys.remove(&key);
                actions.push(Action::Forget(key));
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn grant(&mut self, ask: Ask, actions: &mut Vec<Action>) -> Result<Answer, Refusal> {
        if self.ended_keys.contains(&ask.key) {
            return Err(Refusal::Ended);
        }
        if let Some(lease) = self.keys.get(&ask.key).copied() {
            let kept = &self.leases[&lease].kept;
            if kept.asked_by != ask.holder || kept.ask.want != ask.want {
                return Err(Refusal::KeyUsed);
            }
            if kept.ask.holder != ask.holder {
                // The answer would tell the old holder the epoch of the new one.
                return Err(Refusal::Ended);
            }
            // Its holder counts from when it sent the repetition, as with a renewal.
            self.extend(lease);
            return Ok(Answer::Granted(self.leases[&lease].grant()));
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(Refusal::TooMany);
        }
        let lease = LeaseId(self.last + 1);
        let (device, moved) = self.find_room(lease, &ask)?;
        // Uses the number of the lease.
        self.next();
        let epoch = Epoch(self.next());
        let kept = Kept { lease, epoch, asked_by: ask.holder.clone(), device, ask };
        self.keys.insert(kept.ask.key, lease);
        actions.push(Action::Keep { kept: Box::new(kept.clone()), last: self.last });
        self.leases.insert(lease, Lease { kept, expires: self.now });
        self.extend(lease);
        moved.into_iter().chain([lease]).for_each(|lease| self.push_place(lease, actions));
        Ok(Answer::Granted(self.leases[&lease].grant()))
    }

    /// Places the lease on the fullest device that has room. Returns that device, and the leases
    /// there that moved for it.
    fn find_room(&mut self, lease: LeaseId, ask: &Ask) -> Result<(DeviceId, Vec<LeaseId>), Refusal> {
        let wanted = ask.want.device;
        if let Some(device) = wanted {
            let state = self.devices.get(&device).ok_or(Refusal::NoDevice(device))?;
            if state.is_drained {
                return Err(Refusal::Drained(device));
            }
        }
        let is_wanted = |id: &DeviceId| wanted.is_none_or(|wanted| wanted == *id);
        let mut candidates: Vec<DeviceId> = self.devices.keys().copied().filter(is_wanted).collect();
        candidates.retain(|id| !self.devices[id].is_drained);
        candidates.sort_by_key(|id| (std::cmp::Reverse(self.devices[id].used_area()), *id));
        for id in candidates {
            let device = self.devices.get_mut(&id).expect("a key of the map");
            if let Some(moved) = device.place(lease, ask) {
                return Ok((id, moved));
            }
        }
        let could = self.devices.iter().any(|(id, device)| is_wanted(id) && device.could_hold(ask));
        Err(if could { Refusal::NoRoom } else { Refusal::TooLarge })
    }

    fn push_place(&self, lease: LeaseId, actions: &mut Vec<Action>) {
        let device = self.leases[&lease].kept.device;
        if let Some(rect) = self.devices.get(&device).and_then(|state| state.rect(lease)) {
            actions.push(Action::Place { lease, device, rect });
        }
    }

    /// Sets the end of a lease to its time to live from now.
    fn extend(&mut self, lease: LeaseId) {
        let state = self.leases.get_mut(&lease).expect("the caller has looked it up");
        self.ends.remove(&(state.expires, lease));
        state.expires = Nanos(self.now.0.saturating_add(state.kept.ask.want.ttl.0));
        self.ends.insert((state.expires, lease));
    }

    /// Checks that a lease has this epoch and, if it is given, this holder.
    fn check(&self, lease: LeaseId, epoch: Epoch, holder: Option<&Holder>) -> Result<(), Refusal> {
        let state = self.leases.get(&lease).ok_or(Refusal::NoLease(lease))?;
        match epoch.cmp(&state.kept.epoch) {
            std::cmp::Ordering::Less => Err(Refusal::Stale { lease, given: epoch }),
            std::cmp::Ordering::Equal if holder.is_none_or(|holder| *holder == state.kept.ask.holder) => Ok(()),
            // A newer epoch than the lease's was never given out: the caller guesses.
            _ => Err(Refusal::NoLease(lease)),
        }
    }

    fn renew(&mut self, lease: LeaseId, epoch: Epoch, holder: &Holder) -> Result<Answer, Refusal> {
        self.check(lease, epoch, Some(holder))?;
        self.extend(lease);
        Ok(Answer::Granted(self.leases[&lease].grant()))
    }

    fn take_over(
        &mut self,
        lease: LeaseId,
        epoch: Epoch,
        holder: Holder,
        actions: &mut Vec<Action>,
    ) -> Result<Answer, Refusal> {
        self.check(lease, epoch, None)?;
        let epoch = Epoch(self.next());
        let state = self.leases.get_mut(&lease).expect("it was checked");
        state.kept.epoch = epoch;
        state.kept.ask.holder = holder;
        actions.push(Action::Keep { kept: Box::new(state.kept.clone()), last: epoch.0 });
        self.extend(lease);
        Ok(Answer::Granted(self.leases[&lease].grant()))
    }

    fn release(
        &mut self,
        lease: LeaseId,
        epoch: Epoch,
        holder: &Holder,
        actions: &mut Vec<Action>,
    ) -> Result<Answer, Refusal> {
        match self.check(lease, epoch, Some(holder)) {
            Ok(()) => self.end(lease, Ending::Released, actions),
            // The lease has already ended: the release is repeated or late.
            Err(Refusal::NoLease(_)) if !self.leases.contains_key(&lease) && lease.0 <= self.last => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(Answer::Done)
    }

    fn unplaced(&mut self, lease: LeaseId, actions: &mut Vec<Action>) {
        let Some(key) = self.leases.get(&lease).map(|lease| lease.kept.ask.key) else { return };
        self.end(lease, Ending::Unplaced, actions);
        self.ended.retain(|(_, ended)| *ended != key);
        self.ended_keys.remove(&key);
        actions.push(Action::Forget(key));
    }

    fn not_taken(&mut self, lease: LeaseId, epoch: Epoch, holder: Holder, actions: &mut Vec<Action>) {
        let Some(state) = self.leases.get_mut(&lease) else { return };
        state.kept.epoch = epoch;
        state.kept.ask.holder = holder;
        // The number of the takeover stays used.
        actions.push(Action::Keep { kept: Box::new(state.kept.clone()), last: self.last });
    }

    fn end(&mut self, lease: LeaseId, ending: Ending, actions: &mut Vec<Action>) {
        let Some(Lease { kept, expires }) = self.leases.remove(&lease) else { return };
        self.ends.remove(&(expires, lease));
        if let Some(device) = self.devices.get_mut(&kept.device) {
            device.remove(lease, &kept.ask.want);
        }
        self.keys.remove(&kept.ask.key);
        self.remember(kept.ask.key);
        actions.extend([Action::Remove { lease, ending }, Action::End { lease, key: kept.ask.key }]);
    }

    /// Remembers the key of an ended lease for [`KEY_MEMORY`].
    fn remember(&mut self, key: RequestKey) {
        if self.ended_keys.insert(key) {
            self.ended.push_back((Nanos(self.now.0.saturating_add(KEY_MEMORY.0)), key));
        }
    }

    fn set_device(&mut self, id: DeviceId, capacity: Option<Capacity>, actions: &mut Vec<Action>) {
        let before = self.devices.remove(&id);
        if let Some(capacity) = capacity {
            let mut device = Device::new(capacity);
            device.is_drained = before.is_some_and(|before| before.is_drained);
            self.devices.insert(id, device);
        }
        let its = self.leases.values().filter(|lease| lease.kept.device == id);
        let leases = its.map(|lease| lease.kept.lease).collect();
        self.place_again(leases, actions);
    }

    /// Places leases that have no area now, the oldest first: on their device if they fit,
    /// otherwise on another one.
    fn place_again(&mut self, leases: Vec<LeaseId>, actions: &mut Vec<Action>) {
        let mut changed = BTreeSet::new();
        let mut unplaced = Vec::new();
        for &lease in &leases {
            let kept = &self.leases[&lease].kept;
            match self.devices.get_mut(&kept.device).and_then(|device| device.place(lease, &kept.ask)) {
                Some(moved) => changed.extend(moved.into_iter().chain([lease])),
                None => unplaced.push(lease),
            }
        }
        for lease in unplaced {
            let ask = self.leases[&lease].kept.ask.clone();
            match self.find_room(lease, &ask) {
                Ok((device, moved)) => {
                    let kept = &mut self.leases.get_mut(&lease).expect("looked up above").kept;
                    kept.device = device;
                    actions.push(Action::Keep { kept: Box::new(kept.clone()), last: self.last });
                    changed.extend(moved.into_iter().chain([lease]));
                }
                Err(_) => self.end(lease, Ending::Revoked, actions),
            }
        }
        changed.retain(|lease| self.leases.contains_key(lease));
        changed.into_iter().for_each(|lease| self.push_place(lease, actions));
    }
}

impl Lease {
    fn grant(&self) -> Grant {
        Grant {
            lease: self.kept.lease,
            epoch: self.kept.epoch,
            holder: self.kept.ask.holder.clone(),
            device: self.kept.device,
            expires: self.expires,
        }
    }
}
