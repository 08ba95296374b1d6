//! A daemon of a node, with the ledger that real daemons have.

use atoll_client::{CapacityReport, DeviceCapacity, DeviceCondition, FreeShare, LeaseHold, LeaseReport, LeaseSpec};
use atoll_core::{DeviceId, Nanos};
use atoll_kubernetes::daemon::Answer;
use atoll_kubernetes::request::{Ask, Refused};
use atoll_lease::{Action, Capacity, Epoch, Event, Grant, Holder, Kept, LeaseId, Ledger, Refusal, RequestKey, Want};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) struct Node {
    ledger: Ledger,
    kept: BTreeMap<LeaseId, Kept>,
    ended: BTreeSet<RequestKey>,
    last: u64,
    capacity: Capacity,
    began: Duration,
    pub(super) is_up: bool,
}

impl Node {
    pub(super) fn new(memory_bytes: u64) -> Node {
        let capacity = Capacity { memory_bytes, real_time_slots: 4 };
        let mut node = Node {
            ledger: Ledger::default(),
            kept: BTreeMap::new(),
            ended: BTreeSet::new(),
            last: 0,
            capacity,
            began: Duration::ZERO,
            is_up: true,
        };
        node.restart(Duration::ZERO);
        node
    }

    /// The daemon starts with what it has on disk.
    pub(super) fn restart(&mut self, now: Duration) {
        (self.began, self.is_up) = (now, true);
        let mut actions = Vec::new();
        let (kept, ended) = (self.kept.clone().into_values(), self.ended.clone());
        self.ledger = Ledger::restore(Nanos(0), self.last, [(DeviceId(0), self.capacity)], kept, ended, &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Option<atoll_lease::Answer> {
        let mut answer = None;
        for action in actions {
            match action {
                Action::Keep { kept, last } => {
                    self.last = last;
                    self.kept.insert(kept.lease, *kept);
                }
                Action::End { lease, key } => {
                    self.kept.remove(&lease);
                    self.ended.insert(key);
                }
                Action::Forget(key) => drop(self.ended.remove(&key)),
                Action::Place { .. } | Action::Remove { .. } => {}
                Action::Answer(given) => answer = Some(given),
            }
        }
        answer
    }

    fn send(&mut self, now: Duration, event: Event) -> Option<atoll_lease::Answer> {
        let mut actions = Vec::new();
        let now = Nanos((now - self.began).as_nanos() as u64);
        self.ledger.handle(now, event, &mut actions);
        self.carry_out(actions)
    }

    /// Ends leases that were not renewed.
    pub(super) fn tick(&mut self, now: Duration) {
        if self.is_up {
            self.send(now, Event::Tick);
        }
    }

    /// The leases, by number with their holders.
    pub(super) fn leases(&self) -> BTreeMap<u64, String> {
        let lease = |(grant, _): (Grant, &Want)| (grant.lease.0, grant.holder.as_str().to_owned());
        self.ledger.leases().map(lease).collect()
    }

    /// Answers a request as the HTTP interface of a daemon does.
    pub(super) fn ask(&mut self, now: Duration, ask: &Ask) -> Result<Answer, Refused> {
        let hold = |hold: &LeaseHold| (LeaseId(hold.lease), Epoch(hold.epoch), Holder::new(&hold.holder).unwrap());
        let event = match ask {
            Ask::Capacity => {
                self.send(now, Event::Tick);
                return Ok(Answer::Capacity(self.report()));
            }
            Ask::Grant(spec) => Event::Grant(wanted(spec)),
            Ask::Renew(held) => {
                let (lease, epoch, holder) = hold(held);
                Event::Renew { lease, epoch, holder }
            }
            Ask::Release(held) => {
                let (lease, epoch, holder) = hold(held);
                Event::Release { lease, epoch, holder }
            }
        };
        match self.send(now, event).unwrap() {
            atoll_lease::Answer::Granted(grant) => Ok(Answer::Lease(Some(Box::new(report(&grant))))),
            atoll_lease::Answer::Done => Ok(Answer::Lease(None)),
            atoll_lease::Answer::Refused(refusal) => Err(refused(refusal)),
        }
    }

    fn report(&self) -> CapacityReport {
        let free = self.ledger.free().next().unwrap().1;
        let rects = free.rects.iter();
        let device = DeviceCapacity {
            device: "host:0".into(),
            state: DeviceCondition::Ready,
            compute_units: 4,
            promised_sm_pct: 0.0,
            free: rects
                .map(|rect| FreeShare { sm_partition: rect.h.into(), quota: f64::from(rect.w) / 100.0 })
                .collect(),
            memory_bytes: self.capacity.memory_bytes,
            promised_memory_bytes: self.capacity.memory_bytes - free.memory_bytes,
            real_time_slots: self.capacity.real_time_slots,
            promised_real_time_slots: self.capacity.real_time_slots - free.real_time_slots,
        };
        CapacityReport { leases: self.kept.len(), devices: vec![device] }
    }
}

/// The request as the daemon gives it to its ledger.
fn wanted(spec: &LeaseSpec) -> atoll_lease::Ask {
    let mut key = [0; 16];
    let id = spec.request_id.as_bytes();
    key[..id.len()].copy_from_slice(id);
    let want = Want {
        device: Some(DeviceId(0)),
        partition: spec.sm_partition as u32,
        quota: (spec.quota_request * 100.0) as u32,
        quota_limit: (spec.quota_limit * 100.0) as u32,
        memory_bytes: spec.gpu_mem as u64,
        real_time_slots: 0,
        ttl: Nanos(spec.ttl_s as u64 * 1_000_000_000),
    };
    atoll_lease::Ask::new(RequestKey(key), Holder::new(&spec.holder).unwrap(), want).unwrap()
}

fn report(grant: &Grant) -> LeaseReport {
    LeaseReport {
        lease: grant.lease.0,
        epoch: grant.epoch.0,
        tenant: atoll_client::Tenant::default(),
        holder: grant.holder.as_str().into(),
        function: "affine".into(),
        instance: format!("lease-{}", grant.lease.0),
        device: "host:0".into(),
        class: None,
        sm_partition: 0.0,
        quota_request: 0.0,
        quota_limit: 0.0,
        gpu_mem: 0,
        real_time_slots: 0,
        ttl_s: 15,
        expires_in_ms: 15_000,
    }
}

fn refused(refusal: Refusal) -> Refused {
    let status = match refusal {
        Refusal::TooLarge | Refusal::NoDevice(_) => 400,
        Refusal::NoLease(_) => 404,
        Refusal::KeyUsed | Refusal::Ended | Refusal::Stale { .. } => 409,
        Refusal::NoRoom | Refusal::TooMany | Refusal::Drained(_) => 503,
    };
    Refused { status: Some(status), message: refusal.to_string() }
}
