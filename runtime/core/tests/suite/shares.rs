//! A device with faults whose clients get, change and lose shares at any time, in lanes that open
//! and close. Every task ends, and a removed share leaves no state.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use crate::driver::{Driver, Mix};
use atoll_core::tokens::{BusyTime, RULES, ShareRequest, ShareSpec, Span, TokenConfig};
use atoll_core::{ClientId, DeviceScheduler, Event, LaneConfig, LaneId, POLICIES, PreemptLevel, SchedulerConfig};

const EVENTS_MAX: usize = 60_000;
const CLIENTS: u64 = 4;

fn seeds() -> std::ops::Range<u64> {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    let is_full = std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1");
    only.map_or(0..if is_full { 20_000 } else { 120 }, |seed| seed..seed + 1)
}

struct World {
    scheduler: DeviceScheduler,
    driver: Driver,
    actions: Vec<atoll_core::Action>,
    is_rule_ours: bool,
    opened: u32,
    /// Lanes that joined the ledger of the default lane, which is the first.
    joined: Vec<LaneId>,
    /// Number of tokens of clients that were bound to compute units.
    bound: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mix = Mix { tasks: 50, faults: [0, 8, 30][(seed % 3) as usize], cold: seed.is_multiple_of(4) };
        let mut driver = Driver::new(seed, mix);
        let config = SchedulerConfig {
            policy: &POLICIES[(seed % POLICIES.len() as u64) as usize],
            queues: 1 + driver.rng.below(6) as u32,
            paired_queues: false,
            queue_capacity: 1 + driver.rng.below(4) as u32,
            preempt_level: if seed % 5 == 4 { PreemptLevel::Block } else { PreemptLevel::Interrupt },
            can_abort: driver.rng.below(3) > 0,
            compute_units: 9,
            best_effort_wait_ns_max: (driver.rng.below(3) == 0).then_some(300_000),
            perturb: (driver.rng.below(5) == 0).then_some(seed),
        };
        let rule = &RULES[if seed % 3 == 2 { driver.rng.below(3) as usize } else { 0 }];
        let mut scheduler = DeviceScheduler::new(&config);
        let window = 50_000 + driver.rng.below(400_000);
        scheduler.configure_tokens(
            TokenConfig::for_device(0).with_window(window, window / 40).expect("valid settings").with_rule(rule),
        );
        let is_rule_ours = rule.name == "atoll";
        let joined = vec![LaneId::DEFAULT];
        World { scheduler, driver, actions: Vec::new(), is_rule_ours, opened: 0, joined, bound: 0 }
    }

    /// Runs until every task has ended; returns how often tokens ended while launches ran.
    fn run(mut self) -> (u64, u64) {
        let mut recalls = 0;
        for _ in 0..EVENTS_MAX {
            if self.driver.is_done() {
                let bound = self.bound;
                self.finish();
                return (recalls, bound);
            }
            match self.driver.rng.below(24) {
                0 => self.set_share(),
                1 if self.driver.rng.one_in(4) => self.remove_share(),
                2 if self.driver.rng.one_in(6) => self.change_lanes(),
                _ => {
                    let mut event = self.driver.next(self.scheduler.next_wakeup());
                    if let Event::TaskArrived(spec) = &mut event {
                        spec.client = ClientId((spec.task.0 % CLIENTS) as u32);
                    }
                    if self.driver.rng.below(2) == 0
                        && let Event::LaunchEnded { launch, .. } = event
                    {
                        let busy = BusyTime { ended: self.driver.now, ns: self.driver.rng.below(30_000) };
                        self.scheduler.note_busy(launch, busy);
                    }
                    self.scheduler.handle(self.driver.now, event, &mut self.actions);
                }
            }
            self.carry_out();
            recalls = recalls.max(self.check());
        }
        panic!("{} tasks never end", self.driver.tasks.len());
    }

    fn any_lane(&mut self) -> LaneId {
        let lanes = &self.driver.lanes;
        lanes[self.driver.rng.below(lanes.len() as u64) as usize]
    }

    fn set_share(&mut self) {
        let lane = self.any_lane();
        let rng = &mut self.driver.rng;
        let request = 0.05 + rng.below(40) as f64 / 100.0;
        let share = ShareSpec::new(&ShareRequest {
            sm_partition: [12.0, 24.0, 50.0, 100.0][rng.below(4) as usize],
            quota_request: request,
            quota_limit: (request + rng.below(60) as f64 / 100.0).min(1.0),
            group: 0,
        });
        let client = ClientId(rng.below(CLIENTS) as u32);
        let share = share.expect("a valid share");
        // Refused if the lane is closing or has promised too much.
        let _ = self.scheduler.set_share(self.driver.now, lane, client, share, &mut self.actions);
    }

    fn remove_share(&mut self) {
        let (lane, client) = (self.any_lane(), ClientId(self.driver.rng.below(CLIENTS) as u32));
        self.scheduler.remove_share(self.driver.now, lane, client, &mut self.actions);
    }

    fn change_lanes(&mut self) {
        if self.driver.lanes.len() > 1 && self.driver.rng.below(2) == 0 {
            let lane = self.driver.lanes[1];
            let _ = self.scheduler.close_lane(self.driver.now, lane, &mut self.actions);
            return;
        }
        self.opened += 1;
        let (lane, begin) = (LaneId(self.opened), 8 + 4 * (self.opened % 12));
        let config = LaneConfig { lane, queues: begin..begin + 3, paired_queues: false, compute_units: 3 };
        if self.scheduler.open_lane(&config).is_ok() {
            self.driver.lanes.push(lane);
            if self.driver.rng.one_in(2) {
                // Its units overlap those of other lanes, or not.
                let span = Span { first: self.driver.rng.below(7) as u32, count: 3 };
                self.scheduler.join_lane(lane, span).expect("it is open");
                self.joined.push(lane);
            }
        }
    }

    fn carry_out(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            self.driver.carry_out(&action);
        }
        for lane in std::mem::take(&mut self.driver.closed) {
            self.driver.lanes.retain(|other| *other != lane);
        }
        assert_eq!(self.scheduler.task_count(), self.driver.tasks.len(), "tasks are lost");
    }

    fn check(&mut self) -> u64 {
        self.check_joined();
        let mut recalls = 0;
        for &lane in &self.driver.lanes {
            let shares = self.scheduler.shares(self.driver.now, lane);
            let occupied: u32 = shares.iter().map(|state| state.occupied.millionths()).sum();
            assert!(occupied <= 1_000_000 || !self.is_rule_ours, "{occupied} millionths of {lane:?} have tokens");
            recalls += shares.iter().map(|state| state.recalls).sum::<u64>();
        }
        recalls
    }

    /// Checks the lanes of the shared ledger together: tokens take no more than the device, and no
    /// two clients have a common compute unit.
    fn check_joined(&mut self) {
        let lanes = self.driver.lanes.iter().filter(|lane| self.joined.contains(lane));
        let shares: Vec<_> = lanes.flat_map(|lane| self.scheduler.shares(self.driver.now, *lane)).collect();
        if self.is_rule_ours {
            let occupied: u32 = shares.iter().map(|state| state.occupied.millionths()).sum();
            assert!(occupied <= 1_000_000, "{occupied} millionths of the device have tokens: {shares:?}");
            let spans: Vec<Span> = shares.iter().filter_map(|state| state.occupied_span).collect();
            let overlap = |(at, span): (usize, &Span)| spans[at + 1..].iter().any(|other| other.overlaps(*span));
            assert!(!spans.iter().enumerate().any(overlap), "two clients have a compute unit: {shares:?}");
            self.bound += spans.len() as u64;
        }
        let mut clients: Vec<ClientId> = shares.iter().map(|state| state.client).collect();
        clients.sort_unstable();
        assert!(clients.windows(2).all(|pair| pair[0] != pair[1]), "a client has two shares: {shares:?}");
    }

    fn finish(mut self) {
        for lane in self.driver.lanes.clone() {
            for client in 0..CLIENTS as u32 {
                self.scheduler.remove_share(self.driver.now, lane, ClientId(client), &mut self.actions);
            }
            assert_eq!(self.scheduler.shares(self.driver.now, lane), []);
        }
        assert_eq!(self.scheduler.counters().arrived, self.scheduler.counters().finished);
        assert_eq!(self.scheduler.task_count(), 0);
    }
}

#[test]
fn shares_come_and_go_at_any_time_and_every_task_ends() {
    let (mut recalls, mut bound, seeds) = (0, 0, seeds());
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        let run =
            run.unwrap_or_else(|_| panic!("again: ATOLL_SEED={seed} cargo test -p atoll-core --test suite shares"));
        (recalls, bound) = (recalls + run.0, bound + run.1);
    }
    assert!(count == 1 || bound > count, "only {bound} tokens of clients that are bound: the runs cover too little");
    assert!(count == 1 || recalls > count, "only {recalls} tokens ended while launches ran: the runs cover too little");
}
