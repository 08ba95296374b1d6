//! Shares of clients on the host device with one compute unit. The tests compare measured device
//! time, so a busy machine slows them down but does not change their results. `atoll bench shares`
//! measures exact figures.

use crate::{fake, toy};
use atoll_device::Device;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::*;
use atoll_kgraph::Bundle;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An engine with one compute unit and the function `f` of each of these tenants.
fn start(tenants: &[&str]) -> (Engine, EngineHandle) {
    let config = HostConfig { compute_units: 1, memory_bytes: 64 << 20, ..HostConfig::default() };
    let device = HostDevice::start(config).expect("a device");
    let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
    let engine = Engine::start(Box::new(device), EngineConfig::default()).expect("an engine");
    let handle = engine.handle();
    let bundle = toy::bundle(&target, &toy::compile());
    tenants.iter().for_each(|tenant| load(&handle, tenant, &bundle));
    (engine, handle)
}

fn load(handle: &EngineHandle, tenant: &str, bundle: &Arc<Bundle>) {
    let options = FunctionOptions {
        key: key(tenant),
        class: Class::BestEffort,
        queue_capacity: Some(1000),
        lane: LaneId::DEFAULT,
        batching: None,
    };
    handle.load(bundle.clone(), options).expect("a function");
}

fn key(tenant: &str) -> FunctionKey {
    FunctionKey { tenant: tenant.parse().expect("a tenant"), name: "f".into() }
}

fn client(tenant: &str, instance: Option<&str>) -> ShareClient {
    ShareClient { tenant: tenant.parse().expect("a tenant"), instance: instance.map(Into::into) }
}

fn share(quota_request: f64, quota_limit: f64) -> ShareSpec {
    ShareSpec::new(&ShareRequest { sm_partition: 100.0, quota_request, quota_limit, group: 0 }).expect("a valid share")
}

fn input(n: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761) | 1 << 31).collect()
}

fn request(tenant: &str, instance: Option<&str>, input: &[u32]) -> InvocationRequest {
    let request = toy::request_of(key(tenant), Class::BestEffort, input);
    InvocationRequest { instance: instance.map(Into::into), ..request }
}

/// A client that always has outstanding requests.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<InvokeError>>,
}

impl Busy {
    /// Calls the tenant's function with a number of requests at a time, until it is stopped or a
    /// request fails.
    fn start(handle: &EngineHandle, tenant: &str, instance: Option<&str>, outstanding: usize) -> Busy {
        let input = input(1600);
        Busy::repeat(handle, request(tenant, instance, &input), toy::expected(&input), outstanding)
    }

    fn repeat(handle: &EngineHandle, request: InvocationRequest, expected: Vec<u8>, outstanding: usize) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let (handle, stopping) = (handle.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (send, answers) = channel();
            let submit = || {
                let send = send.clone();
                handle.submit(request.clone(), Box::new(move |answer| drop(send.send(answer))));
            };
            (0..outstanding).for_each(|_| submit());
            let mut left = outstanding;
            while left > 0 {
                match answers.recv_timeout(Duration::from_secs(60)).expect("an answer") {
                    Ok(result) => assert!(result.outputs[0].bytes == expected, "a wrong answer"),
                    Err(error) => return Some(error),
                }
                match stopping.load(Ordering::Relaxed) {
                    true => left -= 1,
                    false => submit(),
                }
            }
            None
        });
        Busy { stop, thread }
    }

    fn stop(self) -> Option<InvokeError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no wrong answer")
    }
}

/// Device time that clients received, by name.
fn received(handle: &EngineHandle) -> BTreeMap<String, u64> {
    let shares = handle.statistics().shares;
    shares.into_iter().map(|share| (share.client.to_string(), share.received_ns)).collect()
}

/// The device time that a client received, as a fraction of the time that all clients received and
/// of the time that passed. On a busy machine the device is idle at times, so the first fraction
/// may be too high.
#[derive(Clone, Copy, Debug)]
struct Part {
    of_received: f64,
    of_time: f64,
}

/// Waits until the clients have received this much device time together. Returns the part of each.
fn parts(handle: &EngineHandle, at_least: Duration) -> BTreeMap<String, Part> {
    let (before, began) = (received(handle), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let mut parts = received(handle);
        let passed_ns = began.elapsed().as_nanos() as f64;
        parts.iter_mut().for_each(|(client, ns)| *ns -= before.get(client).copied().unwrap_or(0));
        let all: u64 = parts.values().sum();
        if Duration::from_nanos(all) >= at_least {
            let part = |ns: u64| Part { of_received: ns as f64 / all as f64, of_time: ns as f64 / passed_ns };
            return parts.into_iter().map(|(client, ns)| (client, part(ns))).collect();
        }
    }
}

#[test]
fn clients_receive_their_quotas_before_and_after_a_resize() {
    let (engine, handle) = start(&["small", "large"]);
    let set = |tenant, share| handle.set_share(client(tenant, None), LaneId::DEFAULT, share).expect("it fits");
    set("small", share(0.1, 0.1));
    set("large", share(0.9, 0.9));
    let busy = ["small", "large"].map(|tenant| Busy::start(&handle, tenant, None, 2));
    let small = parts(&handle, Duration::from_millis(800))["tenant small"];
    assert!(small.of_received > 0.04 && small.of_time < 0.15, "the client with 10 % received {small:?}");
    set("large", share(0.4, 0.4));
    set("small", share(0.6, 0.6));
    let small = parts(&handle, Duration::from_millis(800))["tenant small"];
    assert!(small.of_received > 0.4 && small.of_time < 0.75, "the client with 60 % received {small:?}");
    let statistics = handle.statistics();
    for share in &statistics.shares {
        assert!(share.windows > 0 && share.tokens > 5 && share.overshoot.count() > 0, "{share:?}");
        assert!(share.received_ratio > 0.0 && share.received_ratio <= 1.0, "{share:?}");
    }
    assert!(statistics.shares.iter().map(|share| share.recalls).sum::<u64>() > 0, "no token ended while launches ran");
    assert!(statistics.evicted_launches > 0);
    assert_eq!(busy.map(Busy::stop), [None, None], "every request is answered");
    engine.shutdown();
}

#[test]
fn a_flooding_tenant_takes_no_more_than_what_others_leave() {
    let (engine, handle) = start(&["flood", "calm"]);
    let set = |tenant, share| handle.set_share(client(tenant, None), LaneId::DEFAULT, share).expect("it fits");
    set("flood", share(0.2, 1.0));
    set("calm", share(0.5, 0.5));
    let flood = Busy::start(&handle, "flood", None, 400);
    let calm = Busy::start(&handle, "calm", None, 2);
    let part = parts(&handle, Duration::from_millis(800))["tenant calm"];
    assert!(part.of_received > 0.35 && part.of_time < 0.65, "the client that was promised half received {part:?}");
    assert_eq!(calm.stop(), None);
    // Time that others leave is lent.
    let before = received(&handle)["tenant flood"];
    while received(&handle)["tenant flood"] < before + 200_000_000 {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(engine);
    assert_eq!(flood.stop(), Some(InvokeError::ShuttingDown), "its queue is longer than the test");
}

#[test]
fn instances_have_shares_of_their_own_and_requests_of_a_removed_one_end() {
    let (engine, handle) = start(&["a"]);
    let unknown = |name: &str| Some(InvokeError::UnknownInstance(name.into()));
    assert_eq!(Busy::start(&handle, "a", Some("fast"), 1).stop(), unknown("fast"), "it does not exist yet");
    let set = |instance, share| handle.set_share(client("a", Some(instance)), LaneId::DEFAULT, share);
    set("fast", share(0.7, 0.7)).expect("it fits");
    set("slow", share(0.2, 0.2)).expect("it fits");
    let error = set("third", share(0.2, 0.2)).expect_err("110 %").to_string();
    assert!(error.contains("come to 110 % of the lane"), "{error}");
    let (fast, slow) = (Busy::start(&handle, "a", Some("fast"), 3), Busy::start(&handle, "a", Some("slow"), 3));
    let found = parts(&handle, Duration::from_millis(600));
    assert!(found["a:fast"].of_received > 0.5 && found["a:slow"].of_received > 0.08, "{found:?}");
    // Most of the time it has a token, or launches of an ended one.
    assert!(handle.remove_share(client("a", Some("fast"))));
    assert!(!handle.remove_share(client("a", Some("fast"))));
    // Requests in flight end; a later request finds no instance.
    let ended = fast.thread.join().expect("no wrong answer");
    let removed = Some(InvokeError::InstanceRemoved("fast".into()));
    assert!(ended == removed || ended == unknown("fast"), "{ended:?}");
    let left: Vec<String> = received(&handle).into_keys().collect();
    assert_eq!(left, ["a:slow"]);
    assert_eq!(slow.stop(), None);
    assert!(handle.remove_share(client("a", Some("slow"))));
    // Without shares everything runs as before.
    let (send, answer) = channel();
    let input = input(64);
    handle.submit(request("a", None, &input), Box::new(move |result| drop(send.send(result))));
    let result = answer.recv_timeout(Duration::from_secs(20)).expect("an answer").expect("a result");
    assert!(result.outputs[0].bytes == toy::expected(&input), "a wrong answer");
    assert_eq!(handle.statistics().shares, []);
    engine.shutdown();
}

/// Blocks that take longer than the token of their client, or than a window. Each is interrupted
/// when the first token ends, and runs to its end with the second one.
#[test]
fn blocks_longer_than_a_token_end_and_take_no_more_than_the_limit() {
    // 20 and 80 ms at 3 GHz.
    for ticks in [60_000, 240_000] {
        let (engine, handle) = start(&["calm"]);
        let target = handle.device_info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
        load(&handle, "long", &toy::dwell_bundle(&target, &toy::compile()));
        let long = client("long", Some("one"));
        handle.set_share(long.clone(), LaneId::DEFAULT, share(0.2, 0.2)).expect("it fits");
        handle.set_share(client("calm", None), LaneId::DEFAULT, share(0.5, 0.5)).expect("it fits");
        let input: Vec<u32> = std::iter::once(ticks).chain(1..toy::PER_BLOCK).collect();
        let copied = input.iter().flat_map(|x| x.to_le_bytes()).collect();
        let blocks = Busy::repeat(&handle, request("long", Some("one"), &input), copied, 1);
        let calm = Busy::start(&handle, "calm", None, 2);
        let found = parts(&handle, Duration::from_millis(1_000));
        let (of_calm, of_long) = (found["tenant calm"], found["long:one"]);
        // On a busy machine the other tenant loses time between its short launches.
        assert!(of_calm.of_received > 0.2 && of_long.of_time < 0.35, "{ticks},000 ticks: {found:?}");
        let statistics = handle.statistics();
        assert!(statistics.discarded_ns > 0, "no block was interrupted: {statistics:?}");
        // A block of it runs, or it pays for one.
        assert!(handle.remove_share(long));
        let ended = blocks.thread.join().expect("no wrong answer");
        let removed = InvokeError::InstanceRemoved("one".into());
        assert!(ended == Some(removed) || ended == Some(InvokeError::UnknownInstance("one".into())), "{ended:?}");
        assert_eq!(calm.stop(), None);
        engine.shutdown();
    }
}

#[test]
fn the_shortest_token_is_twenty_launches_of_the_device() {
    let shortest = |handle: &EngineHandle| {
        handle.set_share(client("a", None), LaneId::DEFAULT, share(0.5, 0.5)).expect("it fits");
        handle.statistics().shares[0].min_token_ns
    };
    let (engine, handle) = start(&[]);
    assert_eq!(shortest(&handle), 20 * handle.device_info().launch_ns);
    engine.shutdown();
    let (device, _) = fake::FakeDevice::new(1);
    let engine = Engine::start(device, EngineConfig::default()).expect("an engine");
    assert_eq!(shortest(&engine.handle()), 20 * fake::LAUNCH_NS);
    engine.shutdown();
}

#[test]
fn shares_are_refused_with_the_cause_and_move_with_their_lane() {
    let (engine, handle) = start(&["a"]);
    let why =
        |lane| handle.set_share(client("a", None), LaneId(lane), share(0.5, 0.5)).expect_err("refused").to_string();
    assert_eq!(why(7), "there is no open lane 7 for the share");
    let lane = handle.open_lane(LaneSpec { units: vec![0], queues: 2 }).expect("a lane");
    handle.set_share(client("a", None), lane.id, share(0.5, 0.5)).expect("the lane is open");
    handle.close_lane(lane.id).expect("it is open");
    let shares = handle.statistics().shares;
    assert!(shares.len() == 1 && shares[0].lane == LaneId::DEFAULT, "{shares:?}");
    assert_eq!((shares[0].share, shares[0].received_ns), (share(0.5, 0.5), 0));
    assert!(handle.remove_share(client("a", None)));
    engine.shutdown();
}
