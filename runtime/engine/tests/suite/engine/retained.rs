//! Outputs that stay on the device for later invocations.

use super::*;
use crate::fake::fallible::FallibleDevice;
use std::sync::mpsc::sync_channel;

/// A call of `f` with an output that stays on the device.
fn call(input: StageInput, retain: &[Retain]) -> ChainRequest {
    let stage = StageRequest {
        function: FunctionKey::local("f"),
        inputs: vec![input],
        outputs: Some(vec![0]),
        retain: retain.to_vec(),
    };
    ChainRequest {
        stages: vec![stage],
        class: Some(Class::BestEffort),
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: false,
    }
}

fn tensor(input: &[u32]) -> StageInput {
    StageInput::Tensor(request("f", Class::BestEffort, input).inputs.remove(0))
}

const STAYS: &[Retain] = &[Retain { output: 0, with_bytes: false }];

fn run(handle: &EngineHandle, request: ChainRequest) -> Answer {
    submit_chain(handle, request).recv_timeout(Duration::from_secs(20)).expect("an answer")
}

/// Runs `f`, and returns the output that stays on the device.
fn retained(handle: &EngineHandle, input: StageInput) -> RetainedTensor {
    let mut result = run(handle, call(input, STAYS)).expect("a result");
    assert_eq!((result.outputs.len(), result.outputs[0].bytes.len()), (1, 0), "it is not read");
    let (index, tensor) = result.retained.remove(0);
    assert_eq!(index, 0);
    tensor
}

/// The output of a call that takes an output of another one, and the bytes handed over to it.
fn taken(handle: &EngineHandle, tensor: RetainedTensor) -> (Vec<u32>, u64) {
    let result = run(handle, call(StageInput::Retained(tensor), &[])).expect("a result");
    (words(&result.outputs[0].bytes), result.handed_over_bytes)
}

fn twice(input: &[u32]) -> Vec<u32> {
    words(&toy::expected(&words(&toy::expected(input))))
}

/// Waits until an output is in host memory, or lost.
fn save(tensor: &RetainedTensor) {
    let (send, saved) = sync_channel(1);
    tensor.save(Box::new(move || send.send(()).expect("the test waits")));
    saved.recv_timeout(Duration::from_secs(20)).expect("the engine runs");
}

#[test]
fn outputs_are_handed_over_on_the_device() {
    for seed in 0..4 {
        let setup = setup(EngineConfig { evict_at_random: (seed > 0).then_some(seed), ..EngineConfig::default() });
        let input = input(100, seed as u32);
        let before = setup.device.traffic();
        let between = retained(&setup.handle, tensor(&input));
        assert_eq!((between.shape(), between.bytes(), between.device()), (&[100][..], 400, DeviceId(0)));
        assert_eq!(setup.device.traffic().0, before.0, "nothing is read");
        for _ in 0..2 {
            assert_eq!(taken(&setup.handle, between.clone()), (twice(&input), 400), "seed {seed}");
        }
        let after = setup.device.traffic();
        assert_eq!(after.0 - before.0, 800, "the two results are read");
        // With evictions the host also clears evicted words.
        assert!(seed > 0 || after.1 - before.1 == 400, "only the first input is written");
        assert_eq!((between.saved(), between.is_lost()), (None, false));
    }
}

#[test]
fn bytes_are_returned_as_well_if_asked_for() {
    let setup = setup(EngineConfig::default());
    let input = input(50, 3);
    let both = [Retain { output: 0, with_bytes: true }];
    let mut result = run(&setup.handle, call(tensor(&input), &both)).expect("a result");
    assert_eq!(result.outputs[0].bytes, toy::expected(&input));
    assert_eq!(taken(&setup.handle, result.retained.remove(0).1), (twice(&input), 200));
}

#[test]
fn released_memory_is_used_again() {
    let setup = setup(EngineConfig::default());
    let input = input(100, 1);
    let used = || setup.handle.statistics().device.memory_used_bytes;
    drop(retained(&setup.handle, tensor(&input)));
    let once = used();
    drop(retained(&setup.handle, tensor(&input)));
    assert_eq!(used(), once, "the same memory");
    let first = retained(&setup.handle, tensor(&input));
    let second = retained(&setup.handle, tensor(&input));
    assert_eq!(used() - once, toy::invocation_memory(100), "both have memory of their own");
    drop((first, second));
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    assert_eq!(used(), 0);
}

#[test]
fn outputs_leave_the_device_when_their_memory_is_needed() {
    let limit = 256 + 2 * toy::invocation_memory(200);
    let setup = setup(EngineConfig { memory_limit_bytes: Some(limit), ..EngineConfig::default() });
    let input = input(200, 1);
    let between = retained(&setup.handle, tensor(&input));
    assert_eq!(taken(&setup.handle, between.clone()), (twice(&input), 800), "there is room for both");
    let large = submit_chain(&setup.handle, chain(2, Class::BestEffort, &input)).recv().expect("an answer");
    assert_eq!(words(&large.expect("it gets all memory").outputs[0].bytes), twice(&input));
    assert_eq!(between.saved(), Some(&toy::expected(&input)[..]));
    assert_eq!(taken(&setup.handle, between), (twice(&input), 0), "it is written again");
}

#[test]
fn an_output_is_saved_on_request_and_when_its_function_is_unloaded() {
    let setup = setup(EngineConfig::default());
    let input = input(100, 1);
    let asked = retained(&setup.handle, tensor(&input));
    save(&asked);
    assert_eq!(asked.saved(), Some(&toy::expected(&input)[..]));
    let between = retained(&setup.handle, tensor(&input));
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    assert_eq!(between.saved(), Some(&toy::expected(&input)[..]));
    assert_eq!(setup.handle.statistics().device.memory_used_bytes, 0);

    // Any engine takes what is in host memory.
    let other = super::setup(EngineConfig { device: DeviceId(1), ..EngineConfig::default() });
    assert_eq!(taken(&other.handle, between), (twice(&input), 0));
}

#[test]
fn an_output_of_another_engine_is_refused_unless_it_is_saved() {
    let [first, second] = [0, 1].map(|id| setup(EngineConfig { device: DeviceId(id), ..EngineConfig::default() }));
    let between = retained(&first.handle, tensor(&input(100, 1)));
    let refused = run(&second.handle, call(StageInput::Retained(between.clone()), &[])).expect_err("it is elsewhere");
    assert!(matches!(refused, InvokeError::Unavailable(_)), "{refused}");
    assert!(!between.is_lost(), "it is still where it was");
}

#[test]
fn outputs_are_lost_with_the_memory_of_their_executor() {
    let (device, controls) = FakeDevice::new(0);
    let engine = Engine::start(FallibleDevice::new(device), EngineConfig::default()).expect("an engine");
    let handle = engine.handle();
    handle.load(toy::bundle(fake::TARGET, b"fake"), options("f")).expect("a function");
    let input = input(100, 1);
    let [lost, unsaved] = [0, 1].map(|_| retained(&handle, tensor(&input)));
    controls.lose_memory();
    let refused = run(&handle, call(StageInput::Retained(lost.clone()), &[])).expect_err("it is lost");
    assert!(refused.to_string().contains("input 0 was lost"), "{refused}");
    assert!(lost.is_lost());
    save(&unsaved);
    assert!(unsaved.is_lost() && unsaved.saved().is_none());
    assert_eq!(taken(&handle, retained(&handle, tensor(&input))), (twice(&input), 400), "the device goes on");
}

#[test]
fn outputs_that_could_not_be_saved_are_apart_from_those_of_later_invocations() {
    let (device, controls) = FakeDevice::new(0);
    let engine = Engine::start(FallibleDevice::new(device), EngineConfig::default()).expect("an engine");
    let handle = engine.handle();
    handle.load(toy::bundle(fake::TARGET, b"fake"), options("f")).expect("a function");
    let lost = retained(&handle, tensor(&input(100, 1)));
    controls.lose_memory_at_read();
    save(&lost);
    assert!(lost.is_lost());

    let later = input(100, 2);
    let between = retained(&handle, tensor(&later));
    let refused = run(&handle, call(StageInput::Retained(lost.clone()), &[])).expect_err("it is not the later output");
    assert!(refused.to_string().contains("input 0 was lost"), "{refused}");
    // Its end releases no memory of the later output, which the next invocation would overwrite.
    drop(lost);
    run(&handle, call(tensor(&input(100, 3)), &[])).expect("a result");
    assert_eq!(taken(&handle, between), (twice(&later), 400));
}

#[test]
fn outputs_are_lost_with_their_device_or_engine() {
    let setup = setup(EngineConfig::default());
    let between = retained(&setup.handle, tensor(&input(100, 1)));
    setup.device.lose();
    let _ = run(&setup.handle, call(tensor(&input(100, 2)), &[])).expect_err("the device is lost");
    assert!(between.is_lost());
    save(&between);

    let setup = super::setup(EngineConfig::default());
    let between = retained(&setup.handle, tensor(&input(100, 1)));
    setup.engine.shutdown();
    assert!(between.is_lost());
    save(&between);
}

#[test]
fn invalid_uses_of_outputs_are_refused() {
    let setup = setup(EngineConfig::default());
    let of_none = ChainRequest { stages: vec![StageRequest { outputs: Some(vec![]), ..call_stage() }], ..any() };
    let refused = run(&setup.handle, of_none).expect_err("it is not asked for").to_string();
    assert!(refused.contains("output 0 of function `f` is to stay on the device, but not asked for"), "{refused}");

    let key = FunctionKey { tenant: "other".parse().expect("a name"), name: "g".into() };
    let theirs = FunctionOptions { key: key.clone(), ..options("g") };
    setup.handle.load(Arc::clone(&setup.bundle), theirs).expect("a function");
    let between = retained(&setup.handle, tensor(&input(100, 1)));
    let stage = StageRequest { function: key, inputs: vec![StageInput::Retained(between)], ..call_stage() };
    let refused = run(&setup.handle, ChainRequest { stages: vec![stage], ..any() }).expect_err("it is not theirs");
    assert!(refused.to_string().contains("input 0 is an output of another tenant's function"), "{refused}");

    let between = retained(&setup.handle, tensor(&input(100, 1)));
    let both = StageRequest { inputs: vec![StageInput::Retained(between.clone()); 2], ..call_stage() };
    let refused = run(&setup.handle, ChainRequest { stages: vec![both], ..any() }).expect_err("it takes one");
    assert!(matches!(refused, InvokeError::BadInput(_)), "forms are checked: {refused}");
}

fn any() -> ChainRequest {
    call(tensor(&input(100, 1)), STAYS)
}

fn call_stage() -> StageRequest {
    any().stages.remove(0)
}
