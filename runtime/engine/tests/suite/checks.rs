//! Checks of values: an invocation whose kernels find an invalid value fails, however it is
//! preempted.

use crate::fake;
use crate::fake::FakeDevice;
use crate::toy;
use crate::toy::{BAD, request};
use atoll_device::Device;
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

fn start(device: Box<dyn Device>, target: &str, code: &[u8], evict_at_random: Option<u64>) -> Engine {
    let engine = Engine::start(device, EngineConfig { evict_at_random, ..EngineConfig::default() }).expect("an engine");
    for (name, bundle) in [("checked", toy::checked_bundle(target, code)), ("f", toy::bundle(target, code))] {
        let options = FunctionOptions {
            key: FunctionKey::local(name),
            class: Class::BestEffort,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        engine.handle().load(bundle, options).expect("a function");
    }
    engine
}

fn fake(seed: Option<u64>) -> Engine {
    start(FakeDevice::new(seed.unwrap_or(0)).0, fake::TARGET, b"fake", seed)
}

/// An input whose elements are all valid, except for one if `bad` is given.
fn input(n: u32, bad: Option<u32>) -> Vec<u32> {
    (0..n).map(|i| if Some(i) == bad { BAD } else { (7 * i + 1) << 3 }).collect()
}

fn submit(engine: &Engine, class: Class, input: &[u32]) -> Receiver<Answer> {
    let (send, answers) = channel();
    engine
        .handle()
        .submit(request("checked", class, input), Box::new(move |answer| send.send(answer).expect("the test waits")));
    answers
}

fn answer(answers: &Receiver<Answer>) -> Answer {
    answers.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

fn refusal(n: u32) -> Option<InvokeError> {
    Some(InvokeError::BadInput(format!("node judge_0: one of {n} numbers is bad")))
}

/// Valid and invalid invocations side by side, which preempt each other and continue.
fn mixed(engine: &Engine) -> u32 {
    let inputs: Vec<_> = (0..12).map(|i| (input(100 + i, (i % 3 == 1).then_some(8 * i)), i)).collect();
    let class = |i| if i % 4 == 0 { Class::RealTime } else { Class::BestEffort };
    let pending: Vec<_> = inputs.iter().map(|(input, i)| submit(engine, class(*i), input)).collect();
    let mut preemptions = 0;
    for ((input, i), pending) in inputs.iter().zip(&pending) {
        match answer(pending) {
            Ok(result) => {
                assert_ne!(i % 3, 1, "invocation {i} must fail");
                assert_eq!(result.outputs[0].bytes, toy::expected(input));
                preemptions += result.preemptions;
            }
            Err(error) => assert_eq!((i % 3, Some(error)), (1, refusal(100 + i))),
        }
    }
    preemptions
}

#[test]
fn exactly_the_invalid_invocations_fail_however_they_are_preempted() {
    let mut preemptions = 0;
    for seed in 0..8 {
        let engine = fake(Some(seed));
        preemptions += mixed(&engine);
        let statistics = engine.handle().statistics();
        let function =
            statistics.functions.iter().find(|function| function.key.name == "checked").expect("the function");
        assert_eq!((function.success, function.failure), (8, 4));
        engine.shutdown();
    }
    assert!(preemptions > 100, "{preemptions}");
}

#[test]
fn a_failed_invocation_leaves_no_trace_in_reused_memory() {
    let engine = fake(None);
    for bad in [None, Some(3), None, Some(50), Some(63), None] {
        let input = input(64, bad);
        let answer = answer(&submit(&engine, Class::BestEffort, &input));
        assert_eq!(answer.err(), bad.and_then(|_| refusal(64)));
    }
    engine.shutdown();
}

#[test]
fn a_chain_fails_with_any_of_its_stages() {
    for seed in [None, Some(3)] {
        let engine = fake(seed);
        for (bad, checked) in [(None, 0), (Some(9), 0), (Some(9), 1)] {
            let stages = (0..2).map(|stage| {
                let request =
                    request(if stage == checked { "checked" } else { "f" }, Class::BestEffort, &input(40, bad));
                let inputs = match stage {
                    0 => request.inputs.into_iter().map(StageInput::Tensor).collect(),
                    _ => vec![StageInput::Output { stage: 0, output: 0 }],
                };
                StageRequest { function: request.function, inputs, outputs: None, retain: vec![] }
            });
            let chain = ChainRequest {
                stages: stages.collect(),
                class: None,
                priority: 0,
                instance: None,
                deadline: None,
                times_launches: false,
            };
            let (send, answers) = channel();
            engine.handle().submit_chain(chain, Box::new(move |answer| send.send(answer).expect("the test waits")));
            // The first function turns the invalid number into a valid one.
            assert_eq!(answer(&answers).err(), bad.filter(|_| checked == 0).and_then(|_| refusal(40)));
        }
        engine.shutdown();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_host_device_finds_the_same() {
    use atoll_device_host::{HostConfig, HostDevice};
    let code = toy::compile();
    for seed in 0..3 {
        let config = HostConfig { compute_units: 2, memory_bytes: 64 << 20, ..HostConfig::default() };
        let device = HostDevice::start(config).expect("a device");
        let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
        let engine = start(Box::new(device), &target, &code, Some(seed));
        mixed(&engine);
        engine.shutdown();
    }
}
