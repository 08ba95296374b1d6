//! Invocations that another device can run are given back when their executor is lost.

use super::{check, function, input, load, model, start_fallible};
use crate::toy;
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

fn submit_movable(handle: &EngineHandle, input: &[u32]) -> Receiver<Result<InvocationResult, InvokeError>> {
    let (send, answer) = channel();
    let request = toy::request("a", Class::BestEffort, input);
    handle.submit_movable(request.into(), Box::new(move |result| drop(send.send(result))));
    answer
}

#[test]
fn they_are_given_back_instead_of_retried() {
    let (_engine, handle, device) = start_fallible(256 * 64 + 4 * toy::invocation_memory(64), EngineConfig::default());
    let (a, input) = (model(1, 20), input(64, 1));
    load(&handle, "a", &a, Class::BestEffort).expect("room");
    check(&submit_movable(&handle, &input), &a, &input);
    device.pause();
    let running = submit_movable(&handle, &input);
    device.wait_for_launches();
    device.lose_memory();
    device.resume();
    let answer = running.recv_timeout(Duration::from_secs(20)).expect("an answer");
    assert!(matches!(answer, Err(InvokeError::ExecutorLost(_))), "{answer:?}");
    let counts = (handle.statistics().retries, function(&handle, "a").success, function(&handle, "a").failure);
    assert_eq!(counts, (0, 1, 0), "the device that answers it counts it");
    check(&submit_movable(&handle, &input), &a, &input);
}
