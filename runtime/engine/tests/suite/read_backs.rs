//! Functions that compute sizes at run time: the steps that follow a size are known only once the
//! size is read back.

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
    for (name, bundle) in [("counted", toy::counted_bundle(target, code)), ("f", toy::bundle(target, code))] {
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

/// An input of `n` elements that leads to the given sizes.
fn input(n: u32, [found, kept]: [u32; 2]) -> Vec<u32> {
    (0..n).map(|i| if i < 2 { [found, kept][i as usize] } else { (7 * i + 1) << 3 }).collect()
}

fn submit(engine: &Engine, class: Class, input: &[u32]) -> Receiver<Answer> {
    let (send, answers) = channel();
    engine
        .handle()
        .submit(request("counted", class, input), Box::new(move |answer| send.send(answer).expect("the test waits")));
    answers
}

fn answer(answers: &Receiver<Answer>) -> Answer {
    answers.recv_timeout(Duration::from_secs(20)).expect("an answer")
}

fn check(result: &InvocationResult, input: &[u32]) {
    let kept = input[1] as usize;
    assert_eq!(result.outputs, [OutputTensor { shape: vec![kept as i64], bytes: toy::expected(&input[..kept]) }]);
}

/// Invocations of many sizes side by side, which preempt each other and continue.
fn mixed(engine: &Engine) -> u32 {
    let sizes = [[100, 40], [0, 0], [64, 0], [33, 33], [90, 1], [17, 16]];
    let inputs: Vec<_> = (0..18).map(|i| (input(100 + i % 3, sizes[i as usize % 6]), i)).collect();
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
fn results_have_the_computed_sizes_however_they_are_preempted() {
    let mut preemptions = 0;
    for seed in 0..8 {
        let engine = fake(Some(seed));
        preemptions += mixed(&engine);
        engine.shutdown();
    }
    assert!(preemptions > 100, "{preemptions}");
}

#[test]
fn memory_is_for_the_largest_sizes_and_is_reused() {
    let engine = fake(None);
    let mut used = None;
    for sizes in [[100, 100], [3, 2], [100, 0], [50, 50], [0, 0]] {
        let input = input(100, sizes);
        check(&answer(&submit(&engine, Class::BestEffort, &input)).expect("a result"), &input);
        let now = engine.handle().statistics().device.memory_used_bytes_max;
        assert_eq!(*used.get_or_insert(now), now);
    }
    engine.shutdown();
}

#[test]
fn an_impossible_size_fails_its_invocation_only() {
    let engine = fake(None);
    let good = input(100, [60, 30]);
    for (sizes, says) in [
        ([101, 0], "node size_0 computes 101 for the size `found`, which has to be 0 to 100"),
        ([u32::MAX, 0], "node size_0 computes 4294967295 for the size `found`, which has to be 0 to 100"),
        ([50, 51], "node size_1 computes 51 for the size `kept`, which has to be 0 to 50"),
    ] {
        let bad = submit(&engine, Class::BestEffort, &input(100, sizes));
        let next = submit(&engine, Class::BestEffort, &good);
        assert_eq!(answer(&bad).err(), Some(InvokeError::Device(says.into())));
        check(&answer(&next).expect("a result"), &good);
    }
    engine.shutdown();
}

#[test]
fn a_function_with_read_backs_is_refused_in_a_chain() {
    let engine = fake(None);
    let stage =
        |inputs| StageRequest { function: FunctionKey::local("counted"), inputs, outputs: None, retain: vec![] };
    let first: Vec<_> =
        request("counted", Class::BestEffort, &input(64, [4, 4])).inputs.into_iter().map(StageInput::Tensor).collect();
    let stages = vec![stage(first), stage(vec![StageInput::Output { stage: 0, output: 0 }])];
    let chain =
        ChainRequest { stages, class: None, priority: 0, instance: None, deadline: None, times_launches: false };
    let (send, answers) = channel();
    engine.handle().submit_chain(chain, Box::new(move |answer| send.send(answer).expect("the test waits")));
    let error = answer(&answers).expect_err("a refusal").to_string();
    assert!(error.contains("computes sizes at run time, so it cannot be part of a chain"), "{error}");
    engine.shutdown();
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
