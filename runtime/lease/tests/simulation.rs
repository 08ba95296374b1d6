//! Seeded runs of a ledger. The daemon crashes at any point; holders die, are replaced, and repeat
//! lost requests; devices are added, shrink and are lost.
//!
//! A failing seed is printed; `ATOLL_SEED=N cargo test -p atoll-lease` replays it.

use atoll_core::packing::Rect;
use atoll_core::rng::Rng;
use atoll_core::{DeviceId, Nanos};
use atoll_lease::{Action, Answer, Ask, Capacity, Epoch, Event, Grant, Holder, Kept, LeaseId};
use atoll_lease::{Ledger, RequestKey, Want};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 300;
const STEPS: u64 = 400;
const DEVICES: u64 = 3;
const SECOND: u64 = 1_000_000_000;

/// A client, with the last grant that it received.
struct Client {
    ask: Ask,
    grant: Option<Grant>,
    is_alive: bool,
}

struct Run {
    rng: Rng,
    now: u64,
    ledger: Ledger,
    capacities: BTreeMap<DeviceId, Capacity>,
    /// The records on disk.
    kept: BTreeMap<LeaseId, Kept>,
    ended: BTreeSet<RequestKey>,
    last: u64,
    /// The instances of the daemon.
    placed: BTreeMap<LeaseId, (DeviceId, Rect)>,
    clients: Vec<Client>,
    /// All leases that each key has ever got.
    of_key: BTreeMap<RequestKey, BTreeSet<LeaseId>>,
    /// The present epoch of each lease.
    epochs: BTreeMap<LeaseId, Epoch>,
    highest: Epoch,
    /// When each lease was last granted, renewed or restored.
    renewed: BTreeMap<LeaseId, u64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            rng: Rng::new(seed),
            now: 0,
            ledger: Ledger::default(),
            capacities: BTreeMap::new(),
            kept: BTreeMap::new(),
            ended: BTreeSet::new(),
            last: 0,
            placed: BTreeMap::new(),
            clients: Vec::new(),
            of_key: BTreeMap::new(),
            epochs: BTreeMap::new(),
            highest: Epoch(0),
            renewed: BTreeMap::new(),
        }
    }

    /// Sends an event. The daemon may crash between two actions, and the answer may be lost.
    fn send(&mut self, event: Event) -> Option<Answer> {
        let is_grant = matches!(event, Event::Grant(_));
        let mut actions = Vec::new();
        self.ledger.handle(Nanos(self.now), event, &mut actions);
        if is_grant && self.rng.one_in(15) {
            return self.refuse_instance(actions);
        }
        let crashes_after = self.rng.one_in(20).then(|| self.rng.below(actions.len() as u64 + 1) as usize);
        let (count, crashes) = (crashes_after.unwrap_or(actions.len()), crashes_after.is_some());
        let mut answer = None;
        for action in actions.into_iter().take(count) {
            answer = self.carry_out(action);
        }
        if crashes {
            self.restart();
            return None;
        }
        answer.filter(|_| !self.rng.one_in(10))
    }

    /// A device refuses the instance of a new lease: the daemon ends the lease and sends no grant.
    fn refuse_instance(&mut self, actions: Vec<Action>) -> Option<Answer> {
        let new = actions.iter().find_map(|action| match action {
            Action::Keep { kept, .. } => Some((kept.lease, key_of(kept))),
            _ => None,
        });
        for action in actions {
            let answer = self.carry_out(action);
            if new.is_none() && answer.is_some() {
                return answer;
            }
        }
        let (lease, key) = new?;
        let mut actions = Vec::new();
        self.ledger.handle(Nanos(self.now), Event::Unplaced { lease }, &mut actions);
        actions.into_iter().for_each(|action| assert_eq!(self.carry_out(action), None));
        assert!(!self.kept.contains_key(&lease) && !self.ended.contains(&key));
        // The client has received no grant, so a repetition of its request may get another lease.
        self.of_key.remove(&key);
        None
    }

    fn carry_out(&mut self, action: Action) -> Option<Answer> {
        match action {
            Action::Keep { kept, last } => {
                let known = self.epochs.insert(kept.lease, kept.epoch);
                assert!(known == Some(kept.epoch) || kept.epoch > self.highest, "{kept:?} has an epoch of before");
                self.highest = self.highest.max(kept.epoch);
                assert!(last >= self.last && last >= kept.epoch.0);
                self.of_key.entry(key_of(&kept)).or_default().insert(kept.lease);
                self.last = last;
                self.kept.insert(kept.lease, *kept);
            }
            Action::End { lease, key } => {
                self.kept.remove(&lease);
                self.ended.insert(key);
            }
            Action::Forget(key) => drop(self.ended.remove(&key)),
            Action::Place { lease, device, rect } => drop(self.placed.insert(lease, (device, rect))),
            Action::Remove { lease, .. } => drop(self.placed.remove(&lease)),
            Action::Answer(answer) => {
                if let Answer::Granted(grant) = &answer {
                    assert!(self.kept.contains_key(&grant.lease), "what is answered is durable: {grant:?}");
                    assert!(self.placed.contains_key(&grant.lease), "and has an instance: {grant:?}");
                    self.renewed.insert(grant.lease, self.now);
                }
                return Some(answer);
            }
        }
        None
    }

    /// The daemon starts again with the records on disk. Its instances are gone.
    fn restart(&mut self) {
        self.placed.clear();
        let (devices, kept, ended) = (self.capacities.clone(), self.kept.clone().into_values(), self.ended.clone());
        let mut actions = Vec::new();
        self.ledger = Ledger::restore(Nanos(self.now), self.last, devices, kept, ended, &mut actions);
        self.renewed = self.kept.keys().map(|lease| (*lease, self.now)).collect();
        for action in actions {
            assert_eq!(self.carry_out(action), None);
        }
    }

    fn new_client(&mut self) {
        let number = self.clients.len();
        let want = Want {
            device: self.rng.one_in(4).then(|| DeviceId(self.rng.below(DEVICES) as u16)),
            partition: 1 + self.rng.below(60) as u32,
            quota: 1 + self.rng.below(60) as u32,
            quota_limit: 100,
            memory_bytes: self.rng.below(40),
            real_time_slots: self.rng.below(2) as u32,
            ttl: Nanos((5 + self.rng.below(20)) * SECOND),
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let holder = Holder::new(&format!("client {number}")).unwrap();
        let ask = Ask::new(RequestKey(key), holder, want).unwrap();
        self.clients.push(Client { ask, grant: None, is_alive: true });
    }

    /// A client asks for its lease, or renews it, releases it, or takes it over under another name.
    fn client(&mut self) {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let Client { ask, grant, is_alive } = &self.clients[at];
        if !is_alive {
            return;
        }
        let event = match grant {
            None => Event::Grant(ask.clone()),
            Some(Grant { lease, epoch, holder, .. }) => {
                let (lease, epoch, holder) = (*lease, *epoch, holder.clone());
                match self.rng.below(8) {
                    0 => Event::Release { lease, epoch, holder },
                    1 => Event::TakeOver { lease, epoch, holder: Holder::new(&format!("{holder}'")).unwrap() },
                    _ => Event::Renew { lease, epoch, holder },
                }
            }
        };
        let is_release = matches!(event, Event::Release { .. });
        match self.send(event) {
            Some(Answer::Granted(grant)) => {
                if let Some(before) = &self.clients[at].grant {
                    assert!(grant.lease == before.lease && grant.epoch >= before.epoch);
                }
                self.clients[at].grant = Some(grant);
            }
            Some(Answer::Done) => assert!(is_release),
            Some(Answer::Refused(_)) if self.clients[at].grant.is_some() => self.clients[at].is_alive = false,
            _ => {}
        }
        if is_release {
            self.clients[at].is_alive = false;
        }
    }

    fn device(&mut self) {
        let device = DeviceId(self.rng.below(DEVICES) as u16);
        let event = match self.rng.below(4) {
            0 => {
                self.capacities.remove(&device);
                Event::Lost { device }
            }
            1 => Event::Drained { device, is_drained: self.rng.one_in(2) },
            _ => {
                let capacity = Capacity { memory_bytes: 20 + self.rng.below(100), real_time_slots: 3 };
                self.capacities.insert(device, capacity);
                Event::Device { device, capacity }
            }
        };
        self.send(event);
    }

    fn step(&mut self) {
        self.now += self.rng.below(2 * SECOND);
        while self.ledger.wakeup().is_some_and(|at| at.0 <= self.now) {
            self.send(Event::Tick);
        }
        match self.rng.below(20) {
            0..3 => self.new_client(),
            3..16 if !self.clients.is_empty() => self.client(),
            16 => self.device(),
            17 if !self.clients.is_empty() => {
                let at = self.rng.below(self.clients.len() as u64) as usize;
                self.clients[at].is_alive = false;
            }
            18 if self.rng.one_in(10) => self.restart(),
            _ => drop(self.send(Event::Tick)),
        }
        self.check();
    }

    fn check(&self) {
        let leases: BTreeMap<LeaseId, (Grant, Want)> =
            self.ledger.leases().map(|(grant, want)| (grant.lease, (grant, *want))).collect();
        assert!(leases.keys().eq(self.kept.keys()), "what is promised is what is on disk");
        assert!(leases.keys().eq(self.placed.keys()), "and what has an instance");
        for (device, capacity) in &self.capacities {
            let here: Vec<_> = leases.values().filter(|(grant, _)| grant.device == *device).collect();
            assert!(here.iter().map(|(_, want)| want.memory_bytes).sum::<u64>() <= capacity.memory_bytes);
            assert!(here.iter().map(|(_, want)| want.real_time_slots).sum::<u32>() <= capacity.real_time_slots);
        }
        for (lease, (grant, want)) in &leases {
            let (device, rect) = self.placed[lease];
            assert_eq!(device, grant.device);
            assert!(self.capacities.contains_key(&device), "{grant:?} is on a device that is gone");
            assert!(
                rect.x + rect.w <= 100 && rect.y + rect.h <= 100 && (rect.w, rect.h) == (want.quota, want.partition)
            );
            let others = self.placed.iter().filter(|(other, place)| **other > *lease && place.0 == device);
            for (other, (_, place)) in others {
                assert!(!place.overlaps(rect), "{lease} and {other} have the same compute units at the same time");
            }
            let since = self.now - self.renewed[lease];
            assert!(since < want.ttl.0, "{grant:?} was not renewed for {since} ns");
        }
        assert!(self.of_key.values().all(|leases| leases.len() <= 1), "a key got two leases");
    }
}

fn key_of(kept: &Kept) -> RequestKey {
    kept.ask.key()
}

#[test]
fn nothing_is_promised_twice_whatever_crashes() {
    let seeds = match std::env::var("ATOLL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("ATOLL_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..SEEDS + 1,
    };
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            (0..STEPS).for_each(|_| run.step());
            // Without renewals all leases end.
            run.now += 100 * SECOND;
            while run.ledger.wakeup().is_some_and(|at| at.0 <= run.now) {
                run.send(Event::Tick);
                run.now += 100 * SECOND;
            }
            assert!(run.kept.is_empty() && run.placed.is_empty());
        });
        assert!(failed.is_ok(), "replay with ATOLL_SEED={seed}");
    }
}
