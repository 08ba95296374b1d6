//! Leases: instances that a placement engine on other machines holds for a limited time.
//!
//! The ledger ([`atoll_lease`]) decides; this module makes its decisions durable, creates and removes
//! the instances, and tells it which devices there are. A lease and its instance belong to one
//! device, that of the function. The shares of instances and tenants that are no leases are known
//! to the engine only, so the engine may refuse what the ledger granted: the lease is taken back
//! before it is answered.
//!
//! # Time
//!
//! The time of leases is that of the daemon's monotonic clock since its start; no time of day is
//! read, stored or sent, so clocks that step or differ between machines end nothing and revive
//! nothing. The clock stands still while the machine is suspended, and so do the leases. After a
//! restart each lease has its whole time to live.

mod check;
mod error;
mod record;

pub(crate) use check::Target;
pub(crate) use error::LeaseError;

use crate::identity::Principal;
use crate::instances::{InstanceError, Instances};
use atoll_control::{LeaseHold, LeaseReport, LeaseSpec};
use atoll_core::Nanos;
use atoll_engine::{DeviceId, FunctionKey};
use atoll_fleet::Inference;
use atoll_lease::{
    Action, Answer, Capacity, Ending, Epoch, Event, Free, Grant, LeaseId, Ledger, Refusal, RequestKey, Want,
};
use atoll_store::{LeaseChange, Store, StoreError};
use check::{check, holder, name_of};
use record::Detail;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// All leases of a daemon. Its functions block.
pub(crate) struct Leases {
    store: Arc<Store>,
    engine: Arc<dyn Inference>,
    capacities: Vec<Capacity>,
    /// Time 0 of the ledger.
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    details: BTreeMap<LeaseId, Detail>,
    /// The devices as the ledger knows them: whether they are lost, and drained.
    devices: Vec<(bool, bool)>,
}

/// What a device can hold, and what is promised of it.
#[derive(Clone, Debug)]
pub(crate) struct Promised {
    pub(crate) leases: usize,
    /// The sum of partition × quota, in percent.
    pub(crate) sm_pct: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) real_time_slots: u32,
    pub(crate) capacity: Capacity,
    /// What is left; `None` if the device is lost.
    pub(crate) free: Option<Free>,
}

impl Leases {
    /// The leases of a store, each with its whole time to live. Their instances are created again;
    /// leases for which there is no room any more are revoked, the newest first.
    pub(crate) fn open(
        store: Arc<Store>,
        engine: Arc<dyn Inference>,
        instances: &Instances,
        real_time_slots: u32,
    ) -> Result<Leases, StoreError> {
        let records = store.leases()?;
        let names = engine.devices().to_vec();
        let (mut kept, mut details) = (Vec::new(), BTreeMap::new());
        for (lease, text) in &records.leases {
            match record::read(text, &names) {
                Ok((one, detail)) => {
                    details.insert(one.lease, detail);
                    kept.push(one);
                }
                Err(error) => tracing::error!(lease, error, "a lease cannot be restored"),
            }
        }
        let capacity = |memory_bytes| Capacity { memory_bytes, real_time_slots };
        let capacities: Vec<Capacity> = engine.traits().iter().map(|device| capacity(device.memory_bytes)).collect();
        let devices = capacities.iter().enumerate().map(|(at, capacity)| (DeviceId(at as u16), *capacity));
        let ended = records.ended.iter().copied().map(RequestKey);
        let mut actions = Vec::new();
        let ledger = Ledger::restore(Nanos(0), records.last, devices, kept, ended, &mut actions);
        let state = State { ledger, details, devices: vec![(false, false); capacities.len()] };
        let leases = Leases { store, engine, capacities, began: Instant::now(), state: Mutex::default() };
        *leases.lock() = state;
        leases.carry_out(instances, &mut leases.lock(), actions, None);
        Ok(leases)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Grants a lease of a function, or answers a repeated request as before.
    pub(crate) fn grant(
        &self,
        instances: &Instances,
        spec: &LeaseSpec,
        target: &Target,
    ) -> Result<LeaseReport, LeaseError> {
        let (ask, detail) = check(spec, target)?;
        let key = ask.key();
        let mut state = self.lock();
        self.follow_devices(instances, &mut state);
        if state.details.values().any(|other| other.key == key && *other != detail) {
            return Err(Refusal::KeyUsed.into());
        }
        let mut actions = Vec::new();
        state.ledger.handle(self.now(), Event::Grant(ask), &mut actions);
        let (answer, failed) = self.carry_out(instances, &mut state, actions, Some(detail));
        let Some(error) = failed else { return self.granted(&state, answer) };
        let lease = state.details.iter().find(|(_, detail)| detail.key == key).map(|(lease, _)| *lease);
        lease.into_iter().for_each(|lease| self.take_back(instances, &mut state, lease));
        Err(match error {
            LeaseError::Instance(InstanceError::Share(reason)) => {
                LeaseError::Full { device: self.name(target.device), reason: reason.to_string() }
            }
            error => error,
        })
    }

    /// Extends a lease.
    pub(crate) fn renew(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
    ) -> Result<LeaseReport, LeaseError> {
        let answer =
            self.about(instances, caller, hold, |lease, epoch, holder| Event::Renew { lease, epoch, holder })?;
        self.granted(&self.lock(), Some(answer))
    }

    /// Makes another holder the one of a lease.
    pub(crate) fn take_over(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
    ) -> Result<LeaseReport, LeaseError> {
        let event = |lease, epoch, holder| Event::TakeOver { lease, epoch, holder };
        let answer = self.about(instances, caller, hold, event)?;
        self.granted(&self.lock(), Some(answer))
    }

    /// Ends a lease.
    pub(crate) fn release(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
    ) -> Result<(), LeaseError> {
        let event = |lease, epoch, holder| Event::Release { lease, epoch, holder };
        self.about(instances, caller, hold, event).map(drop)
    }

    /// Sends an event about a lease of the caller, or, for operators, of any tenant.
    fn about(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
        event: impl FnOnce(LeaseId, Epoch, atoll_lease::Holder) -> Event,
    ) -> Result<Answer, LeaseError> {
        let lease = LeaseId(hold.lease);
        let mut state = self.lock();
        self.follow_devices(instances, &mut state);
        let tenant = state.details.get(&lease).map_or(&caller.tenant, |detail| &detail.tenant);
        if !caller.sees(tenant) {
            return Err(Refusal::NoLease(lease).into());
        }
        let event = event(lease, Epoch(hold.epoch), holder(tenant, &hold.holder)?);
        let mut actions = Vec::new();
        state.ledger.handle(self.now(), event, &mut actions);
        match self.carry_out(instances, &mut state, actions, None) {
            (_, Some(error)) => Err(error),
            (Some(Answer::Refused(refusal)), None) => Err(refusal.into()),
            (answer, None) => Ok(answer.unwrap_or(Answer::Done)),
        }
    }

    /// Ends what was not renewed in time, and follows the devices and functions. `devices_of` are the
    /// devices of a function, if it is loaded.
    pub(crate) fn tick(&self, instances: &Instances, devices_of: impl Fn(&FunctionKey) -> Option<Vec<DeviceId>>) {
        let mut state = self.lock();
        if state.details.is_empty() {
            return;
        }
        self.follow_devices(instances, &mut state);
        let mut actions = Vec::new();
        state.ledger.handle(self.now(), Event::Tick, &mut actions);
        self.carry_out(instances, &mut state, actions, None);
        let is_elsewhere = |grant: &Grant| {
            let devices = state.details.get(&grant.lease).and_then(|detail| devices_of(&detail.function()));
            devices.is_some_and(|devices| devices != [grant.device])
        };
        let elsewhere: Vec<LeaseId> =
            state.ledger.leases().map(|(grant, _)| grant).filter(is_elsewhere).map(|grant| grant.lease).collect();
        for lease in elsewhere {
            tracing::warn!(%lease, "the function of a lease is not on the lease's device any more");
            self.take_back(instances, &mut state, lease);
        }
    }

    /// The leases that a caller may see, by number.
    pub(crate) fn list(&self, caller: &Principal) -> Vec<LeaseReport> {
        let state = self.lock();
        let now = self.now();
        let all = state.ledger.leases().filter_map(|(grant, want)| {
            let detail = state.details.get(&grant.lease)?;
            caller.sees(&detail.tenant).then(|| self.report(&grant, want, detail, now))
        });
        all.collect()
    }

    /// What is promised of each device, in order.
    pub(crate) fn promised(&self, instances: &Instances) -> Vec<Promised> {
        let mut state = self.lock();
        self.follow_devices(instances, &mut state);
        let nothing =
            |capacity| Promised { leases: 0, sm_pct: 0.0, memory_bytes: 0, real_time_slots: 0, capacity, free: None };
        let mut all: Vec<Promised> = self.capacities.iter().copied().map(nothing).collect();
        for (grant, want) in state.ledger.leases() {
            let Some(promised) = all.get_mut(usize::from(grant.device.0)) else { continue };
            promised.leases += 1;
            promised.sm_pct += f64::from(want.partition * want.quota) / 100.0;
            promised.memory_bytes += want.memory_bytes;
            promised.real_time_slots += want.real_time_slots;
        }
        for (device, free, _) in state.ledger.free() {
            if let Some(promised) = all.get_mut(usize::from(device.0)) {
                promised.free = Some(free);
            }
        }
        all
    }

    fn name(&self, device: DeviceId) -> String {
        self.engine.devices().get(usize::from(device.0)).cloned().unwrap_or_default()
    }

    /// The report of a granted lease.
    fn granted(&self, state: &State, answer: Option<Answer>) -> Result<LeaseReport, LeaseError> {
        let grant = match answer {
            Some(Answer::Granted(grant)) => grant,
            Some(Answer::Refused(refusal)) => return Err(refusal.into()),
            _ => return Err(LeaseError::Panicked),
        };
        let ended = || LeaseError::Refused(Refusal::NoLease(grant.lease));
        let (now, want) = state.ledger.leases().find(|(other, _)| other.lease == grant.lease).ok_or_else(ended)?;
        let detail = state.details.get(&grant.lease).ok_or_else(ended)?;
        Ok(self.report(&now, want, detail, self.now()))
    }

    fn report(&self, grant: &Grant, want: &Want, detail: &Detail, now: Nanos) -> LeaseReport {
        let instance = &detail.instance;
        LeaseReport {
            lease: grant.lease.0,
            epoch: grant.epoch.0,
            tenant: detail.tenant.clone(),
            holder: name_of(&grant.holder),
            function: detail.function().to_string(),
            // Requests name it without the tenant, as all instances.
            instance: detail.instance_key(grant.lease).name,
            device: self.name(grant.device),
            class: instance.class,
            sm_partition: instance.sm_partition,
            quota_request: instance.quota_request,
            quota_limit: instance.quota_limit,
            gpu_mem: want.memory_bytes,
            real_time_slots: want.real_time_slots,
            ttl_s: want.ttl.0 / 1_000_000_000,
            expires_in_ms: grant.expires.0.saturating_sub(now.0) / 1_000_000,
        }
    }

    /// Tells the ledger which devices were lost or drained, or are there again.
    fn follow_devices(&self, instances: &Instances, state: &mut State) {
        let current = self.engine.devices_state().devices;
        let mut actions = Vec::new();
        for (at, device) in current.iter().enumerate().take(self.capacities.len()) {
            let (id, capacity, now) = (DeviceId(at as u16), self.capacities[at], self.now());
            let (was_lost, was_drained) = state.devices[at];
            if device.is_lost != was_lost {
                let event = match device.is_lost {
                    true => Event::Lost { device: id },
                    false => Event::Device { device: id, capacity },
                };
                state.ledger.handle(now, event, &mut actions);
            }
            if device.is_drained != was_drained {
                state.ledger.handle(now, Event::Drained { device: id, is_drained: device.is_drained }, &mut actions);
            }
            state.devices[at] = (device.is_lost, device.is_drained);
        }
        self.carry_out(instances, state, actions, None);
    }

    /// Ends a lease that was not answered, or that does not hold any more.
    fn take_back(&self, instances: &Instances, state: &mut State, lease: LeaseId) {
        let mut actions = Vec::new();
        state.ledger.handle(self.now(), Event::Unplaced { lease }, &mut actions);
        self.carry_out(instances, state, actions, None);
    }

    /// Does what the ledger says, in its order. `new` is the detail of the lease that is granted.
    /// Returns the answer, and what went wrong first; the rest is done in any case.
    fn carry_out(
        &self,
        instances: &Instances,
        state: &mut State,
        actions: Vec<Action>,
        mut new: Option<Detail>,
    ) -> (Option<Answer>, Option<LeaseError>) {
        let (mut answer, mut failed, mut change) = (None, None, LeaseChange::default());
        for action in actions {
            match action {
                Action::Keep { kept, last } => {
                    if let Some(detail) = new.take() {
                        state.details.insert(kept.lease, detail);
                    }
                    if let Some(detail) = state.details.get(&kept.lease) {
                        change.keep.push((kept.lease.0, record::write(&kept, detail, self.engine.devices())));
                        change.last = Some(last);
                    }
                }
                Action::End { lease, key } => change.end.push((lease.0, key.0)),
                Action::Forget(key) => change.forget.push(key.0),
                Action::Place { lease, .. } => {
                    failed = failed.or(self.write(&mut change)).or_else(|| place(instances, state, lease));
                }
                Action::Remove { lease, ending } => remove(instances, state, lease, ending),
                Action::Answer(given) => answer = Some(given),
            }
        }
        failed = failed.or(self.write(&mut change));
        (answer, failed)
    }

    /// Writes a change down, and empties it.
    fn write(&self, change: &mut LeaseChange) -> Option<LeaseError> {
        if change.is_empty() {
            return None;
        }
        let error = self.store.change_leases(&std::mem::take(change)).err()?;
        tracing::error!(%error, "a change of leases cannot be written down");
        Some(error.into())
    }
}

/// Creates the instance of a lease, unless it is there: where in a device its compute units are, the
/// engine decides.
fn place(instances: &Instances, state: &State, lease: LeaseId) -> Option<LeaseError> {
    let detail = state.details.get(&lease)?;
    let key = detail.instance_key(lease);
    if instances.find(&key).is_some() {
        return None;
    }
    let error = instances.create(key, detail.instance.clone(), true).err()?;
    tracing::warn!(%lease, %error, "the instance of a lease cannot be created");
    Some(LeaseError::Instance(error))
}

fn remove(instances: &Instances, state: &mut State, lease: LeaseId, ending: Ending) {
    let Some(detail) = state.details.remove(&lease) else { return };
    tracing::info!(%lease, ?ending, "lease ended");
    let key = detail.instance_key(lease);
    if instances.find(&key).is_some()
        && let Err(error) = instances.remove_any(&key)
    {
        tracing::error!(%lease, %error, "the instance of a lease cannot be removed");
    }
}
