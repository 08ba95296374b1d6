//! Memory limits of instances on a host device. A request that can never fit is rejected with the
//! cause; the others get memory one after the other.

use crate::toy;
use atoll_device::Device;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

fn client(instance: &str) -> ShareClient {
    ShareClient { tenant: Tenant::default(), instance: Some(instance.into()) }
}

fn input(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect()
}

fn call(handle: &EngineHandle, instance: &str, input: &[u32]) -> Receiver<Answer> {
    call_as(handle, instance, Class::BestEffort, input)
}

fn call_as(handle: &EngineHandle, instance: &str, class: Class, input: &[u32]) -> Receiver<Answer> {
    let (send, answer) = channel();
    let request = toy::request("f", class, input);
    let request = InvocationRequest { instance: Some(instance.into()), ..request };
    handle.submit(request, Box::new(move |result| drop(send.send(result))));
    answer
}

fn answer(pending: &Receiver<Answer>) -> Answer {
    pending.recv_timeout(Duration::from_secs(60)).expect("an answer")
}

/// An engine with the function `f` and the instances `small` and `large` of it.
fn start() -> Engine {
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
    let share = ShareRequest { sm_partition: 100.0, quota_request: 0.4, quota_limit: 1.0, group: 0 };
    let share = ShareSpec::new(&share).expect("a valid share");
    for instance in ["small", "large"] {
        handle.place_share(client(instance), share).expect("it fits");
    }
    engine
}

#[test]
fn an_instance_has_no_more_memory_than_its_limit() {
    let engine = start();
    let handle = engine.handle();
    let limit = |bytes, sharers| handle.limit_memory(client("small"), Some(InstanceMemory { bytes, sharers }));
    let (long, short) = (input(20_000, 1), input(400, 2));

    limit(1_000, 1);
    let InvokeError::OverInstanceMemory { instance, wanted, constants, limit: told } =
        answer(&call(&handle, "small", &long)).expect_err("more than 1000 bytes")
    else {
        panic!("refused for another reason");
    };
    assert_eq!((instance.as_str(), told), ("small", 1_000));
    assert!(wanted > 2 * 4 * 20_000 && constants > 0, "{wanted} bytes, {constants} of them constants");
    // Another instance of the function halves the part of the constants.
    limit(1_000, 2);
    let halved = answer(&call(&handle, "small", &long)).expect_err("more than 1000 bytes");
    let half = constants.div_ceil(2);
    let expected = InvokeError::OverInstanceMemory {
        instance: "small".into(),
        wanted: wanted - constants + half,
        constants: half,
        limit: 1_000,
    };
    assert_eq!(halved, expected);
    assert!(answer(&call(&handle, "large", &long)).is_ok(), "the limit is that of one instance");

    // There is room for one long request. All requests run, one after the other, even if the limit
    // is changed or removed while they wait.
    limit(wanted, 1);
    for round in 0..6 {
        let inputs: Vec<&[u32]> = (0..12).map(|at| if at % 3 == 0 { &short[..] } else { &long[..] }).collect();
        let pending: Vec<_> = inputs.iter().map(|input| call(&handle, "small", input)).collect();
        match round {
            3 => limit(2 * wanted, 1),
            4 => limit(wanted, 1),
            5 => handle.limit_memory(client("small"), None),
            _ => {}
        }
        for (pending, input) in pending.iter().zip(inputs) {
            let result = answer(pending).expect("a result");
            assert!(result.outputs[0].bytes == toy::expected(input), "a wrong answer");
        }
    }
    // Requests that wait for memory can be cancelled, and end with their instance.
    limit(wanted, 1);
    let pending: Vec<_> = (0..12).map(|_| call(&handle, "small", &long)).collect();
    assert!(handle.remove_share(client("small")));
    for pending in &pending {
        match answer(pending) {
            Ok(result) => assert!(result.outputs[0].bytes == toy::expected(&long), "a wrong answer"),
            Err(error) => assert_eq!(error, InvokeError::InstanceRemoved("small".into())),
        }
    }
    engine.shutdown();
}

/// A real-time request that waits for the memory of best-effort ones must not keep them from
/// ending.
#[test]
fn requests_of_both_classes_wait_for_the_memory_of_one_instance() {
    let engine = start();
    let handle = engine.handle();
    let limit = |bytes| handle.limit_memory(client("small"), Some(InstanceMemory { bytes, sharers: 1 }));
    let (long, short) = (input(20_000, 1), input(400, 2));
    limit(1_000);
    let refused = answer(&call(&handle, "small", &long)).expect_err("more than 1000 bytes");
    let InvokeError::OverInstanceMemory { wanted, .. } = refused else { panic!("refused for {refused:?}") };
    // Room for one long request.
    limit(wanted);
    for round in 0..4_usize {
        let of = |at: usize| match (at + round) % 4 {
            0 => (Class::RealTime, &long),
            1 => (Class::RealTime, &short),
            2 => (Class::BestEffort, &short),
            _ => (Class::BestEffort, &long),
        };
        let pending: Vec<_> = (0..12).map(|at| call_as(&handle, "small", of(at).0, of(at).1)).collect();
        for (at, pending) in pending.iter().enumerate() {
            let result = answer(pending).expect("a result");
            assert!(result.outputs[0].bytes == toy::expected(of(at).1), "a wrong answer");
        }
    }
    engine.shutdown();
}
