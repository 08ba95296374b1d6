//! Clients with shares of a simulated device: splits, limits, and both under faults.
//! `ATOLL_TEST_FULL=1` runs every device and quota, for longer.

use atoll_core::tokens::{RULES, ShareRequest, ShareSpec, Span, TokenConfig};
use atoll_core::{Class, LaunchProfile, Nanos, PaddingOptions, policy_by_name};
use atoll_sim::{
    Client, DeviceParameters, Faults, Kernel, LaneSetup, Load, Model, Received, Report, ShareSetup, Simulation,
    Workload, device_by_name, simulate_shares,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Ten times the calls that the device can answer, in calls per second.
const FLOOD: f64 = 2_500.0;

/// A model whose launches take the given milliseconds, in blocks of `block_ns`.
fn model(name: &str, units: u32, launch_ms: u64, block_ns: u64) -> (String, Model) {
    let waves = (launch_ms * MS / block_ns) as u32;
    let profile = LaunchProfile::new(units * waves, [block_ns]);
    let kernel = Arc::new(Kernel { name: name.to_owned(), profile });
    let kernels = std::iter::repeat_n(kernel, 4).collect();
    (name.to_owned(), Model { name: name.to_owned(), kernels, before_ns: 50_000, after_ns: 0 })
}

fn client(id: &str, model: &str, load: Load) -> Client {
    let class = if id.ends_with("_rt") { Class::RealTime } else { Class::BestEffort };
    Client { id: id.to_owned(), class, model: model.to_owned(), load }
}

fn share(client: &str, partition: f64, request: f64, limit: f64) -> ShareSetup {
    let share = ShareRequest { sm_partition: partition, quota_request: request, quota_limit: limit, group: 0 };
    ShareSetup { client: client.to_owned(), share: ShareSpec::new(&share).expect("a valid share"), removed_at: None }
}

fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

struct Setup {
    device: DeviceParameters,
    policy: &'static str,
    clients: Vec<Client>,
    shares: Vec<ShareSetup>,
    lanes: Vec<LaneSetup>,
    faults: Faults,
    seconds: u64,
    tokens: TokenConfig,
}

impl Setup {
    fn new(device: &str, clients: Vec<Client>, shares: Vec<ShareSetup>) -> Setup {
        let device = *device_by_name(device).expect("a device");
        Setup {
            device,
            policy: "reset",
            clients,
            shares,
            lanes: Vec::new(),
            faults: Faults::default(),
            seconds: if is_full() { 4 } else { 2 },
            tokens: TokenConfig::for_device(device.costs.launch_ns),
        }
    }

    fn run(&self) -> (Report, Vec<Received>) {
        let units = self.device.compute_units;
        let models = BTreeMap::from([
            model("coarse", units, 20, MS),
            model("fine", units, 1, 50_000),
            model("half", units / 2, 5, 250_000),
        ]);
        let (name, duration_ns) = ("shares".to_owned(), self.seconds * SECOND);
        let workload = Workload { name, duration_ns, clients: self.clients.clone() };
        let simulation = Simulation {
            policy: policy_by_name(self.policy).expect("a policy"),
            device: self.device,
            queue_capacity: 4,
            lanes: &self.lanes,
            workload: &workload,
            models: &models,
            padding: PaddingOptions::default(),
            faults: self.faults,
            seed: 1,
            as_disb: false,
        };
        simulate_shares(&simulation, &self.shares, self.tokens).expect("a run")
    }
}

/// The parts of clients in every second that begins at a multiple of 50 ms, relative to all
/// clients; the first half second is left out.
fn seconds(received: &[Received], until: u64) -> Vec<Vec<f64>> {
    let starts = (10..).map(|step| step * 50 * MS).take_while(|start| start + SECOND <= until);
    let parts = |start: u64| {
        let parts: Vec<f64> = received.iter().map(|client| client.part_of(start..start + SECOND)).collect();
        let sum: f64 = parts.iter().sum();
        parts.into_iter().map(|part| part / sum).collect()
    };
    starts.map(parts).collect()
}

fn assert_split(received: &[Received], until: u64, promised: &[f64], what: &str) {
    for parts in seconds(received, until) {
        for (part, promised) in parts.iter().zip(promised) {
            assert!((part - promised).abs() <= 0.01, "{what}: {parts:?} in a second, promised {promised}");
        }
    }
}

#[test]
fn a_split_of_10_to_90_holds_in_any_second() {
    let devices: &[&str] = if is_full() { &["mi50", "v100", "host"] } else { &["host"] };
    for device in devices {
        for (small, large) in [("coarse", "coarse"), ("fine", "coarse"), ("coarse", "fine")] {
            // With limits above the requests, the time of a client without calls is lent to the
            // other one. So both always have calls there.
            let closed = (Load::Continuous, 0.1, 0.9);
            for (load, small_limit, large_limit) in [closed, (Load::Poisson(FLOOD), 1.0, 1.0)] {
                let clients = vec![client("a", small, load.clone()), client("b", large, load)];
                let limits = (small_limit, large_limit);
                let shares = vec![share("a", 100.0, 0.1, limits.0), share("b", 100.0, 0.9, limits.1)];
                let setup = Setup::new(device, clients, shares);
                let (_, received) = setup.run();
                let what = format!("{device}, {small} and {large}, limits {limits:?}");
                assert_split(&received, setup.seconds * SECOND, &[0.1, 0.9], &what);
            }
        }
    }
}

#[test]
fn a_client_that_floods_gets_no_more() {
    for flooding in ["a", "b"] {
        let load = |id: &str| if id == flooding { Load::Poisson(FLOOD) } else { Load::Poisson(300.0) };
        let clients = vec![client("a", "fine", load("a")), client("b", "fine", load("b"))];
        let shares = vec![share("a", 100.0, 0.1, 1.0), share("b", 100.0, 0.9, 1.0)];
        let setup = Setup::new("v100", clients, shares);
        let (report, received) = setup.run();
        assert!(report.clients.iter().any(|client| client.dropped > 2_000), "no client floods");
        assert_split(&received, setup.seconds * SECOND, &[0.1, 0.9], &format!("{flooding} floods"));
    }
}

#[test]
fn throughput_is_linear_in_the_quota() {
    let throughput = |quota: f64| {
        let clients = vec![client("a", "fine", Load::Continuous)];
        let (report, _) = Setup::new("v100", clients, vec![share("a", 100.0, quota, quota)]).run();
        report.throughput(Class::BestEffort)
    };
    let whole = throughput(1.0);
    for tenths in if is_full() { 1..10 } else { 1..3 } {
        let quota = f64::from(tenths) / 10.0;
        let ratio = throughput(quota) / (whole * quota);
        assert!((0.97..=1.03).contains(&ratio), "{quota}: {ratio} of what the quota promises");
    }
}

#[test]
fn without_shares_nothing_changes() {
    let clients = || vec![client("a_rt", "fine", Load::Periodic(50.0)), client("b", "coarse", Load::Continuous)];
    let (with, _) = Setup::new("mi50", clients(), Vec::new()).run();
    let (removed, _) =
        Setup::new("mi50", clients(), vec![ShareSetup { removed_at: Some(Nanos(0)), ..share("b", 100.0, 0.1, 0.1) }])
            .run();
    let served = |report: &Report| report.clients.iter().map(|client| client.served).collect::<Vec<_>>();
    assert_eq!(served(&with), served(&removed), "a share that is removed at once has no effect");
}

#[test]
fn a_share_that_is_removed_frees_its_client() {
    let clients = vec![client("a", "coarse", Load::Continuous)];
    let removed = ShareSetup { removed_at: Some(Nanos(2 * SECOND)), ..share("a", 100.0, 0.2, 0.2) };
    let (_, received) = Setup { seconds: 4, ..Setup::new("v100", clients, vec![removed]) }.run();
    let (before, after) = (received[0].part_of(SECOND..2 * SECOND), received[0].part_of(2 * SECOND..4 * SECOND));
    assert!((before - 0.2).abs() < 0.01 && after > 0.95, "{before} before, {after} after");
    assert!(received[0].share.is_none());
}

#[test]
fn real_time_requests_go_first_and_pay_back() {
    let clients = vec![client("a_rt", "fine", Load::Periodic(20.0)), client("b", "coarse", Load::Continuous)];
    let shares = vec![share("a_rt", 100.0, 0.1, 0.2), share("b", 100.0, 0.8, 1.0)];
    let (report, received) = Setup::new("v100", clients, shares).run();
    // 4 ms, a block of the other client, and the latencies of launches.
    let worst = report.clients[0].latency_us.max;
    assert!(worst < 5_600.0, "a request took {worst} us");
    // A load of 40 % against a limit of 20 %: the debt is paid, requests are late or dropped.
    let clients = vec![client("a_rt", "fine", Load::Periodic(100.0)), client("b", "coarse", Load::Continuous)];
    let shares = vec![share("a_rt", 100.0, 0.1, 0.2), share("b", 100.0, 0.8, 1.0)];
    let setup = Setup::new("v100", clients, shares);
    let (_, overload) = setup.run();
    assert_split(&overload, setup.seconds * SECOND, &[0.2, 0.8], "real-time overload");
    assert!(received[1].part_of(SECOND..2 * SECOND) > 0.85);
}

fn lane(compute_units: u32, span: Option<Span>, clients: &[&str], closes_at: Option<Nanos>) -> LaneSetup {
    let clients = clients.iter().map(|id| (*id).to_owned()).collect();
    LaneSetup { compute_units, span, clients, closes_at }
}

#[test]
fn lanes_with_common_units_share_a_ledger() {
    // Units 0 to 49 and 30 to 79: the clients never run at the same time.
    let span = |first| Some(Span { first, count: 50 });
    let clients = ["a", "b"].map(|id| client(id, "coarse", Load::Continuous)).into();
    let shares = vec![share("a", 60.0, 0.3, 1.0), share("b", 60.0, 0.7, 1.0)];
    let lanes = vec![lane(50, span(0), &["a"], None), lane(50, span(30), &["b"], None)];
    let setup = Setup { lanes, ..Setup::new("v100", clients, shares) };
    let (_, received) = setup.run();
    assert_split(&received, setup.seconds * SECOND, &[0.3, 0.7], "common units");
    let overlap = |a: &std::ops::Range<u64>| {
        let of = |b: &std::ops::Range<u64>| a.end.min(b.end).saturating_sub(a.start.max(b.start));
        received[1].busy.iter().map(of).sum::<u64>()
    };
    assert_eq!(received[0].busy.iter().map(overlap).sum::<u64>(), 0);
    // Units 0 to 39 and 40 to 79: each client has its units all of the time.
    let span = |first| Some(Span { first, count: 40 });
    let clients = ["a", "b"].map(|id| client(id, "half", Load::Continuous)).into();
    let shares = vec![share("a", 50.0, 1.0, 1.0), share("b", 50.0, 1.0, 1.0)];
    let lanes = vec![lane(40, span(0), &["a"], None), lane(40, span(40), &["b"], None)];
    let setup = Setup { lanes, ..Setup::new("v100", clients, shares) };
    let (_, received) = setup.run();
    for client in &received {
        assert!(client.part_of(0..2 * SECOND) > 0.95, "{}: {}", client.client, client.part_of(0..2 * SECOND));
    }
}

#[test]
fn lanes_have_shares_of_their_own() {
    let clients = ["a", "b", "c", "d"].map(|id| client(id, "half", Load::Continuous)).into();
    let own = lane(40, None, &["c", "d"], None);
    let shares = vec![
        share("a", 100.0, 0.3, 0.3),
        share("b", 100.0, 0.7, 0.7),
        share("c", 100.0, 0.6, 0.6),
        share("d", 100.0, 0.4, 0.4),
    ];
    let setup = Setup { lanes: vec![own], ..Setup::new("v100", clients, shares) };
    let (_, received) = setup.run();
    for (pair, promised) in received.chunks(2).zip([0.3, 0.6]) {
        let parts = [0, 1].map(|at| pair[at].part_of(SECOND..2 * SECOND));
        // The default lane has all compute units, so that lanes wait for each other.
        let split = parts[0] / (parts[0] + parts[1]);
        assert!((split - promised).abs() < 0.02, "{parts:?}");
    }
    // After the lane is closed, its clients continue in the default lane with their shares.
    let closes_at = Some(Nanos(SECOND / 2));
    let clients = ["a", "b"].map(|id| client(id, "half", Load::Continuous)).into();
    let own = lane(40, None, &["b"], closes_at);
    let shares = vec![share("a", 100.0, 0.7, 0.7), share("b", 100.0, 0.3, 0.3)];
    let setup = Setup { lanes: vec![own], ..Setup::new("v100", clients, shares) };
    let (_, received) = setup.run();
    let parts = received.iter().map(|client| client.part_of(SECOND..2 * SECOND)).collect::<Vec<_>>();
    assert!((parts[0] - 0.7).abs() < 0.03 && (parts[1] - 0.3).abs() < 0.02, "{parts:?}");
}

#[test]
fn faults_do_not_break_a_split() {
    let faults = Faults { lost_wakeups: 0.02, failing_resets: 0.02, ..Faults::default() };
    let clients = vec![client("a", "fine", Load::Continuous), client("b", "coarse", Load::Continuous)];
    let shares = vec![share("a", 100.0, 0.3, 0.3), share("b", 100.0, 0.7, 0.7)];
    let setup = Setup { faults, seconds: 4, ..Setup::new("v100", clients, shares) };
    let (_, received) = setup.run();
    let parts: Vec<f64> = received.iter().map(|client| client.part_of(SECOND..4 * SECOND)).collect();
    assert!(parts[0] <= 0.31 && parts[1] <= 0.71 && parts[0] > 0.27 && parts[1] > 0.6, "{parts:?}");
}

#[test]
fn every_rule_runs_every_policy() {
    for rule in RULES {
        for policy in ["reset", "reef", "streams", "sequential", "block-wait", "edf"] {
            let clients = vec![
                client("a_rt", "fine", Load::Periodic(30.0)),
                client("b", "coarse", Load::Continuous),
                client("c", "fine", Load::Continuous),
            ];
            let shares = vec![share("a_rt", 50.0, 0.3, 0.5), share("b", 50.0, 0.4, 0.8), share("c", 24.0, 0.3, 1.0)];
            let mut setup = Setup { policy, seconds: 1, ..Setup::new("v100", clients, shares) };
            setup.tokens = setup.tokens.with_rule(rule);
            let (report, _) = setup.run();
            let served = report.clients.iter().map(|client| client.served).collect::<Vec<_>>();
            assert!(served.iter().all(|served| *served > 0), "{} under {policy}: {served:?}", rule.name);
        }
    }
}
