//! Properties of the rule `atoll`, in random runs with faults: late completions, a clock that stands
//! still, clients that are removed or resized at any time, and lost devices. In a third of the runs
//! launches ignore their epochs, and in another third some work is real-time. In the others no
//! client starves.
//!
//! A failure prints the command that runs its seed alone. `ATOLL_TEST_FULL=1` takes a million
//! steps.

use super::device::{Device, Work};
use atoll_core::packing::{Divisible, Layout, Place};
use atoll_core::rng::Rng;
use atoll_core::tokens::{ShareRequest, ShareSpec, TokenConfig};
use atoll_core::{Class, ClientId, Nanos};
use std::collections::BTreeMap;

const WINDOW: u64 = 10_000;
const MIN_TOKEN: u64 = 100;
const STEPS: u64 = 500;
const WHOLE: u32 = 1_000_000;
/// The part of its request that a client gets at least that a layout has bound to compute units. It
/// is less than all, because the position of its rectangle in time is not a schedule.
const BOUND_PART: f64 = 0.7;
/// Windows after which a client that always had work must have received device time.
const BUSY_WINDOWS: u64 = 8;

fn seeds() -> std::ops::Range<u64> {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    let is_full = std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1");
    only.map_or(0..if is_full { 2_000 } else { 10 }, |seed| seed..seed + 1)
}

/// Runs a check for every seed.
fn for_all(check: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| check(seed));
        run.unwrap_or_else(|_| panic!("again: ATOLL_SEED={seed} cargo test -p atoll-core --test suite tokens"));
    }
}

fn config() -> TokenConfig {
    TokenConfig::for_device(0).with_window(WINDOW, MIN_TOKEN).expect("valid settings")
}

fn share(rng: &mut Rng, request_max: u64) -> ShareSpec {
    let (partition, request) = ([12, 24, 50, 60, 100][rng.below(5) as usize], 1 + rng.below(request_max));
    let limit = (request + rng.below(60)).min(100);
    let percent = |percent: u64| percent as f64 / 100.0;
    ShareSpec::new(&ShareRequest {
        sm_partition: partition.into(),
        quota_request: percent(request),
        quota_limit: percent(limit),
        group: rng.below(3) as u32,
    })
    .expect("a valid share")
}

fn work(rng: &mut Rng, real_time: bool) -> Work {
    let block_max = [20, 200, 1_500][rng.below(3) as usize];
    let block = 1 + rng.below(block_max);
    let class = if real_time && rng.one_in(4) { Class::RealTime } else { Class::BestEffort };
    // Some launches are longer than the window.
    let launch = block * (1 + rng.below(30));
    Work { class, left: 1 + rng.below(10 * WINDOW), launch, block }
}

/// The special feature of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Some work is real-time. It may take the requests of other clients, up to its limit.
    RealTime,
    /// Launches ignore their epochs, so they may take the time of other clients.
    IgnoredEpochs,
    /// Neither.
    Plain,
}

/// Bounds on the use of a client since its share was set or changed.
struct Bound {
    /// Index of the first window that counts.
    from: u64,
    block_max: u64,
    is_real_time: bool,
}

struct Run {
    device: Device,
    rng: Rng,
    kind: Kind,
    bounds: BTreeMap<ClientId, Bound>,
    /// The clients that have work, each with the first window since which it always had some, and
    /// its share has not changed.
    busy_since: BTreeMap<ClientId, u64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let kind = [Kind::Plain, Kind::RealTime, Kind::IgnoredEpochs][(seed % 3) as usize];
        let (device, rng) = (Device::new(config()), Rng::new(seed));
        let mut run = Run { device, rng, kind, bounds: BTreeMap::new(), busy_since: BTreeMap::new() };
        run.device.is_deaf = kind == Kind::IgnoredEpochs;
        run.device.flag_ns = run.rng.below(20);
        for client in 0..2 + run.rng.below(8) {
            run.set(ClientId(client as u32));
        }
        run
    }

    fn set(&mut self, client: ClientId) {
        let share = share(&mut self.rng, 40);
        if self.device.set(client, share) {
            self.busy_since.remove(&client);
            let from = self.device.now / WINDOW + 2;
            // Work that runs meanwhile continues.
            let new = Bound { from, block_max: 0, is_real_time: false };
            self.bounds.entry(client).or_insert(new).from = from;
        }
    }

    fn step(&mut self) {
        match self.rng.below(12) {
            0 | 1 => self.begin_work(),
            2 if self.rng.one_in(8) => {
                let client = ClientId(self.rng.below(10) as u32);
                self.device.remove(client);
                self.bounds.remove(&client);
            }
            3 if self.rng.one_in(4) => {
                let client = ClientId(self.rng.below(10) as u32);
                self.set(client);
            }
            4 => self.device.late_ns = self.rng.below(300),
            5 if self.rng.one_in(10) => self.stand_still(),
            6 if self.rng.one_in(40) => {
                self.device.lose();
                assert_eq!((self.device.ledger.occupied(), self.device.ledger.next_grant()), (0, None));
                self.busy_since.clear();
            }
            _ => {
                let next = self.device.next().unwrap_or(self.device.now + 100);
                let now = next.min(self.device.now + self.rng.below(WINDOW));
                self.device.advance(now.max(self.device.now));
            }
        }
        self.device.advance(self.device.now);
        self.check();
        self.check_busy();
    }

    fn begin_work(&mut self) {
        let work = work(&mut self.rng, self.kind == Kind::RealTime);
        let clients: Vec<ClientId> = self.device.workers.keys().copied().collect();
        let Some(&client) = clients.get(self.rng.below(clients.len().max(1) as u64) as usize) else { return };
        let worker = self.device.workers.get_mut(&client).expect("listed");
        // The kind of work changes only once the old launch is over.
        if worker.work.is_none() && worker.launch.is_none() {
            worker.work = Some(work);
            let bound = self.bounds.get_mut(&client).expect("every client has one");
            let longest = if self.kind == Kind::IgnoredEpochs { work.launch } else { work.block };
            bound.block_max = bound.block_max.max(longest);
            bound.is_real_time |= work.class == Class::RealTime;
        }
    }

    /// While the clock stands still, repeated calls of the ledger change nothing.
    fn stand_still(&mut self) {
        self.device.advance(self.device.now);
        let states = |device: &Device| device.ledger.shares(Nanos(device.now)).collect::<Vec<_>>();
        let before = states(&self.device);
        for _ in 0..50 {
            self.device.advance(self.device.now);
        }
        assert_eq!(states(&self.device), before, "at {}", self.device.now);
    }

    fn check(&mut self) {
        let device = &self.device;
        assert!(device.running() <= WHOLE, "{} of the compute units run at {}", device.running(), device.now);
        assert!(device.ledger.occupied() <= WHOLE);
        assert!(device.ledger.next_grant().is_none_or(|at| at.0 > device.now), "a wake-up in the past");
        let states: Vec<_> = device.ledger.shares(Nanos(device.now)).collect();
        let idle = |client: &ClientId| {
            states.iter().any(|state| state.client == *client && !state.has_token && !state.is_draining)
        };
        // Partitions of waiting clients, and whether each is below its request or real-time.
        let waiting: Vec<(u32, bool)> = device
            .workers
            .iter()
            .filter(|(client, worker)| {
                let may = |work: Work| device.ledger.may_begin(Nanos(device.now), **client, work.class);
                idle(client) && worker.launch.is_none() && worker.work.is_some_and(may)
            })
            .map(|(client, worker)| {
                let used = device.state(*client).asked_ns;
                let request = worker.share.request().of(WINDOW);
                let is_real_time = worker.work.is_some_and(|work| work.class == Class::RealTime);
                (worker.share.partition().millionths(), is_real_time || used < request)
            })
            .collect();
        let free = WHOLE - device.ledger.occupied();
        let fits = |partition: u32| partition <= free;
        if waiting.iter().any(|&(partition, _)| fits(partition)) {
            // Compute units may stay idle for a client below its request that does not fit, and for
            // the next client of the order until earlier launches have ended.
            let drains = states.iter().any(|state| state.is_draining);
            let is_reserved = waiting.iter().any(|&(partition, first)| (first || drains) && !fits(partition));
            assert!(is_reserved, "idle compute units at {}: {waiting:?}, free {free}", device.now);
        }
    }

    /// Checks that no client starves: one that has had work for [`BUSY_WINDOWS`] has received at
    /// least a quarter of its request. The clients of this run are not arranged and their partitions
    /// fit badly, so not all of them can get all of it.
    fn check_busy(&mut self) {
        if self.kind != Kind::Plain {
            return;
        }
        let (device, next) = (&self.device, self.device.now / WINDOW + 1);
        self.busy_since.retain(|client, _| device.workers.get(client).is_some_and(|worker| worker.work.is_some()));
        for (client, worker) in device.workers.iter().filter(|(_, worker)| worker.work.is_some()) {
            let from = *self.busy_since.entry(*client).or_insert(next);
            let elapsed = device.now.saturating_sub(from * WINDOW);
            let (received, request) = (device.received_since(*client, from), worker.share.request());
            assert!(
                elapsed < BUSY_WINDOWS * WINDOW || 4 * received >= request.of(elapsed - WINDOW),
                "{client:?} got {received} of {} since window {from}, at {}",
                request.of(elapsed),
                device.now
            );
        }
    }

    /// Checks that the use within each window, and since the share was set, is within the limit.
    fn check_use(&self) {
        for (client, bound) in &self.bounds {
            let worker = &self.device.workers[client];
            let limit = worker.share.limit().of(WINDOW);
            let slack = MIN_TOKEN + bound.block_max + self.device.flag_ns + 300;
            let slack = slack + if bound.is_real_time { limit + MIN_TOKEN } else { 0 };
            let mut sum = 0;
            for (number, (window, used)) in worker.used.range(bound.from..).enumerate() {
                assert!(*used <= limit + slack, "{client:?} used {used} in window {window}, limit {limit}");
                sum += used;
                let windows = number as u64 + 1;
                let most = limit * (window - bound.from + 1) + slack;
                assert!(sum <= most, "{client:?} used {sum} in {windows} windows, at most {most}");
            }
        }
    }

    fn finish(mut self) {
        self.check_use();
        for client in 0..10 {
            self.device.remove(ClientId(client));
        }
        while let Some(next) = self.device.next() {
            self.device.advance(next);
        }
        let ledger = &self.device.ledger;
        assert!(ledger.is_empty() && ledger.occupied() == 0 && ledger.next_grant().is_none(), "clients are left");
    }
}

#[test]
fn partitions_fit_and_use_stays_within_limits_and_nothing_idles() {
    for_all(|seed| {
        let mut run = Run::new(seed);
        (0..STEPS).for_each(|_| run.step());
        run.finish();
    });
}

#[test]
fn a_client_that_always_has_work_gets_its_request() {
    for_all(|seed| {
        let mut rng = Rng::new(seed ^ 0x5ea);
        let mut device = Device::new(config());
        // Requests that fit one after the other, so that they fit with any partitions.
        let clients = 2 + rng.below(6);
        for client in 0..clients {
            let share = share(&mut rng, 80 / clients);
            assert!(device.set(ClientId(client as u32), share), "the requests fit");
            let block = 1 + rng.below(100);
            let launch = block * (1 + rng.below(30));
            let work = Work { class: Class::BestEffort, left: u64::MAX, launch, block };
            device.workers.get_mut(&ClientId(client as u32)).expect("set").work = Some(work);
        }
        device.advance(0);
        while device.now < 40 * WINDOW {
            let next = device.next().expect("there is work");
            device.advance(next);
        }
        for (client, worker) in &device.workers {
            let (used, request) = (worker.used.range(..40).map(|(_, used)| used).sum::<u64>(), worker.share.request());
            let least = request.of(40 * WINDOW) - request.of(WINDOW);
            assert!(used >= least, "{client:?} got {used} of {}", request.of(40 * WINDOW));
        }
    });
}

/// Clients that a layout binds to compute units, as many as it has room for.
fn bound_clients(rng: &mut Rng) -> Device {
    let mut device = Device::new(config());
    let mut layout = Layout::new(Divisible { units: 100, step: 1, lanes_max: 16 });
    for client in (0..12).map(ClientId) {
        let (share, mut with) = (share(rng, 60), layout.clone());
        with.set(client, &share);
        let has_room = with.places().all(|(_, place)| !matches!(place, Place::Unbound(_)));
        if has_room && device.set(client, share) {
            layout = with;
        }
    }
    for (client, place) in layout.places() {
        device.bind(client, if let Place::Bound(span) = place { Some(span) } else { None });
    }
    device
}

#[test]
fn clients_bound_to_compute_units_share_none_and_get_their_requests() {
    for_all(|seed| {
        let mut rng = Rng::new(seed ^ 0xb0_04d);
        let mut device = bound_clients(&mut rng);
        for worker in device.workers.values_mut() {
            let block = 20 + rng.below(80);
            let launch = block * (1 + rng.below(30));
            worker.work = Some(Work { class: Class::BestEffort, left: u64::MAX, launch, block });
        }
        device.advance(0);
        while device.now < 40 * WINDOW {
            let next = device.next().expect("there is work");
            device.advance(next);
            assert!(!device.has_overlap(), "two clients have a compute unit at {}", device.now);
        }
        for (client, worker) in &device.workers {
            let (received, request) = (device.received_since(*client, 0), worker.share.request().of(39 * WINDOW));
            assert!(received as f64 >= BOUND_PART * request as f64, "{client:?} got {received} of {request}");
        }
    });
}

#[test]
fn lent_time_returns_within_a_block() {
    for_all(|seed| {
        let mut rng = Rng::new(seed ^ 0x1e4d);
        let mut device = Device::new(config());
        let spec = |request: f64| {
            let share = ShareRequest { sm_partition: 100.0, quota_request: request, quota_limit: 1.0, group: 0 };
            ShareSpec::new(&share).expect("a valid share")
        };
        assert!(device.set(ClientId(0), spec(0.3)) && device.set(ClientId(1), spec(0.6)));
        let block = 1 + rng.below(400);
        let borrower = Work { class: Class::BestEffort, left: u64::MAX, launch: block * 40, block };
        device.workers.get_mut(&ClientId(0)).expect("set").work = Some(borrower);
        device.advance(0);
        // The borrower has used its request and runs on lent time.
        let onset = 20 * WINDOW + 4_500 + rng.below(1_000);
        while device.now < onset {
            let next = device.next().expect("there is work").min(onset);
            device.advance(next);
        }
        assert!(device.state(ClientId(0)).used_ns > 3_000 && device.workers[&ClientId(0)].launch.is_some());
        let lender = Work { class: Class::BestEffort, left: 4_000, launch: 50, block: 10 };
        device.workers.get_mut(&ClientId(1)).expect("set").work = Some(lender);
        device.advance(onset);
        while device.workers[&ClientId(1)].launch.is_none() {
            let next = device.next().expect("there is work");
            device.advance(next);
        }
        assert!(device.now <= onset + MIN_TOKEN + block, "lent time came back after {} ns", device.now - onset);
        while device.workers[&ClientId(1)].work.is_some() {
            let next = device.next().expect("there is work");
            device.advance(next);
        }
        assert!(device.now <= onset + WINDOW, "4,000 ns took {} ns, of a request of 6,000", device.now - onset);
    });
}

#[test]
fn launches_that_ignore_their_epochs_are_paid_back() {
    let mut device = Device::new(config());
    device.is_deaf = true;
    let spec = |request, limit| {
        let share = ShareRequest { sm_partition: 100.0, quota_request: request, quota_limit: limit, group: 0 };
        ShareSpec::new(&share).expect("a valid share")
    };
    assert!(device.set(ClientId(0), spec(0.1, 0.1)) && device.set(ClientId(1), spec(0.9, 0.9)));
    for (client, launch) in [(0, 25_000), (1, 500)] {
        let work = Work { class: Class::BestEffort, left: u64::MAX, launch, block: launch };
        device.workers.get_mut(&ClientId(client)).expect("set").work = Some(work);
    }
    device.advance(0);
    while device.now < 2_000 * WINDOW {
        let next = device.next().expect("there is work");
        device.advance(next);
    }
    let used = device.workers[&ClientId(0)].used.values().sum::<u64>() as f64;
    let part = used / device.now as f64;
    assert!((0.095..0.1015).contains(&part), "launches longer than the window took {part} of the device");
}

#[test]
fn a_lost_device_leaves_no_token() {
    let mut run = Run::new(1);
    (0..200).for_each(|_| run.step());
    run.device.ledger.lose_device();
    assert_eq!((run.device.ledger.occupied(), run.device.ledger.next_grant()), (0, None));
}
