//! Seeded runs of several nodes and of two routers that place replicas on them. The network delays,
//! loses, repeats and reorders messages. Nodes crash, are away for a while, and have clocks that
//! stop or step; both routers may believe at the same time that they are in charge.
//!
//! A failing seed is printed; `ATOLL_SEED=N cargo test -p atoll-lease` replays it.

use atoll_core::rng::Rng;
use atoll_core::{DeviceId, Nanos};
use atoll_lease::{Action, Answer, Ask, Capacity, Ending, Epoch, Event, Grant, Holder, Kept, LeaseId};
use atoll_lease::{Ledger, RequestKey, Want};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 150;
const STEPS: u64 = 500;
const NODES: u64 = 3;
const REPLICAS_MAX: usize = 6;
const SECOND: u64 = 1_000_000_000;

/// Faults of a run besides crashes and lost messages.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Routers take over replicas of each other.
    takes_over: bool,
    /// Clocks of nodes step ahead, so that leases end early.
    steps_ahead: bool,
    /// Disks of nodes are replaced by older copies, with numbers that are then used again.
    restores_copies: bool,
}

/// What happened in a run.
#[derive(Clone, Copy, Default)]
struct Counts {
    renewed: u64,
    taken: u64,
    refused: u64,
}

#[derive(Clone, Default)]
struct Disk {
    kept: BTreeMap<LeaseId, Kept>,
    ended: BTreeSet<RequestKey>,
    last: u64,
}

/// The holder of a lease: its epoch, its name, and the key of its replica.
type Newest = (Epoch, Holder, RequestKey);

#[derive(Default)]
struct Node {
    ledger: Ledger,
    disk: Disk,
    copy: Disk,
    /// Its clock is the time of the run plus `ahead` minus `behind`.
    ahead: u64,
    behind: u64,
    /// It is away until this time.
    away_until: Option<u64>,
    /// The newest grant or takeover of each lease that was answered.
    newest: BTreeMap<LeaseId, Newest>,
    /// The lease that the last event released.
    released: Option<LeaseId>,
}

impl Node {
    /// Time of its clock, which begins at 0 with each restart.
    fn clock(&self, now: u64) -> Nanos {
        Nanos((now + self.ahead).saturating_sub(self.behind))
    }

    fn restart(&mut self, now: u64) {
        self.behind = now + self.ahead;
        let device = (DeviceId(0), Capacity { memory_bytes: 1 << 30, real_time_slots: 8 });
        let Disk { kept, ended, last } = self.disk.clone();
        let mut actions = Vec::new();
        self.ledger = Ledger::restore(self.clock(now), last, [device], kept.into_values(), ended, &mut actions);
        for action in actions {
            assert_eq!(self.carry_out(action), None);
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Answer> {
        match action {
            Action::Keep { kept, last } => {
                self.disk.last = last;
                self.disk.kept.insert(kept.lease, *kept);
            }
            Action::End { lease, key } => {
                self.disk.kept.remove(&lease);
                self.disk.ended.insert(key);
            }
            Action::Forget(key) => drop(self.disk.ended.remove(&key)),
            Action::Remove { lease, ending: Ending::Released } => self.released = Some(lease),
            Action::Place { .. } | Action::Remove { .. } => {}
            Action::Answer(answer) => return Some(answer),
        }
        None
    }

    /// Handles an event. It may crash between two actions, and then answers nothing.
    fn handle(&mut self, now: u64, event: Event, rng: &mut Rng) -> Option<Answer> {
        self.released = None;
        let mut actions = Vec::new();
        self.ledger.handle(self.clock(now), event, &mut actions);
        let crashes_after = rng.one_in(40).then(|| rng.below(actions.len() as u64 + 1) as usize);
        let count = crashes_after.unwrap_or(actions.len());
        let mut answer = None;
        for action in actions.into_iter().take(count) {
            answer = self.carry_out(action);
        }
        if crashes_after.is_some() {
            self.restart(now);
            return None;
        }
        answer
    }

    /// Replaces the disk by an older copy.
    fn restore_copy(&mut self, now: u64) {
        self.disk = self.copy.clone();
        let newest = |kept: &Kept| (kept.lease, (kept.epoch, kept.ask.holder().clone(), kept.ask.key()));
        self.newest = self.disk.kept.values().map(newest).collect();
        self.restart(now);
    }
}

#[derive(Clone)]
struct Request {
    router: usize,
    node: usize,
    replica: u64,
    sent: u64,
    event: Event,
}

#[derive(Clone)]
struct Reply {
    router: usize,
    node: usize,
    replica: u64,
    /// When the request was sent.
    sent: u64,
    answer: Answer,
}

#[derive(Clone)]
enum Packet {
    Request(Request),
    Reply(Reply),
}

/// A replica as a router knows it.
#[derive(Clone)]
struct Belief {
    node: usize,
    ttl: Nanos,
    /// The request that gets its lease.
    first: Event,
    /// Grants up to this epoch are of an earlier holder.
    above: Epoch,
    grant: Option<Grant>,
    /// The lease is valid until then, counted from when the last renewal was sent.
    until: u64,
}

#[derive(Default)]
struct Router {
    /// Whether it believes that it is in charge.
    acts: bool,
    held: BTreeMap<u64, Belief>,
}

struct World {
    rng: Rng,
    faults: Faults,
    now: u64,
    nodes: Vec<Node>,
    routers: [Router; 2],
    /// Leases as a router wrote them down for the other one: node, time to live, grant.
    board: BTreeMap<u64, (usize, Nanos, Grant)>,
    network: BTreeMap<(u64, u64), Packet>,
    packets: u64,
    replicas: u64,
    counts: Counts,
}

fn key(replica: u64) -> RequestKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&replica.to_le_bytes());
    RequestKey(key)
}

fn holder(router: usize, replica: u64) -> Holder {
    Holder::new(&format!("router-{router}/{replica}")).unwrap()
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::default()).collect();
        nodes.iter_mut().for_each(|node| node.restart(0));
        World {
            rng: Rng::new(seed),
            faults,
            now: 0,
            nodes,
            routers: [Router { acts: true, ..Router::default() }, Router::default()],
            board: BTreeMap::new(),
            network: BTreeMap::new(),
            packets: 0,
            replicas: 0,
            counts: Counts::default(),
        }
    }

    /// Sends a packet: lost, or once or twice, usually soon and sometimes late.
    fn transmit(&mut self, packet: &Packet) {
        let copies = match self.rng.below(10) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay_max = if self.rng.one_in(10) { 8 * SECOND } else { SECOND / 5 };
            let delay = self.rng.below(delay_max);
            self.packets += 1;
            self.network.insert((self.now + delay, self.packets), packet.clone());
        }
    }

    fn send(&mut self, router: usize, replica: u64, node: usize, event: Event) {
        let sent = self.now;
        self.transmit(&Packet::Request(Request { router, node, replica, sent, event }));
    }

    /// A router does one thing.
    fn act(&mut self, at: usize) {
        if !self.routers[at].acts {
            return;
        }
        match self.rng.below(10) {
            0..2 if self.routers[at].held.len() < REPLICAS_MAX => self.deploy(at),
            2 if self.faults.takes_over => self.take_over(at),
            _ => self.tend(at),
        }
    }

    /// A router asks for the lease of a new replica.
    fn deploy(&mut self, at: usize) {
        self.replicas += 1;
        let replica = self.replicas;
        let want = Want {
            device: None,
            partition: 30,
            quota: 40,
            quota_limit: 80,
            memory_bytes: 1 << 20,
            real_time_slots: 1,
            ttl: Nanos((5 + self.rng.below(4)) * SECOND),
        };
        let ask = Ask::new(key(replica), holder(at, replica), want).unwrap();
        let (node, first) = (self.rng.below(NODES) as usize, Event::Grant(ask));
        let belief = Belief { node, ttl: want.ttl, first: first.clone(), above: Epoch(0), grant: None, until: 0 };
        self.routers[at].held.insert(replica, belief);
        self.send(at, replica, node, first);
    }

    /// A router takes over a replica that the other one wrote down.
    fn take_over(&mut self, at: usize) {
        let held = &self.routers[at].held;
        let others: Vec<u64> = self.board.keys().copied().filter(|replica| !held.contains_key(replica)).collect();
        if others.is_empty() {
            return;
        }
        let replica = others[self.rng.below(others.len() as u64) as usize];
        let (node, ttl, Grant { lease, epoch, .. }) = self.board[&replica].clone();
        let first = Event::TakeOver { lease, epoch, holder: holder(at, replica) };
        let belief = Belief { node, ttl, first: first.clone(), above: epoch, grant: None, until: 0 };
        self.routers[at].held.insert(replica, belief);
        self.send(at, replica, node, first);
    }

    /// A router repeats a request that was not answered, or renews or releases a lease.
    fn tend(&mut self, at: usize) {
        let count = self.routers[at].held.len() as u64;
        if count == 0 {
            return;
        }
        let index = self.rng.below(count) as usize;
        let (replica, belief) = self.routers[at].held.iter().nth(index).expect("the index is below the count");
        let (replica, belief) = (*replica, belief.clone());
        let event = match belief.grant {
            None => belief.first,
            Some(Grant { lease, epoch, holder, .. }) => match self.rng.one_in(15) {
                true => {
                    self.routers[at].held.remove(&replica);
                    self.board.remove(&replica);
                    Event::Release { lease, epoch, holder }
                }
                false => Event::Renew { lease, epoch, holder },
            },
        };
        self.send(at, replica, belief.node, event);
    }

    /// A request arrives at its node. Only the newest holder of a lease has success.
    fn arrive(&mut self, request: Request) {
        let Request { router, node: at, replica, sent, event } = request;
        let node = &mut self.nodes[at];
        if node.away_until.is_some() {
            return;
        }
        let answer = node.handle(self.now, event.clone(), &mut self.rng);
        match (&event, &answer) {
            (Event::Grant(ask), Some(Answer::Granted(grant))) => {
                let new = (grant.epoch, grant.holder.clone(), ask.key());
                let before = node.newest.insert(grant.lease, new);
                // The epoch is higher where the answer to a takeover was lost in a crash.
                let is_own = before.is_none_or(|(newest, _, of)| newest <= grant.epoch && of == ask.key());
                assert!(is_own, "{grant:?} was another one's");
            }
            (Event::TakeOver { epoch, .. }, Some(Answer::Granted(grant))) => {
                let new = (grant.epoch, grant.holder.clone(), key(replica));
                let before = node.newest.insert(grant.lease, new);
                let is_newest = before.is_some_and(|(newest, _, of)| newest == *epoch && of == key(replica));
                assert!(is_newest && grant.epoch > *epoch, "{event:?} was not by the newest epoch");
                self.counts.taken += 1;
            }
            (Event::Renew { lease, epoch, holder }, Some(Answer::Granted(_))) => {
                let own = (*epoch, holder.clone(), key(replica));
                assert_eq!(node.newest.get(lease), Some(&own), "only the newest holder renews");
                self.counts.renewed += 1;
            }
            (Event::Release { lease, epoch, holder }, _) if node.released == Some(*lease) => {
                let own = (*epoch, holder.clone(), key(replica));
                assert_eq!(node.newest.get(lease), Some(&own), "only the newest holder releases");
            }
            (_, Some(Answer::Refused(_))) => self.counts.refused += 1,
            _ => {}
        }
        if let Some(answer) = answer {
            self.transmit(&Packet::Reply(Reply { router, node: at, replica, sent, answer }));
        }
    }

    /// An answer arrives at its router.
    fn answered(&mut self, reply: Reply) {
        let Reply { router: at, node, replica, sent, answer } = reply;
        let router = &mut self.routers[at];
        let Some(belief) = router.held.get_mut(&replica).filter(|belief| belief.node == node) else { return };
        match answer {
            Answer::Granted(grant) => {
                let is_old = belief.grant.as_ref().is_some_and(|known| known.epoch > grant.epoch);
                if is_old || grant.epoch <= belief.above || grant.holder != holder(at, replica) {
                    return;
                }
                belief.until = belief.until.max(sent + belief.ttl.0);
                belief.grant = Some(grant.clone());
                if router.acts {
                    self.board.insert(replica, (node, belief.ttl, grant));
                }
            }
            Answer::Refused(_) => {
                router.held.remove(&replica);
                self.board.remove(&replica);
            }
            Answer::Done => {}
        }
    }

    fn step(&mut self) {
        self.now += self.rng.below(SECOND / 2);
        for node in &mut self.nodes {
            if node.away_until.is_some_and(|until| until <= self.now) {
                node.away_until = None;
                node.restart(self.now);
            }
        }
        while let Some(entry) = self.network.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            match entry.remove() {
                Packet::Request(request) => self.arrive(request),
                Packet::Reply(reply) => self.answered(reply),
            }
        }
        self.disturb();
        for _ in 0..3 {
            let router = self.rng.below(2) as usize;
            self.act(router);
        }
        self.check();
    }

    fn disturb(&mut self) {
        let node = &mut self.nodes[self.rng.below(NODES) as usize];
        let router = &mut self.routers[self.rng.below(2) as usize];
        match self.rng.below(40) {
            0 => node.restart(self.now),
            1 => node.away_until = Some(self.now + self.rng.below(10 * SECOND)),
            // Its clock stops or steps back.
            2 => node.behind += self.rng.below(4 * SECOND),
            3 if self.faults.steps_ahead => node.ahead += self.rng.below(10 * SECOND),
            4 if self.faults.restores_copies => node.copy = node.disk.clone(),
            5 if self.faults.restores_copies => node.restore_copy(self.now),
            6..9 => router.acts = !router.acts,
            // It starts again and has forgotten its replicas.
            9 => router.held.clear(),
            10..20 => drop(node.handle(self.now, Event::Tick, &mut self.rng)),
            _ => {}
        }
    }

    /// Whenever the newest holder of a lease counts it as valid, its node has it.
    fn check(&self) {
        if self.faults.steps_ahead || self.faults.restores_copies {
            return;
        }
        for belief in self.routers.iter().flat_map(|router| router.held.values()) {
            let Some(grant) = belief.grant.as_ref().filter(|_| self.now < belief.until) else { continue };
            let node = &self.nodes[belief.node];
            let is_newest = node.newest.get(&grant.lease).is_some_and(|newest| newest.0 == grant.epoch);
            assert!(
                !is_newest || node.disk.kept.contains_key(&grant.lease),
                "the holder of {grant:?} counts on it until {}, and at {} its node has ended it",
                belief.until,
                self.now
            );
        }
    }

    /// Routers are gone: all leases end.
    fn end(&mut self) {
        for _ in 0..10 {
            self.now += 1000 * SECOND;
            for node in &mut self.nodes {
                drop(node.handle(self.now, Event::Tick, &mut self.rng));
            }
        }
        assert!(self.nodes.iter().all(|node| node.disk.kept.is_empty()));
    }
}

fn run(faults: Faults) -> Counts {
    let seeds = match std::env::var("ATOLL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("ATOLL_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..SEEDS + 1,
    };
    let mut sum = Counts::default();
    for seed in seeds {
        let done = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, faults);
            (0..STEPS).for_each(|_| world.step());
            world.end();
            world.counts
        });
        let Ok(counts) = done else { panic!("replay with ATOLL_SEED={seed}") };
        sum.renewed += counts.renewed;
        sum.taken += counts.taken;
        sum.refused += counts.refused;
    }
    sum
}

#[test]
fn holders_stop_before_their_nodes_end_the_leases() {
    let counts = run(Faults { takes_over: true, ..Faults::default() });
    assert!(counts.renewed > 0 && counts.taken > 0 && counts.refused > 0);
}

#[test]
fn an_old_epoch_has_no_success_whatever_the_clocks_do() {
    let counts = run(Faults { takes_over: true, steps_ahead: true, ..Faults::default() });
    assert!(counts.renewed > 0 && counts.taken > 0 && counts.refused > 0);
}

#[test]
fn a_node_with_an_older_disk_renews_only_what_is_on_it() {
    let counts = run(Faults { restores_copies: true, ..Faults::default() });
    assert!(counts.renewed > 0 && counts.refused > 0);
}
