//! Clients with shares that are bound to compute units: instances on a host device with two units.

use crate::toy;
use atoll_core::tokens::Span;
use atoll_device::Device;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

/// An engine with two compute units and a function.
fn start() -> (Engine, EngineHandle) {
    let config = HostConfig { compute_units: 2, memory_bytes: 64 << 20, ..HostConfig::default() };
    let device = HostDevice::start(config).expect("a device");
    let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
    let engine = Engine::start(Box::new(device), EngineConfig::default()).expect("an engine");
    let handle = engine.handle();
    let options = FunctionOptions {
        key: FunctionKey::local("f"),
        class: Class::BestEffort,
        queue_capacity: Some(1000),
        lane: LaneId::DEFAULT,
        batching: None,
    };
    handle.load(toy::bundle(&target, &toy::compile()), options).expect("a function");
    (engine, handle)
}

fn client(instance: &str) -> ShareClient {
    ShareClient { tenant: Tenant::default(), instance: Some(instance.into()) }
}

fn place(handle: &EngineHandle, instance: &str, percent: f64, request: f64) -> Result<(), EngineError> {
    let request = ShareRequest { sm_partition: percent, quota_request: request, quota_limit: 1.0, group: 0 };
    handle.place_share(client(instance), ShareSpec::new(&request).expect("a valid share"))
}

fn input(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect()
}

fn call(handle: &EngineHandle, instance: &str, input: &[u32]) -> Receiver<Answer> {
    let (send, answer) = channel();
    let request = toy::request("f", Class::BestEffort, input);
    let request = InvocationRequest { instance: Some(instance.into()), ..request };
    handle.submit(request, Box::new(move |result| drop(send.send(result))));
    answer
}

fn answer(pending: &Receiver<Answer>) -> Answer {
    pending.recv_timeout(Duration::from_secs(60)).expect("an answer")
}

fn expect(pending: &Receiver<Answer>, input: &[u32]) {
    let result = answer(pending).expect("a result");
    assert!(result.outputs[0].bytes == toy::expected(input), "a wrong answer");
}

/// The compute units to which each instance is bound.
fn bound(handle: &EngineHandle) -> Vec<(String, Option<(u32, u32)>)> {
    let mut shares = handle.statistics().shares;
    shares.sort_by(|a, b| a.client.cmp(&b.client));
    let span = |share: &ShareStatistics| share.bound.map(|Span { first, count }| (first, count));
    shares.iter().map(|share| (share.client.to_string(), span(share))).collect()
}

/// Chunks that each compute unit ran.
fn chunks(handle: &EngineHandle) -> Vec<u64> {
    handle.statistics().device.units.iter().map(|unit| unit.chunks).collect()
}

/// Waits until the device has only this many lanes.
fn await_lanes(handle: &EngineHandle, count: usize) {
    while handle.statistics().device.lanes.len() != count {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn named(places: &[(&str, Option<(u32, u32)>)]) -> Vec<(String, Option<(u32, u32)>)> {
    places.iter().map(|(name, place)| ((*name).to_owned(), *place)).collect()
}

#[test]
fn instances_run_on_the_compute_units_that_they_are_bound_to() {
    let (engine, handle) = start();
    place(&handle, "left", 50.0, 0.6).expect("it fits");
    place(&handle, "right", 50.0, 0.6).expect("it fits");
    assert_eq!(bound(&handle), named(&[("left", Some((0, 1))), ("right", Some((1, 1)))]));
    let inputs: Vec<Vec<u32>> = (0..6).map(|seed| input(4_000, seed)).collect();
    for (instance, unit) in [("left", 0), ("right", 1)] {
        let before = chunks(&handle);
        let pending: Vec<_> = inputs.iter().map(|input| call(&handle, instance, input)).collect();
        pending.iter().zip(&inputs).for_each(|(pending, input)| expect(pending, input));
        let after = chunks(&handle);
        assert!(after[unit] > before[unit], "{instance}: {before:?} to {after:?}");
        assert_eq!(after[1 - unit], before[1 - unit], "{instance} ran on a compute unit of another instance");
    }
    let shares = handle.statistics().shares;
    for share in &shares {
        assert_eq!(share.granted.to_string(), "50 %");
        // One of two units: half of the device.
        assert_eq!(share.received_unit_ns, u128::from(share.received_ns), "{share:?}");
        assert!(share.received_ns > 0 && share.unbound.is_none() && share.area.is_some(), "{share:?}");
    }
    // 24 % is rounded up to a unit, which it shares with an instance that leaves time.
    place(&handle, "third", 24.0, 0.3).expect("it fits");
    assert_eq!(bound(&handle), named(&[("left", Some((0, 1))), ("right", Some((1, 1))), ("third", Some((0, 1)))]));
    assert_eq!(handle.statistics().device.lanes.len(), 3, "two instances share a lane");
    let both = ["left", "third"].map(|instance| call(&handle, instance, &inputs[0]));
    both.iter().for_each(|pending| expect(pending, &inputs[0]));
    engine.shutdown();
}

#[test]
fn instances_are_resized_and_removed_while_their_requests_run() {
    let (engine, handle) = start();
    for round in 0..12 {
        place(&handle, "a", 50.0, 0.5).expect("it fits");
        place(&handle, "b", 50.0, 0.5).expect("it fits");
        let inputs: Vec<Vec<u32>> = (0..8).map(|seed| input(20_000, 100 * round + seed)).collect();
        let pending = ["a", "b"]
            .map(|instance| -> Vec<_> { inputs.iter().map(|input| call(&handle, instance, input)).collect() });
        while handle.statistics().issued_launches == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        // It gets the whole device. Running requests continue in any lane.
        place(&handle, "a", 100.0, 0.5).expect("it fits");
        assert_eq!(bound(&handle), named(&[("a", None), ("b", Some((1, 1)))]));
        if round % 2 == 0 {
            place(&handle, "a", 50.0, 0.4).expect("it fits");
        }
        // The lane closes while its share is removed.
        assert!(handle.remove_share(client("b")));
        for pending in &pending[1] {
            match answer(pending) {
                Ok(_) => {}
                Err(error) => assert_eq!(error, InvokeError::InstanceRemoved("b".into())),
            }
        }
        pending[0].iter().zip(&inputs).for_each(|(pending, input)| expect(pending, input));
        let left: Vec<String> = bound(&handle).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["a"], "a removed share is left in no lane");
        assert!(handle.remove_share(client("a")));
        await_lanes(&handle, 1);
        assert_eq!(bound(&handle), []);
    }
    engine.shutdown();
}

#[test]
fn what_the_device_cannot_keep_is_refused_and_changes_nothing() {
    let (engine, handle) = start();
    place(&handle, "a", 50.0, 0.9).expect("it fits");
    place(&handle, "b", 50.0, 0.9).expect("it fits");
    let before = bound(&handle);
    let error = place(&handle, "c", 50.0, 0.3).expect_err("210 % of a unit").to_string();
    assert!(error.contains("come to 105 %"), "{error}");
    let error = place(&handle, "a", 100.0, 0.9).expect_err("more than the device").to_string();
    assert!(error.contains("come to 135 %"), "{error}");
    assert_eq!(bound(&handle), before);
    await_lanes(&handle, 3);
    // The area suffices, but no rectangle is free: it shares the device's time and is not bound.
    place(&handle, "d", 50.0, 0.2).expect("200 % of two units");
    let shares = handle.statistics().shares;
    let unbound = shares.iter().find(|share| share.client == client("d")).expect("it is there");
    assert!(unbound.unbound.as_ref().is_some_and(|why| why.contains("no compute units are free")), "{unbound:?}");
    let input = input(400, 1);
    expect(&call(&handle, "d", &input), &input);
    // It is bound once there is room.
    assert!(handle.remove_share(client("b")));
    assert_eq!(bound(&handle), named(&[("a", Some((0, 1))), ("d", Some((1, 1)))]));
    expect(&call(&handle, "d", &input), &input);
    engine.shutdown();
}
