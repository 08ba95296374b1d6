//! Answers of a ledger, case by case.

use atoll_core::{DeviceId, Nanos};
use atoll_lease::limits::{KEY_MEMORY, TTL_MAX, TTL_MIN};
use atoll_lease::{Action, Answer, Ask, BadAsk, Capacity, Ending, Epoch, Event, Grant, Holder, Kept, LeaseId};
use atoll_lease::{Ledger, Refusal, RequestKey, Want};

const TTL: Nanos = Nanos(10_000_000_000);

fn want(partition: u32, quota: u32) -> Want {
    Want { device: None, partition, quota, quota_limit: 100, memory_bytes: 10, real_time_slots: 1, ttl: TTL }
}

fn holder(name: &str) -> Holder {
    Holder::new(name).unwrap()
}

fn ask(key: u8, name: &str, want: Want) -> Ask {
    Ask::new(RequestKey([key; 16]), holder(name), want).unwrap()
}

/// Stands in for the daemon: carries out actions in order and keeps the records in memory.
#[derive(Default)]
struct Daemon {
    ledger: Ledger,
    kept: std::collections::BTreeMap<LeaseId, Kept>,
    ended: std::collections::BTreeSet<RequestKey>,
    last: u64,
    now: Nanos,
    log: Vec<Action>,
}

impl Daemon {
    fn with(devices: u16, memory_bytes: u64) -> Daemon {
        let mut daemon = Daemon::default();
        for device in 0..devices {
            daemon.send(Event::Device { device: DeviceId(device), capacity: capacity(memory_bytes) });
        }
        daemon
    }

    fn send(&mut self, event: Event) -> Option<Answer> {
        let mut actions = Vec::new();
        self.ledger.handle(self.now, event, &mut actions);
        self.carry_out(actions)
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Option<Answer> {
        let mut answer = None;
        for action in actions {
            assert!(answer.is_none(), "the answer comes last");
            match &action {
                Action::Keep { kept, last } => {
                    self.kept.insert(kept.lease, (**kept).clone());
                    assert!(*last >= self.last);
                    self.last = *last;
                }
                Action::End { lease, key } => {
                    assert!(self.kept.remove(lease).is_some());
                    self.ended.insert(*key);
                }
                Action::Forget(key) => assert!(self.ended.remove(key)),
                Action::Answer(given) => answer = Some(given.clone()),
                Action::Place { .. } | Action::Remove { .. } => {}
            }
            self.log.push(action);
        }
        answer
    }

    fn grant(&mut self, ask: Ask) -> Result<Grant, Refusal> {
        granted(self.send(Event::Grant(ask)))
    }

    fn renew(&mut self, grant: &Grant) -> Result<Grant, Refusal> {
        let Grant { lease, epoch, holder, .. } = grant.clone();
        granted(self.send(Event::Renew { lease, epoch, holder }))
    }

    fn restart(&mut self, devices: &[(u16, u64)]) {
        let devices = devices.iter().map(|(device, bytes)| (DeviceId(*device), capacity(*bytes)));
        let mut actions = Vec::new();
        self.ledger = Ledger::restore(
            self.now,
            self.last,
            devices,
            self.kept.values().cloned(),
            self.ended.clone(),
            &mut actions,
        );
        assert_eq!(self.carry_out(actions), None);
    }

    fn endings(&self) -> Vec<(u64, Ending)> {
        let ending = |action: &Action| match action {
            Action::Remove { lease, ending } => Some((lease.0, *ending)),
            _ => None,
        };
        self.log.iter().filter_map(ending).collect()
    }
}

fn capacity(memory_bytes: u64) -> Capacity {
    Capacity { memory_bytes, real_time_slots: 4 }
}

fn granted(answer: Option<Answer>) -> Result<Grant, Refusal> {
    match answer.expect("an answer") {
        Answer::Granted(grant) => Ok(grant),
        Answer::Refused(refusal) => Err(refusal),
        Answer::Done => panic!("a grant or a refusal is due"),
    }
}

#[test]
fn a_request_that_is_sent_twice_is_granted_once() {
    let mut daemon = Daemon::with(1, 100);
    let first = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    assert_eq!(daemon.grant(ask(1, "a", want(50, 100))), Ok(first.clone()));
    assert_eq!(daemon.ledger.leases().count(), 1);
    assert_eq!(daemon.grant(ask(1, "a", want(20, 100))), Err(Refusal::KeyUsed));
    assert_eq!(daemon.grant(ask(1, "b", want(50, 100))), Err(Refusal::KeyUsed));
    // Also after a restart, and after the lease has ended.
    daemon.restart(&[(0, 100)]);
    assert_eq!(daemon.grant(ask(1, "a", want(50, 100))).map(|grant| grant.epoch), Ok(first.epoch));
    daemon.now = Nanos(TTL.0);
    assert_eq!(daemon.grant(ask(1, "a", want(50, 100))), Err(Refusal::Ended));
    daemon.restart(&[(0, 100)]);
    assert_eq!(daemon.grant(ask(1, "a", want(50, 100))), Err(Refusal::Ended));
    daemon.now = Nanos(TTL.0 + KEY_MEMORY.0);
    assert!(daemon.grant(ask(1, "a", want(50, 100))).is_ok(), "forgotten at last");
}

#[test]
fn leases_end_unless_they_are_renewed() {
    let mut daemon = Daemon::with(1, 100);
    let (kept, lost) =
        (daemon.grant(ask(1, "a", want(50, 100))).unwrap(), daemon.grant(ask(2, "b", want(50, 100))).unwrap());
    assert_eq!(daemon.ledger.wakeup(), Some(TTL));
    daemon.now = Nanos(TTL.0 - 1);
    assert_eq!(daemon.renew(&kept).unwrap().expires, Nanos(2 * TTL.0 - 1));
    assert_eq!(daemon.grant(ask(3, "c", want(50, 100))), Err(Refusal::NoRoom));
    daemon.now = TTL;
    daemon.send(Event::Tick);
    assert_eq!(daemon.endings(), [(lost.lease.0, Ending::Expired)]);
    assert_eq!(daemon.renew(&lost), Err(Refusal::NoLease(lost.lease)));
    assert!(daemon.grant(ask(4, "c", want(50, 100))).is_ok(), "its room is free");
    // A clock that steps back ends nothing and revives nothing.
    daemon.now = Nanos(0);
    assert_eq!(daemon.renew(&kept).unwrap().expires, Nanos(2 * TTL.0));
}

#[test]
fn a_repeated_request_extends_its_lease() {
    let mut daemon = Daemon::with(1, 100);
    let first = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    // The answer was lost, or the holder has started again. From now on it counts from this time.
    daemon.now = Nanos(TTL.0 - 1);
    let again = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    assert_eq!((again.lease, again.epoch, again.expires), (first.lease, first.epoch, Nanos(2 * TTL.0 - 1)));
    daemon.now = Nanos(2 * TTL.0 - 2);
    assert!(daemon.renew(&again).is_ok());
    // A request of another holder with the same key extends nothing.
    daemon.now = Nanos(3 * TTL.0 - 3);
    assert_eq!(daemon.grant(ask(1, "b", want(50, 100))), Err(Refusal::KeyUsed));
    daemon.now = Nanos(3 * TTL.0 - 2);
    assert_eq!(daemon.renew(&again), Err(Refusal::NoLease(again.lease)));
}

#[test]
fn a_holder_that_was_replaced_can_do_nothing() {
    let mut daemon = Daemon::with(1, 100);
    let old = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    let take_over = |epoch, name| Event::TakeOver { lease: old.lease, epoch, holder: holder(name) };
    let new = granted(daemon.send(take_over(old.epoch, "a2"))).unwrap();
    assert!(new.epoch > old.epoch && new.holder == holder("a2") && new.device == old.device);
    let stale = Refusal::Stale { lease: old.lease, given: old.epoch };
    assert_eq!(daemon.renew(&old), Err(stale));
    let release = Event::Release { lease: old.lease, epoch: old.epoch, holder: holder("a") };
    assert_eq!(daemon.send(release), Some(Answer::Refused(stale)));
    // Only one of two takeovers succeeds, and a repetition of the first request does not reveal the
    // new epoch.
    assert_eq!(granted(daemon.send(take_over(old.epoch, "a3"))), Err(stale));
    assert_eq!(daemon.grant(ask(1, "a", want(50, 100))), Err(Refusal::Ended));
    // Forged requests: an epoch that was never given out, another holder's name, a lease that never
    // existed.
    for (lease, epoch, name) in [
        (old.lease, Epoch(new.epoch.0 + 1), "a2"),
        (old.lease, new.epoch, "a"),
        (LeaseId(new.lease.0 + 100), new.epoch, "a2"),
    ] {
        let renewed = granted(daemon.send(Event::Renew { lease, epoch, holder: holder(name) }));
        assert_eq!(renewed, Err(Refusal::NoLease(lease)), "{epoch} {name}");
    }
    daemon.restart(&[(0, 100)]);
    assert_eq!(daemon.renew(&old), Err(stale));
    assert!(daemon.renew(&new).is_ok());
    let release = Event::Release { lease: new.lease, epoch: new.epoch, holder: holder("a2") };
    assert_eq!(daemon.send(release.clone()), Some(Answer::Done));
    assert_eq!(daemon.send(release), Some(Answer::Done), "again");
    assert_eq!(daemon.endings(), [(new.lease.0, Ending::Released)]);
}

#[test]
fn epochs_grow_across_restarts_even_if_nothing_is_left() {
    let mut daemon = Daemon::with(1, 100);
    let mut last = Epoch(0);
    for key in 0..5 {
        let grant = daemon.grant(ask(key, "a", want(100, 100))).unwrap();
        assert!(grant.epoch > last);
        last = grant.epoch;
        let release = Event::Release { lease: grant.lease, epoch: grant.epoch, holder: grant.holder };
        assert_eq!(daemon.send(release), Some(Answer::Done));
        daemon.restart(&[(0, 100)]);
    }
}

#[test]
fn promises_fit_time_units_memory_and_slots() {
    let mut daemon = Daemon::with(1, 100);
    // The sum of the areas fits, but two such rectangles overlap in any position.
    assert!(daemon.grant(ask(1, "a", want(60, 80))).is_ok());
    assert_eq!(daemon.grant(ask(2, "a", want(60, 80))), Err(Refusal::NoRoom));
    assert!(daemon.grant(ask(3, "a", want(40, 100))).is_ok());
    let tall = Want { memory_bytes: 101, ..want(1, 1) };
    assert_eq!(daemon.grant(ask(4, "a", tall)), Err(Refusal::TooLarge));
    assert_eq!(daemon.grant(ask(5, "a", Want { memory_bytes: 81, ..want(10, 10) })), Err(Refusal::NoRoom));
    assert_eq!(daemon.grant(ask(6, "a", Want { real_time_slots: 3, ..want(10, 10) })), Err(Refusal::NoRoom));
    let free = daemon.ledger.free().next().unwrap().1;
    assert_eq!((free.memory_bytes, free.real_time_slots), (80, 2));
    let elsewhere = Want { device: Some(DeviceId(7)), ..want(1, 1) };
    assert_eq!(daemon.grant(ask(7, "a", elsewhere)), Err(Refusal::NoDevice(DeviceId(7))));
    daemon.send(Event::Drained { device: DeviceId(0), is_drained: true });
    assert_eq!(
        daemon.grant(ask(8, "a", Want { device: Some(DeviceId(0)), ..want(1, 1) })),
        Err(Refusal::Drained(DeviceId(0)))
    );
}

#[test]
fn leases_of_a_device_that_goes_or_shrinks_move_the_oldest_first() {
    let mut daemon = Daemon::with(2, 100);
    // All on the first device, which is filled first.
    let grants: Vec<Grant> = (1..=3).map(|key| daemon.grant(ask(key, "a", want(30, 100))).unwrap()).collect();
    let pinned = Want { device: Some(DeviceId(0)), ..want(10, 100) };
    let pinned = daemon.grant(ask(4, "a", pinned)).unwrap();
    assert!(grants.iter().all(|grant| grant.device == DeviceId(0)));
    daemon.grant(ask(5, "b", Want { device: Some(DeviceId(1)), ..want(50, 100) })).unwrap();
    daemon.send(Event::Device { device: DeviceId(0), capacity: capacity(20) });
    let device_of = |daemon: &Daemon, lease| daemon.ledger.leases().find(|l| l.0.lease == lease).map(|l| l.0.device.0);
    let places: Vec<Option<u16>> = grants.iter().map(|grant| device_of(&daemon, grant.lease)).collect();
    assert_eq!(places, [Some(0), Some(0), Some(1)], "two fit the memory, the third moves");
    assert_eq!(daemon.endings(), [(pinned.lease.0, Ending::Revoked)]);
    daemon.send(Event::Lost { device: DeviceId(0) });
    let places: Vec<Option<u16>> = grants.iter().map(|grant| device_of(&daemon, grant.lease)).collect();
    assert_eq!(places, [None, None, Some(1)], "the other one is full");
    assert!(daemon.renew(&grants[2]).is_ok());
    // The daemon restarts without any device.
    daemon.restart(&[]);
    assert_eq!(daemon.ledger.leases().count(), 0);
    assert!(daemon.kept.is_empty());
}

#[test]
fn requests_out_of_range_are_no_requests() {
    let check = |want| Ask::new(RequestKey([0; 16]), holder("a"), want).map(drop);
    for partition in [0, 101, 130] {
        assert!(matches!(check(want(partition, 50)), Err(BadAsk::Demand(_))));
        assert!(matches!(check(want(50, partition)), Err(BadAsk::Demand(_) | BadAsk::QuotaLimit { .. })));
    }
    assert_eq!(check(Want { quota_limit: 20, ..want(50, 30) }), Err(BadAsk::QuotaLimit { quota: 30, limit: 20 }));
    assert!(check(Want { quota_limit: 101, ..want(50, 30) }).is_err());
    for ttl in [Nanos(0), Nanos(TTL_MIN.0 - 1), Nanos(TTL_MAX.0 + 1), Nanos(u64::MAX)] {
        assert_eq!(check(Want { ttl, ..want(50, 50) }), Err(BadAsk::Ttl(ttl)));
    }
    assert_eq!(check(Want { real_time_slots: 5000, ..want(50, 50) }), Err(BadAsk::Slots(5000)));
    assert_eq!((Holder::new(""), Holder::new(&"x".repeat(257))), (None, None));
}

#[test]
fn a_lease_whose_instance_cannot_be_created_leaves_its_key_free() {
    let mut daemon = Daemon::with(1, 100);
    let grant = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    assert_eq!(daemon.send(Event::Unplaced { lease: grant.lease }), None);
    assert_eq!(daemon.endings(), [(grant.lease.0, Ending::Unplaced)]);
    assert!(daemon.kept.is_empty() && daemon.ended.is_empty());
    assert_eq!(daemon.renew(&grant), Err(Refusal::NoLease(grant.lease)));
    let again = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    assert!(again.lease > grant.lease && again.epoch > grant.epoch);
    assert_eq!(daemon.send(Event::Unplaced { lease: LeaseId(99) }), None, "a lease that is gone is ignored");
}

#[test]
fn a_takeover_that_cannot_be_written_down_leaves_the_holder_of_before() {
    let mut daemon = Daemon::with(1, 100);
    let old = daemon.grant(ask(1, "a", want(50, 100))).unwrap();
    let event = Event::TakeOver { lease: old.lease, epoch: old.epoch, holder: holder("b") };
    let new = granted(daemon.send(event)).unwrap();
    let Grant { lease, epoch, holder, .. } = old.clone();
    assert_eq!(daemon.send(Event::NotTaken { lease, epoch, holder }), None);
    assert_eq!((daemon.kept[&lease].epoch, daemon.kept[&lease].ask.holder().as_str()), (old.epoch, "a"));
    assert_eq!(daemon.renew(&old).unwrap().epoch, old.epoch);
    assert_eq!(daemon.renew(&new), Err(Refusal::NoLease(lease)), "the epoch was never given out");
    let next = daemon.grant(ask(2, "c", want(50, 100))).unwrap();
    assert!(next.epoch > new.epoch, "the number of the takeover stays used");
}

#[test]
fn a_lease_that_is_revoked_is_not_granted_again_to_a_late_repetition() {
    let mut daemon = Daemon::with(1, 100);
    let grant = daemon.grant(ask(1, "a", want(100, 100))).unwrap();
    assert_eq!(daemon.send(Event::Revoke { lease: grant.lease }), None);
    assert_eq!(daemon.endings(), [(grant.lease.0, Ending::Revoked)]);
    assert_eq!(daemon.grant(ask(1, "a", want(100, 100))), Err(Refusal::Ended));
    daemon.grant(ask(2, "b", want(100, 100))).unwrap();
}

#[test]
fn a_renewal_counts_from_its_arrival_however_long_it_waits() {
    let mut daemon = Daemon::with(1, 100);
    let slow = daemon.grant(ask(1, "a", want(50, 50))).unwrap();
    let gone = daemon.grant(ask(2, "b", want(50, 50))).unwrap();
    daemon.now = Nanos(TTL.0 - 1);
    daemon.ledger.wait_for(Some(daemon.now));
    daemon.now = Nanos(TTL.0 + 2);
    assert_eq!(daemon.send(Event::Tick), None);
    assert_eq!(daemon.renew(&slow).unwrap().expires, Nanos(2 * TTL.0 + 2));
    assert_eq!(daemon.endings(), []);
    daemon.ledger.wait_for(None);
    assert_eq!(daemon.send(Event::Tick), None);
    assert_eq!(daemon.endings(), [(gone.lease.0, Ending::Expired)]);
    // A renewal that arrives at the expiry time or later is refused.
    daemon.ledger.wait_for(Some(Nanos(2 * TTL.0 + 2)));
    daemon.now = Nanos(2 * TTL.0 + 3);
    assert_eq!(daemon.renew(&slow), Err(Refusal::NoLease(slow.lease)));
}
