//! The engine on a fake device that computes real results.

mod chains;
mod evictions;
mod retained;
mod shutdown;
mod usage;

use crate::fake;
use crate::fake::{Controls, FakeDevice};
use crate::toy;
use crate::toy::request;
use atoll_engine::*;
use atoll_kgraph::Bundle;
use chains::{chain, submit_chain, words};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

/// An engine with the function `f`.
struct Setup {
    engine: Engine,
    handle: EngineHandle,
    device: Controls,
    bundle: Arc<Bundle>,
}

fn options(name: &str) -> FunctionOptions {
    FunctionOptions {
        key: FunctionKey::local(name),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    }
}

fn setup(config: EngineConfig) -> Setup {
    let (device, controls) = FakeDevice::new(config.evict_at_random.unwrap_or(0));
    let engine = Engine::start(device, config).expect("an engine");
    let (handle, bundle) = (engine.handle(), toy::bundle(fake::TARGET, b"fake"));
    let info = handle.load(Arc::clone(&bundle), options("f")).expect("a function");
    assert_eq!((info.target.as_str(), info.weights_bytes, info.weights_shared), (fake::TARGET, 32, false));
    Setup { engine, handle, device: controls, bundle }
}

fn input(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect()
}

/// A submitted invocation.
struct Pending {
    id: InvocationId,
    input: Vec<u32>,
    answers: Receiver<Answer>,
}

impl Pending {
    fn answer(&self) -> Answer {
        let answer = self.answers.recv_timeout(Duration::from_secs(20)).expect("an answer");
        let again = self.answers.recv_timeout(Duration::from_secs(20));
        assert_eq!(again.err(), Some(RecvTimeoutError::Disconnected), "the reply is called once");
        answer
    }

    /// The result, which must be correct.
    fn result(&self) -> InvocationResult {
        let result = self.answer().expect("a result");
        let expected = toy::expected(&self.input);
        assert_eq!(result.outputs, [OutputTensor { shape: vec![self.input.len() as i64], bytes: expected }]);
        result
    }

    fn error(&self) -> InvokeError {
        self.answer().expect_err("an error")
    }
}

fn submit(handle: &EngineHandle, request: InvocationRequest) -> Pending {
    let (send, answers) = channel();
    let words = |bytes: &[u8]| {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    };
    let input = request.inputs.first().map(|tensor| words(&tensor.bytes)).unwrap_or_default();
    let id = handle.submit(request, Box::new(move |answer| send.send(answer).expect("the test waits")));
    Pending { id, input, answers }
}

impl Setup {
    fn submit(&self, class: Class, n: u32, seed: u32) -> Pending {
        submit(&self.handle, request("f", class, &input(n, seed)))
    }
}

#[test]
fn a_launch_that_exits_early_without_eviction_fails_its_invocation_only() {
    let setup = setup(EngineConfig::default());
    setup.device.report_evictions();
    let error = submit(&setup.handle, request("f", Class::BestEffort, &input(100, 1))).error();
    assert!(
        matches!(&error, InvokeError::Device(why) if why.contains("its control words were overwritten")),
        "{error}"
    );
    assert_eq!(setup.handle.statistics().device.lost, None, "the device is not lost");
    setup.engine.shutdown();
}

/// The device checks that a launch can read its constants.
#[test]
fn nothing_is_launched_before_it_can_read_its_constants() {
    let setup = setup(EngineConfig::default());
    setup.device.delay_mapping(Duration::from_millis(50));
    for tenant in ["local", "other"] {
        let key = FunctionKey { tenant: tenant.parse().expect("a name"), name: "g".into() };
        let info = setup
            .handle
            .load(Arc::clone(&setup.bundle), FunctionOptions { key: key.clone(), ..options("g") })
            .expect("a function");
        assert!(info.weights_shared);
        let (slow, other) =
            (toy::request_of(key, Class::BestEffort, &input(100, 1)), request("f", Class::RealTime, &input(100, 2)));
        let pending = [slow, other].map(|request| submit(&setup.handle, request));
        pending.iter().for_each(|pending| drop(pending.result()));
    }
    assert_eq!(setup.device.constants(), (1, 2), "one constant, mapped for two tenants");
    setup.engine.shutdown();
}

#[test]
fn answers_are_right_for_every_shape() {
    let setup = setup(EngineConfig::default());
    for n in [0, 1, 15, 16, 17, 100, 100, 257] {
        let result = setup.submit(Class::BestEffort, n, n).result();
        assert_eq!(result.preemptions, 0);
    }
    let statistics = setup.handle.statistics();
    let function = &statistics.functions[0];
    assert_eq!(
        (function.success, function.failure, function.rejected, function.in_queue, function.running),
        (8, 0, 0, 0, 0)
    );
    assert!(function.compute_ns > 0 && function.input_ns > 0 && function.queue_ns > 0 && function.output_ns > 0);
    setup.engine.shutdown();
}

#[test]
fn the_parts_of_the_time_add_up() {
    let setup = setup(EngineConfig::default());
    let begin = std::time::Instant::now();
    let timing = setup.submit(Class::RealTime, 64, 1).result().timing;
    let total = u128::from(timing.queue_ns + timing.input_ns + timing.compute_ns + timing.output_ns);
    assert!(total <= begin.elapsed().as_nanos() && timing.compute_ns > 100_000, "{timing:?}");
}

#[test]
fn memory_is_as_large_as_promised_and_is_reused() {
    let setup = setup(EngineConfig::default());
    for seed in 0..3 {
        setup.submit(Class::BestEffort, 100, seed).result();
    }
    let device = setup.handle.statistics().device;
    assert_eq!(device.memory_used_bytes_max, 256 + toy::invocation_memory(100));
    assert_eq!(device.memory_used_bytes, device.memory_used_bytes_max);
}

#[test]
fn perturbed_invocations_give_the_same_answers() {
    let mut preemptions = 0;
    for seed in 0..12 {
        let setup = setup(EngineConfig { evict_at_random: Some(seed), ..EngineConfig::default() });
        let pending: Vec<Pending> = (0..6)
            .map(|i| setup.submit(if i % 3 == 0 { Class::RealTime } else { Class::BestEffort }, 40 + i, i))
            .collect();
        preemptions += pending.iter().map(|pending| pending.result().preemptions).sum::<u32>();
        let statistics = setup.handle.statistics();
        assert!(statistics.evicted_launches > 0, "seed {seed} evicts nothing");
        assert_eq!(statistics.evicted_launches, statistics.functions[0].evicted_launches);
    }
    assert!(preemptions > 200, "{preemptions}");
}

#[test]
fn kernels_that_exit_silently_run_again_from_their_restore_points() {
    let mut preemptions = 0;
    for seed in 0..12 {
        let setup = setup(EngineConfig { evict_at_random: Some(seed), ..EngineConfig::default() });
        setup.handle.load(toy::silent_bundle(fake::TARGET, b"fake"), options("silent")).expect("a function");
        let input = input(40 + seed as u32, seed as u32);
        let pending: Vec<Pending> =
            (0..4).map(|_| submit(&setup.handle, request("silent", Class::BestEffort, &input))).collect();
        for pending in pending {
            let result = pending.result();
            assert_eq!(result.outputs[0].bytes, toy::expected(&input), "seed {seed}");
            preemptions += result.preemptions;
        }
        let chains = (0..6).map(|_| {
            let mut chain = chain(3, Class::BestEffort, &input);
            chain.stages.iter_mut().for_each(|stage| stage.function = FunctionKey::local("silent"));
            submit_chain(&setup.handle, chain)
        });
        let expected = toy::expected(&words(&toy::expected(&words(&toy::expected(&input)))));
        for answer in chains.collect::<Vec<_>>() {
            assert_eq!(answer.recv().expect("an answer").expect("a result").outputs[0].bytes, expected, "seed {seed}");
        }
        assert_eq!(setup.handle.statistics().evicted_launches, 0, "they do not report early exits");
    }
    assert!(preemptions > 100, "{preemptions}");
}

#[test]
fn best_effort_work_progresses_beside_a_continuous_real_time_load() {
    let setup = setup(EngineConfig { best_effort_wait_max: Some(Duration::from_millis(2)), ..EngineConfig::default() });
    let mut load: VecDeque<Pending> = (0..4).map(|seed| setup.submit(Class::RealTime, 64, seed)).collect();
    let best_effort = setup.submit(Class::BestEffort, 64, 1);
    let answer = loop {
        if let Ok(answer) = best_effort.answers.try_recv() {
            break answer;
        }
        load.pop_front().expect("four").result();
        load.push_back(setup.submit(Class::RealTime, 64, 2));
    };
    load.iter().for_each(|pending| drop(pending.result()));
    assert_eq!(answer.expect("a result").outputs[0].bytes, toy::expected(&best_effort.input));
    assert!(setup.handle.statistics().best_effort_slices > 0);
}

#[test]
fn the_more_urgent_of_two_real_time_invocations_goes_first() {
    let setup = setup(EngineConfig { policy: "sequential".into(), ..EngineConfig::default() });
    setup.device.pause();
    let order = Arc::new(Mutex::new(Vec::new()));
    for priority in [7, 7, 2, 5] {
        let order = Arc::clone(&order);
        let request = InvocationRequest { priority, ..request("f", Class::RealTime, &input(20, 0)) };
        setup.handle.submit(request, Box::new(move |_| order.lock().expect("no panic").push(priority)));
    }
    let last = setup.submit(Class::BestEffort, 20, 0);
    setup.device.resume();
    last.result();
    assert_eq!(*order.lock().expect("no panic"), [7, 2, 5, 7], "behind the one that had started");
}

/// The policies that accept work of both classes.
fn policies_for_both_classes() -> impl Iterator<Item = &'static atoll_core::PolicyEntry> + Clone {
    atoll_core::POLICIES.iter().filter(|entry| (entry.make)().admits(Class::BestEffort))
}

#[test]
fn a_class_that_the_policy_does_not_accept_is_refused() {
    let setup = setup(EngineConfig { policy: "rt-only".into(), ..EngineConfig::default() });
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::ClassRefused(Class::BestEffort));
    drop(setup.submit(Class::RealTime, 64, 0).result());
}

#[test]
fn every_policy_serves_many_invocations() {
    for entry in policies_for_both_classes() {
        let setup = setup(EngineConfig { policy: entry.name.into(), ..EngineConfig::default() });
        let pending: Vec<Pending> = (0..40)
            .map(|i| setup.submit(if i % 4 == 0 { Class::RealTime } else { Class::BestEffort }, 20 + i, i))
            .collect();
        pending.iter().for_each(|pending| drop(pending.result()));
        let classes = setup.handle.statistics().classes;
        assert_eq!(
            classes.iter().map(|c| (c.admitted, c.finished)).collect::<Vec<_>>(),
            [(10, 10), (30, 30)],
            "{}",
            entry.name
        );
    }
}

#[test]
fn a_real_time_invocation_evicts_and_the_evicted_continues() {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let best_effort = setup.submit(Class::BestEffort, 320, 1);
    setup.device.wait_for_launches();
    let real_time = setup.submit(Class::RealTime, 32, 2);
    // The statistics arrive after the submission was handled.
    assert_eq!(setup.handle.statistics().preemptions, 1);
    setup.device.resume();
    real_time.result();
    assert_eq!(best_effort.result().preemptions, 1);
    let statistics = setup.handle.statistics();
    assert_eq!((statistics.evicted_launches, statistics.preemption_latency.count()), (4, 1));
    assert!(statistics.preemption_latency.max_ns() > 0 && statistics.rt_start_latency.count() == 1);
}

#[test]
fn invalid_requests_are_answered_at_once() {
    let setup = setup(EngineConfig::default());
    let unknown = submit(&setup.handle, request("g", Class::RealTime, &[1]));
    assert_eq!(unknown.error(), InvokeError::UnknownFunction);
    let mut bad = request("f", Class::RealTime, &[1, 2]);
    bad.inputs[0].shape = vec![2, 1];
    let bad = submit(&setup.handle, bad);
    assert_eq!(bad.error(), InvokeError::BadInput("input `x` is u32 [2, 1]; the model takes u32 [n]".into()));
    for (dtype, found) in [(Some(atoll_kgraph::DType::F32), "f32"), (None, "strings")] {
        let mut other_type = request("f", Class::RealTime, &[1, 2]);
        other_type.inputs[0].dtype = dtype;
        let expected = format!("input `x` is {found} [2]; the model takes u32 [n]");
        assert_eq!(
            submit(&setup.handle, other_type).error(),
            InvokeError::BadInput(expected),
            "bytes are not reinterpreted as another type"
        );
    }
    assert_eq!(setup.handle.statistics().functions[0].rejected, 3);
}

#[test]
fn a_full_queue_refuses() {
    let setup = setup(EngineConfig { queue_capacity: 2, ..EngineConfig::default() });
    setup.device.pause();
    // Each of the two device queues takes one invocation, as long as it has launches to issue.
    let running: Vec<Pending> = (0..2).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    setup.handle.statistics();
    let waiting: Vec<Pending> = (0..2).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::QueueFull { capacity: 2 });
    let function = &setup.handle.statistics().functions[0];
    assert_eq!((function.in_queue, function.running, function.rejected), (2, 2, 1));
    // Real-time work has its own queue.
    let urgent = setup.submit(Class::RealTime, 64, 0);
    setup.device.resume();
    running.iter().chain(&waiting).chain([&urgent]).for_each(|pending| drop(pending.result()));
}

#[test]
fn waiting_and_running_invocations_can_be_cancelled() {
    let setup = setup(EngineConfig { policy: "sequential".into(), ..EngineConfig::default() });
    setup.device.pause();
    let [running, waiting] = [0, 1].map(|i| setup.submit(Class::BestEffort, 64, i));
    setup.device.wait_for_launches();
    setup.device.ignore_aborts();
    setup.handle.cancel(waiting.id);
    assert_eq!(waiting.error(), InvokeError::Cancelled);
    setup.handle.cancel(running.id);
    assert!(running.answers.recv_timeout(Duration::from_millis(20)).is_err(), "its launches are still on the device");
    setup.device.resume();
    assert_eq!(running.error(), InvokeError::Cancelled);
    setup.handle.cancel(running.id);
    setup.submit(Class::BestEffort, 64, 3).result();
}

#[test]
fn a_deadline_ends_what_waits_and_what_runs() {
    let setup = setup(EngineConfig { policy: "sequential".into(), ..EngineConfig::default() });
    setup.device.pause();
    let soon = |seed| InvocationRequest {
        deadline: Some(Duration::from_millis(20)),
        ..request("f", Class::BestEffort, &input(64, seed))
    };
    let [running, waiting] = [0, 1].map(|seed| submit(&setup.handle, soon(seed)));
    assert_eq!(waiting.error(), InvokeError::DeadlineExceeded);
    setup.device.resume();
    assert_eq!(running.error(), InvokeError::DeadlineExceeded);
    let late = InvocationRequest {
        deadline: Some(Duration::from_secs(100)),
        ..request("f", Class::BestEffort, &input(64, 2))
    };
    submit(&setup.handle, late).result();
}

#[test]
fn unloading_cancels_waiting_invocations_and_frees_everything() {
    let setup = setup(EngineConfig { policy: "sequential".into(), ..EngineConfig::default() });
    setup.device.pause();
    let [running, waiting] = [0, 1].map(|i| setup.submit(Class::BestEffort, 64, i));
    setup.device.wait_for_launches();
    let handle = setup.handle.clone();
    let unloading = std::thread::spawn(move || handle.unload(&FunctionKey::local("f")));
    assert_eq!(waiting.error(), InvokeError::Unloaded);
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::UnknownFunction);
    assert!(!unloading.is_finished(), "an invocation is running");
    setup.device.resume();
    running.result();
    unloading.join().expect("no panic").expect("unloaded");
    assert_eq!((setup.handle.statistics().device.memory_used_bytes, setup.device.modules()), (0, 0));
    assert_eq!(setup.device.constants(), (0, 0), "no constants are left or mapped");
    assert!(matches!(setup.handle.unload(&FunctionKey::local("f")), Err(EngineError::NotLoaded(_))));
    setup.handle.load(Arc::clone(&setup.bundle), options("f")).expect("loaded again");
    setup.submit(Class::BestEffort, 64, 0).result();
}

#[test]
fn functions_with_equal_weights_share_them() {
    let setup = setup(EngineConfig::default());
    let info = setup.handle.load(Arc::clone(&setup.bundle), options("g")).expect("a second function");
    assert!(info.weights_shared);
    assert_eq!((setup.handle.statistics().device.memory_used_bytes, setup.device.modules()), (256, 2));
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    submit(&setup.handle, request("g", Class::RealTime, &input(33, 1))).result();
    assert!(matches!(setup.handle.load(Arc::clone(&setup.bundle), options("g")), Err(EngineError::AlreadyLoaded(_))));
}

#[test]
fn a_failed_load_leaves_no_resources_behind() {
    let (device, controls) = FakeDevice::new(0);
    let engine = Engine::start(device, EngineConfig { memory_limit_bytes: Some(255), ..EngineConfig::default() })
        .expect("an engine");
    let handle = engine.handle();
    let error = handle.load(toy::bundle(fake::TARGET, b"fake"), options("f")).expect_err("no memory");
    assert!(matches!(error, EngineError::OutOfMemory { wanted: 256, free: 0, .. }), "{error}");
    assert_eq!((handle.statistics().device.memory_used_bytes, controls.modules()), (0, 0));
    let error = handle.load(toy::bundle(fake::TARGET, b"other"), options("f")).expect_err("bad code");
    assert!(error.to_string().contains("the code is not for a fake device"), "{error}");
    assert_eq!(submit(&handle, request("f", Class::RealTime, &[])).error(), InvokeError::UnknownFunction);
}

#[test]
fn best_effort_waits_for_memory_and_nothing_exceeds_the_limit() {
    let one = toy::invocation_memory(64);
    let limit = 256 + one + one / 2;
    let setup = setup(EngineConfig { memory_limit_bytes: Some(limit), ..EngineConfig::default() });
    let pending: Vec<Pending> = (0..10).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    pending.iter().for_each(|pending| drop(pending.result()));
    assert!(setup.handle.statistics().device.memory_used_bytes_max <= limit);
    // Kept memory of unused shapes is reclaimed for other shapes.
    setup.submit(Class::BestEffort, 48, 0).result();
    let error = setup.submit(Class::BestEffort, 4096, 0).error();
    assert!(
        matches!(error, InvokeError::OutOfMemory { wanted, .. } if wanted == 256 + toy::invocation_memory(4096)),
        "{error}"
    );
    setup.submit(Class::RealTime, 64, 0).result();
}

#[test]
fn a_kernel_that_traps_fails_its_invocation_only() {
    let setup = setup(EngineConfig::default());
    let good = setup.submit(Class::BestEffort, 200, 1);
    let bad = submit(&setup.handle, request("f", Class::BestEffort, &[7, 0xDEAD]));
    let text = bad.error().to_string();
    assert_eq!(text, "kernel 'step' failed (node 'step_0', step 2 of 14, on fake:0)");
    good.result();
    assert_eq!(setup.handle.statistics().functions[0].failure, 1);
}

#[test]
fn launches_of_invocations_that_are_over_are_aborted_and_their_memory_is_freed() {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let mut with_deadline = request("f", Class::RealTime, &input(64, 1));
    with_deadline.deadline = Some(Duration::from_millis(20));
    let with_deadline = submit(&setup.handle, with_deadline);
    setup.device.wait_for_launches();
    assert_eq!(with_deadline.error(), InvokeError::DeadlineExceeded);
    let cancelled = setup.submit(Class::BestEffort, 640, 2);
    setup.device.wait_for_launches();
    setup.handle.cancel(cancelled.id);
    assert_eq!(cancelled.error(), InvokeError::Cancelled);

    // The device was paused all the time, and no launch is left on it.
    let statistics = setup.handle.statistics();
    assert!(statistics.aborted_launches >= 2, "{} launches were aborted", statistics.aborted_launches);
    assert_eq!((statistics.functions[0].failure, statistics.functions[0].running), (2, 0));
    setup.device.resume();
    setup.submit(Class::BestEffort, 640, 3).result();
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    assert_eq!(setup.handle.statistics().device.memory_used_bytes, 0);
}

#[test]
fn invocations_on_a_lost_device_are_answered() {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let running: Vec<Pending> = (0..5).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    // The statistics arrive after all invocations were handled, so the next invocation is the first
    // one on the lost device.
    setup.handle.statistics();
    setup.device.lose();
    let discovers = setup.submit(Class::RealTime, 16, 0);
    for pending in running.iter().chain([&discovers, &setup.submit(Class::RealTime, 16, 0)]) {
        assert_eq!(pending.error(), InvokeError::DeviceLost("the test lost it".into()));
    }
    assert_eq!(setup.handle.statistics().device.lost.as_deref(), Some("the test lost it"));
    assert!(setup.handle.load(Arc::clone(&setup.bundle), options("g")).is_err());
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    setup.engine.shutdown();
}

#[test]
fn the_error_for_an_unknown_policy_lists_all_policies() {
    let (device, _) = FakeDevice::new(0);
    let error = Engine::start(device, EngineConfig { policy: "fastest".into(), ..EngineConfig::default() })
        .expect_err("no such policy");
    assert!(error.to_string().contains("`fastest`; choose one of: reset, reef, streams"), "{error}");
}
