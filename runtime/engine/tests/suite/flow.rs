//! Functions with `if` and `loop` segments: how often their steps run is known only once scalars
//! are read back.

mod model;

use crate::fake;
use crate::fake::FakeDevice;
use crate::toy;
use crate::toy::request;
use atoll_device::Device;
use atoll_engine::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

fn start(device: Box<dyn Device>, target: &str, code: &[u8], config: EngineConfig) -> Engine {
    let engine = Engine::start(device, config).expect("an engine");
    for (name, bundle) in [("flow", model::bundle(target, code)), ("f", toy::bundle(target, code))] {
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
    let config = EngineConfig { evict_at_random: seed, ..EngineConfig::default() };
    start(FakeDevice::new(seed.unwrap_or(0)).0, fake::TARGET, b"fake", config)
}

/// An input of `n` elements. The loop runs at most `count` iterations, its condition allows at most
/// `left`, and iteration `other` takes the other branch.
fn input(n: u32, [count, left, other]: [u32; 3]) -> Vec<u32> {
    (0..n).map(|i| if i < 3 { [count, left, other][i as usize] } else { (7 * i + 1) << 3 }).collect()
}

fn submit_with(
    engine: &Engine,
    deadline: Option<Duration>,
    class: Class,
    input: &[u32],
) -> (InvocationId, Receiver<Answer>) {
    let (send, answers) = channel();
    let request = InvocationRequest { deadline, ..request("flow", class, input) };
    let id = engine.handle().submit(request, Box::new(move |answer| send.send(answer).expect("the test waits")));
    (id, answers)
}

fn submit(engine: &Engine, class: Class, input: &[u32]) -> Receiver<Answer> {
    submit_with(engine, None, class, input).1
}

fn answer(answers: &Receiver<Answer>) -> Answer {
    answers.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

fn check(result: &InvocationResult, input: &[u32]) {
    assert_eq!(result.outputs, [OutputTensor { shape: vec![input.len() as i64], bytes: model::expected(input) }]);
}

/// Invocations with different control flow side by side, which preempt each other and continue.
fn mixed(engine: &Engine) -> u32 {
    let flows = [[3, 9, 1], [0, 5, 0], [9, 2, 0], [4, 4, 9], [1, 0, 0], [5, 9, 4]];
    let inputs: Vec<_> = (0..18).map(|i| (input(40 + i % 3, flows[i as usize % 6]), i)).collect();
    let class = |i| if i % 4 == 0 { Class::RealTime } else { Class::BestEffort };
    let pending: Vec<_> = inputs.iter().map(|(input, i)| submit(engine, class(*i), input)).collect();
    let mut preemptions = 0;
    for ((input, _), pending) in inputs.iter().zip(&pending) {
        let result = answer(pending).expect("a result");
        check(&result, input);
        preemptions += result.preemptions;
    }
    preemptions
}

#[test]
fn branches_and_iterations_are_chosen_at_run_time_however_they_are_preempted() {
    let mut preemptions = 0;
    for seed in 0..8 {
        let engine = fake(Some(seed));
        preemptions += mixed(&engine);
        engine.shutdown();
    }
    assert!(preemptions > 100, "{preemptions}");
}

#[test]
fn an_endless_loop_fails_at_its_limit_and_ends_at_once_if_it_is_cancelled_or_late() {
    let engine = fake(None);
    let good = input(20, [2, 2, 0]);
    let limit = model::TRIPS_MAX;
    let endless = input(20, [u32::MAX, u32::MAX, 0]);
    let bad = submit(&engine, Class::BestEffort, &endless);
    let says = format!(
        "the loop at node step_0: it has run {limit} iterations, which is its limit (trips_max), and would go on"
    );
    assert_eq!(answer(&bad).err(), Some(InvokeError::BadInput(says)));
    let (id, cancelled) = submit_with(&engine, None, Class::BestEffort, &endless);
    engine.handle().cancel(id);
    assert_eq!(answer(&cancelled).err(), Some(InvokeError::Cancelled));
    let (_, late) = submit_with(&engine, Some(Duration::from_millis(2)), Class::BestEffort, &endless);
    assert_eq!(answer(&late).err(), Some(InvokeError::DeadlineExceeded));
    check(&answer(&submit(&engine, Class::BestEffort, &good)).expect("a result"), &good);
    engine.shutdown();
}

#[test]
fn it_may_be_part_of_a_chain() {
    for seed in 0..4 {
        let engine = fake(Some(seed));
        let stage = |function: &str, inputs| StageRequest {
            function: FunctionKey::local(function),
            inputs,
            outputs: None,
            retain: vec![],
        };
        let x = input(33, [3, 2, 0]);
        let first: Vec<_> = request("flow", Class::BestEffort, &x).inputs.into_iter().map(StageInput::Tensor).collect();
        let stages = vec![
            stage("flow", first.clone()),
            stage("f", vec![StageInput::Output { stage: 0, output: 0 }]),
            stage("flow", first),
        ];
        let chain =
            ChainRequest { stages, class: None, priority: 0, instance: None, deadline: None, times_launches: false };
        let (send, answers) = channel();
        engine.handle().submit_chain(chain, Box::new(move |answer| send.send(answer).expect("the test waits")));
        let result = answer(&answers).expect("a result");
        let once = model::expected(&x);
        let words: Vec<u32> = once.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        let outputs: Vec<Vec<u8>> = result.outputs.into_iter().map(|output| output.bytes).collect();
        assert_eq!(outputs, [once.clone(), toy::expected(&words), once], "seed {seed}");
        engine.shutdown();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_host_device_does_the_same() {
    use atoll_device_host::{HostConfig, HostDevice};
    let code = toy::compile();
    for seed in 0..3 {
        let config = HostConfig { compute_units: 2, memory_bytes: 64 << 20, ..HostConfig::default() };
        let device = HostDevice::start(config).expect("a device");
        let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
        let config = EngineConfig { evict_at_random: Some(seed), ..EngineConfig::default() };
        let engine = start(Box::new(device), &target, &code, config);
        mixed(&engine);
        engine.shutdown();
    }
}
