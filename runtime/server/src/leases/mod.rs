//! Leases: instances that a placement engine on another machine holds for a limited time.
//!
//! The ledger ([`atoll_lease`]) decides. This module makes its decisions durable, creates and
//! removes the instances, and tells it the state of the devices. A lease and its instance belong to
//! one device, that of the function.
//!
//! The ledger does not know the shares of tenants and of instances without a lease; only the engine
//! knows them. So the engine may refuse the share of a lease that the ledger granted. The lease
//! then ends before the grant is answered. The engine may also refuse the share when the function
//! is loaded again, after a restart or on a device that is available again. The lease is then
//! revoked.
//!
//! A change that cannot be written to the store stays in memory, and writing is retried with each
//! event and tick. Until it succeeds, no lease is granted or taken over.
//!
//! # Time
//!
//! Leases use the daemon's monotonic clock, counted from its start. No time of day is read, stored
//! or sent, so clocks that step or that differ between machines have no effect. The clock stops
//! while the machine is suspended, and leases do not expire meanwhile. After a restart each lease
//! has its full time to live.

mod arrivals;
mod check;
mod error;
mod journal;
mod record;
#[cfg(test)]
mod tests;

pub(crate) use arrivals::Arrived;
pub(crate) use check::Target;
pub(crate) use error::LeaseError;

use crate::identity::Principal;
use crate::instances::{InstanceError, Instances, client};
use arrivals::Arrivals;
use atoll_control::{LeaseHold, LeaseReport, LeaseSpec};
use atoll_core::Nanos;
use atoll_engine::{DeviceId, FunctionKey};
use atoll_fleet::Inference;
use atoll_lease::{
    Action, Answer, Capacity, Ending, Epoch, Event, Free, Grant, LeaseId, Ledger, Refusal, RequestKey, Want,
};
use atoll_store::{Store, StoreError};
use check::{check, holder, name_of};
use journal::Journal;
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
    arrivals: Arrivals,
    state: Mutex<State>,
}

struct State {
    ledger: Ledger,
    details: BTreeMap<LeaseId, Detail>,
    /// For each device, whether the ledger knows it as lost, and as drained.
    devices: Vec<(bool, bool)>,
    journal: Journal,
}

impl State {
    /// The lease of a request.
    fn lease_of(&self, key: RequestKey) -> Option<LeaseId> {
        self.details.iter().find(|(_, detail)| detail.key == key).map(|(lease, _)| *lease)
    }
}

/// The devices of a lease's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The function was removed.
    Gone,
    /// The function is on no device, for example because it is being loaded.
    Loading,
    /// The function is on these devices.
    On(Vec<DeviceId>),
}

/// The capacity of a device, and the part of it that leases have.
#[derive(Clone, Debug)]
pub(crate) struct Promised {
    pub(crate) leases: usize,
    /// The sum of partition × quota, in percent.
    pub(crate) sm_pct: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) real_time_slots: u32,
    pub(crate) capacity: Capacity,
    /// The free resources; `None` if the device is lost.
    pub(crate) free: Option<Free>,
}

impl Leases {
    /// Restores the leases of a store, each with its full time to live, and creates their instances
    /// again. Leases that no longer have room are revoked, the newest first.
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
        let devices = vec![(false, false); capacities.len()];
        let state = Mutex::new(State { ledger, details, devices, journal: Journal::default() });
        let arrivals = Arrivals::default();
        let leases = Leases { store, engine, capacities, began: Instant::now(), arrivals, state };
        let mut state = leases.lock();
        leases.carry_out(instances, &mut state, actions, None);
        // Functions are loaded later. The first tick after that revokes leases whose shares the
        // devices refuse.
        leases.revoke_broken(instances, &mut state, |_| Home::Loading);
        drop(state);
        Ok(leases)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Notes that a renewal arrives now. While the result exists, leases that have not expired by
    /// now stay valid.
    pub(crate) fn arrive(&self) -> Arrived {
        self.arrivals.note(|| self.now())
    }

    /// Grants a lease of a function. A repeated request gets the lease that it already has.
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
        let is_repeated = state.lease_of(key).is_some();
        if !is_repeated {
            // Grants nothing while changes cannot be written.
            self.write(&mut state)?;
        }
        let (answer, failed) = self.send(instances, &mut state, Event::Grant(ask), Some(detail));
        let new = state.lease_of(key).filter(|_| !is_repeated);
        let (Some(lease), Some(error)) = (new, failed) else { return self.granted(&state, answer) };
        self.send(instances, &mut state, Event::Unplaced { lease }, None);
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
        let mut state = self.lock();
        let event = |lease, epoch, holder| Event::Renew { lease, epoch, holder };
        // Ignores an error of writing: it concerns other leases, since a renewal changes no record.
        let (answer, _) = self.about(instances, &mut state, caller, hold, event)?;
        self.granted(&state, answer)
    }

    /// Gives a lease to another holder.
    pub(crate) fn take_over(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
    ) -> Result<LeaseReport, LeaseError> {
        let mut state = self.lock();
        self.write(&mut state)?;
        let before = state.ledger.leases().map(|(grant, _)| grant).find(|grant| grant.lease.0 == hold.lease);
        let event = |lease, epoch, holder| Event::TakeOver { lease, epoch, holder };
        let (answer, failed) = self.about(instances, &mut state, caller, hold, event)?;
        let (Some(Grant { lease, epoch, holder, .. }), Some(error)) = (before, failed) else {
            return self.granted(&state, answer);
        };
        // The takeover is not on disk: after a restart the earlier holder would have the lease
        // again.
        self.send(instances, &mut state, Event::NotTaken { lease, epoch, holder }, None);
        Err(error)
    }

    /// Ends a lease. If its end cannot be written yet, returns an error, although the lease has
    /// ended.
    pub(crate) fn release(
        &self,
        instances: &Instances,
        caller: &Principal,
        hold: &LeaseHold,
    ) -> Result<(), LeaseError> {
        let event = |lease, epoch, holder| Event::Release { lease, epoch, holder };
        let (_, failed) = self.about(instances, &mut self.lock(), caller, hold, event)?;
        failed.map_or(Ok(()), Err)
    }

    /// Sends an event about a lease of the caller's tenant or, for operators, of any tenant. A
    /// refusal is an error. Otherwise returns the answer, and the error of carrying out the
    /// actions, if any.
    fn about(
        &self,
        instances: &Instances,
        state: &mut State,
        caller: &Principal,
        hold: &LeaseHold,
        event: impl FnOnce(LeaseId, Epoch, atoll_lease::Holder) -> Event,
    ) -> Result<(Option<Answer>, Option<LeaseError>), LeaseError> {
        let lease = LeaseId(hold.lease);
        self.follow_devices(instances, state);
        let tenant = state.details.get(&lease).map_or(&caller.tenant, |detail| &detail.tenant);
        if !caller.sees(tenant) {
            return Err(Refusal::NoLease(lease).into());
        }
        let event = event(lease, Epoch(hold.epoch), holder(tenant, &hold.holder)?);
        match self.send(instances, state, event, None) {
            (Some(Answer::Refused(refusal)), _) => Err(refusal.into()),
            done => Ok(done),
        }
    }

    /// Ends leases that were not renewed in time and leases that the daemon cannot provide any
    /// more, and retries writing. `home_of` returns the devices of a function.
    pub(crate) fn tick(&self, instances: &Instances, home_of: impl Fn(&FunctionKey) -> Home) {
        let mut state = self.lock();
        if state.details.is_empty() && state.journal.is_empty() {
            return;
        }
        self.follow_devices(instances, &mut state);
        self.send(instances, &mut state, Event::Tick, None);
        self.revoke_broken(instances, &mut state, home_of);
    }

    /// Revokes leases that the daemon cannot provide any more.
    fn revoke_broken(&self, instances: &Instances, state: &mut State, home_of: impl Fn(&FunctionKey) -> Home) {
        let why = |grant: Grant| Some((grant.lease, self.broken(instances, state, &grant, &home_of)?));
        let broken: Vec<(LeaseId, &str)> = state.ledger.leases().filter_map(|(grant, _)| why(grant)).collect();
        for (lease, why) in broken {
            tracing::warn!(%lease, why, "a lease was revoked because the daemon cannot provide it any more");
            self.send(instances, state, Event::Revoke { lease }, None);
        }
    }

    /// Why the daemon cannot provide a lease any more; `None` if it can.
    fn broken(
        &self,
        instances: &Instances,
        state: &State,
        grant: &Grant,
        home_of: impl Fn(&FunctionKey) -> Home,
    ) -> Option<&'static str> {
        let detail = state.details.get(&grant.lease)?;
        let key = detail.instance_key(grant.lease);
        if !has_instance(instances, &key) {
            return Some("it has no instance");
        }
        if !self.engine.holds_share(&client(&key)) {
            return Some("the device of its function refused its share");
        }
        match home_of(&detail.function()) {
            Home::Gone => Some("its function was removed"),
            Home::On(devices) if devices != [grant.device] => Some("its function is not on its device any more"),
            Home::On(_) | Home::Loading => None,
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

    /// The capacity of each device and the part that leases have, in the order of the devices.
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

    /// The report of a lease that was just granted. `state` is still locked since the grant.
    fn granted(&self, state: &State, answer: Option<Answer>) -> Result<LeaseReport, LeaseError> {
        let grant = match answer {
            Some(Answer::Granted(grant)) => grant,
            Some(Answer::Refused(refusal)) => return Err(refusal.into()),
            _ => return Err(LeaseError::Panicked),
        };
        let ended = || LeaseError::Refused(Refusal::NoLease(grant.lease));
        let (_, want) = state.ledger.leases().find(|(other, _)| other.lease == grant.lease).ok_or_else(ended)?;
        let detail = state.details.get(&grant.lease).ok_or_else(ended)?;
        // Uses the epoch and the holder of the answer, so that a holder never learns those of
        // another one.
        Ok(self.report(&grant, want, detail, self.now()))
    }

    fn report(&self, grant: &Grant, want: &Want, detail: &Detail, now: Nanos) -> LeaseReport {
        let instance = &detail.instance;
        LeaseReport {
            lease: grant.lease.0,
            epoch: grant.epoch.0,
            tenant: detail.tenant.clone(),
            holder: name_of(&grant.holder),
            function: detail.function().to_string(),
            // Requests name it without the tenant, as they name all instances.
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

    /// Tells the ledger which devices were lost, drained, resumed, or are available again.
    fn follow_devices(&self, instances: &Instances, state: &mut State) {
        let current = self.engine.devices_state().devices;
        let mut actions = Vec::new();
        for (at, device) in current.iter().enumerate().take(self.capacities.len()) {
            let (id, capacity) = (DeviceId(at as u16), self.capacities[at]);
            let (was_lost, was_drained) = state.devices[at];
            if device.is_lost != was_lost {
                let event = match device.is_lost {
                    true => Event::Lost { device: id },
                    false => Event::Device { device: id, capacity },
                };
                self.handle(state, event, &mut actions);
            }
            if device.is_drained != was_drained {
                self.handle(state, Event::Drained { device: id, is_drained: device.is_drained }, &mut actions);
            }
            state.devices[at] = (device.is_lost, device.is_drained);
        }
        self.carry_out(instances, state, actions, None);
    }

    /// Sends an event to the ledger and carries out the actions. See [`Leases::carry_out`] for
    /// `new` and the result.
    fn send(
        &self,
        instances: &Instances,
        state: &mut State,
        event: Event,
        new: Option<Detail>,
    ) -> (Option<Answer>, Option<LeaseError>) {
        let mut actions = Vec::new();
        self.handle(state, event, &mut actions);
        self.carry_out(instances, state, actions, new)
    }

    fn handle(&self, state: &mut State, event: Event, actions: &mut Vec<Action>) {
        // The time is read before the arrivals, so that a renewal that is missed here has arrived
        // later than `now`.
        let now = self.now();
        state.ledger.wait_for(self.arrivals.first());
        state.ledger.handle(now, event, actions);
    }

    /// Carries out actions in order. `new` is the detail of the lease that is granted. Returns the
    /// answer, and an error if an action failed; the remaining actions are carried out in any case.
    fn carry_out(
        &self,
        instances: &Instances,
        state: &mut State,
        actions: Vec<Action>,
        mut new: Option<Detail>,
    ) -> (Option<Answer>, Option<LeaseError>) {
        let (mut answer, mut failed, mut is_new) = (None, None, None);
        for action in actions {
            match action {
                Action::Keep { kept, last } => {
                    if let Some(detail) = new.take() {
                        state.details.insert(kept.lease, detail);
                        is_new = Some(kept.lease);
                    }
                    if let Some(detail) = state.details.get(&kept.lease) {
                        let record = record::write(&kept, detail, self.engine.devices());
                        state.journal.keep(kept.lease.0, record, last);
                    }
                }
                Action::End { lease, key } => state.journal.end(lease.0, key.0),
                Action::Forget(key) => state.journal.forget(key.0),
                Action::Place { lease, .. } => {
                    failed = failed.or(self.write(state).err());
                    // A new lease whose record could not be written gets no instance.
                    if failed.is_none() || is_new != Some(lease) {
                        let placed = place(instances, state, lease);
                        failed = failed.or(placed);
                    }
                }
                Action::Remove { lease, ending } => remove(instances, state, lease, ending),
                Action::Answer(given) => answer = Some(given),
            }
        }
        failed = failed.or(self.write(state).err());
        (answer, failed)
    }

    /// Writes the changes that are not written yet.
    fn write(&self, state: &mut State) -> Result<(), LeaseError> {
        Ok(state.journal.write(|change| self.store.change_leases(change))?)
    }
}

/// Creates the instance of a lease unless it exists. The engine decides which compute units of the
/// device it gets.
fn place(instances: &Instances, state: &State, lease: LeaseId) -> Option<LeaseError> {
    let detail = state.details.get(&lease)?;
    let key = detail.instance_key(lease);
    if has_instance(instances, &key) {
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
    if has_instance(instances, &key)
        && let Err(error) = instances.remove_any(&key)
    {
        tracing::error!(%lease, %error, "the instance of a lease cannot be removed");
    }
}

/// Whether the instance of a lease exists. Older daemons let operators create instances with such
/// names; these do not belong to leases.
fn has_instance(instances: &Instances, key: &FunctionKey) -> bool {
    instances.find(key).is_some_and(|instance| instance.lease.is_some())
}
