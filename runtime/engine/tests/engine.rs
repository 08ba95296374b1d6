//! The engine on a device that computes real answers.

#[expect(dead_code, reason = "other tests need more of it")]
mod fake;
#[expect(dead_code, reason = "some of it is for the host device")]
mod toy;

use atoll_engine::*;
use atoll_kgraph::Bundle;
use fake::{Controls, FakeDevice};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use toy::request;

type Answer = Result<InvocationResult, InvokeError>;

/// An engine with the function `f` on it.
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

/// An invocation under way.
struct Pending {
    id: InvocationId,
    input: Vec<u32>,
    answers: Receiver<Answer>,
}

impl Pending {
    fn answer(&self) -> Answer {
        let answer = self.answers.recv_timeout(Duration::from_secs(20)).expect("an answer");
        let again = self.answers.recv_timeout(Duration::from_secs(20));
        assert_eq!(again.err(), Some(RecvTimeoutError::Disconnected), "the reply is used up");
        answer
    }

    /// The answer, which must be the right one.
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
fn a_launch_that_says_it_left_although_nobody_asked_fails_alone() {
    let setup = setup(EngineConfig::default());
    setup.device.leave_unasked();
    let error = submit(&setup.handle, request("f", Class::BestEffort, &input(100, 1))).error();
    assert!(
        matches!(&error, InvokeError::Device(why) if why.contains("something wrote into its control words")),
        "{error}"
    );
    assert_eq!(setup.handle.statistics().device.lost, None, "and nothing else does");
    setup.engine.shutdown();
}

/// What is launched too early, the device finds out.
#[test]
fn nothing_is_launched_before_it_can_read_its_constants() {
    let setup = setup(EngineConfig::default());
    setup.device.be_slow_to_show(Duration::from_millis(50));
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
    assert_eq!(setup.device.constants(), (1, 2), "one constant for two tenants");
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
fn memory_is_what_was_promised_and_is_used_again() {
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
fn kernels_that_leave_silently_are_run_again_from_where_that_is_safe() {
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
        assert_eq!(setup.handle.statistics().evicted_launches, 0, "they say nothing");
    }
    assert!(preemptions > 100, "{preemptions}");
}

#[test]
fn best_effort_work_gets_through_a_load_that_never_pauses() {
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
    assert_eq!(*order.lock().expect("no panic"), [7, 2, 5, 7], "behind the one that had begun");
}

/// The policies that take work of both classes.
fn serving_everybody() -> impl Iterator<Item = &'static atoll_core::PolicyEntry> + Clone {
    atoll_core::POLICIES.iter().filter(|entry| (entry.make)().admits(Class::BestEffort))
}

#[test]
fn a_class_that_the_policy_does_not_take_is_refused() {
    let setup = setup(EngineConfig { policy: "rt-only".into(), ..EngineConfig::default() });
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::ClassRefused(Class::BestEffort));
    drop(setup.submit(Class::RealTime, 64, 0).result());
}

#[test]
fn every_policy_serves_a_crowd() {
    for entry in serving_everybody() {
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
    // Once the statistics are there, the submission has been handled.
    assert_eq!(setup.handle.statistics().preemptions, 1);
    setup.device.resume();
    real_time.result();
    assert_eq!(best_effort.result().preemptions, 1);
    let statistics = setup.handle.statistics();
    assert_eq!((statistics.evicted_launches, statistics.preemption_latency.count()), (4, 1));
    assert!(statistics.preemption_latency.max_ns() > 0 && statistics.rt_start_latency.count() == 1);
}

#[test]
fn what_is_wrong_with_a_request_is_said_at_once() {
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
            "the bytes are never taken for another type"
        );
    }
    assert_eq!(setup.handle.statistics().functions[0].rejected, 3);
}

#[test]
fn a_full_queue_refuses() {
    let setup = setup(EngineConfig { queue_capacity: 2, ..EngineConfig::default() });
    setup.device.pause();
    // Two device queues take one each, as long as those have launches to issue.
    let running: Vec<Pending> = (0..2).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    setup.handle.statistics();
    let waiting: Vec<Pending> = (0..2).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::QueueFull { capacity: 2 });
    let function = &setup.handle.statistics().functions[0];
    assert_eq!((function.in_queue, function.running, function.rejected), (2, 2, 1));
    // Real-time work has a queue of its own.
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
    setup.device.be_deaf();
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
fn unloading_ends_what_waits_and_frees_everything() {
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
    assert_eq!(setup.device.constants(), (0, 0), "nor is anything left of constants, or seen");
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
fn a_failed_load_leaves_nothing() {
    let (device, controls) = FakeDevice::new(0);
    let engine = Engine::start(device, EngineConfig { memory_limit_bytes: Some(255), ..EngineConfig::default() })
        .expect("an engine");
    let handle = engine.handle();
    let error = handle.load(toy::bundle(fake::TARGET, b"fake"), options("f")).expect_err("no memory");
    assert!(matches!(error, EngineError::OutOfMemory { wanted: 256, free: 0, .. }), "{error}");
    assert_eq!((handle.statistics().device.memory_used_bytes, controls.modules()), (0, 0));
    let error = handle.load(toy::bundle(fake::TARGET, b"other"), options("f")).expect_err("bad code");
    assert!(error.to_string().contains("this is no code for a fake device"), "{error}");
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
    // Other shapes take the place of those that nobody uses.
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
fn what_nobody_wants_is_ended_on_the_device_and_gives_everything_back() {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let mut impatient = request("f", Class::RealTime, &input(64, 1));
    impatient.deadline = Some(Duration::from_millis(20));
    let impatient = submit(&setup.handle, impatient);
    setup.device.wait_for_launches();
    assert_eq!(impatient.error(), InvokeError::DeadlineExceeded);
    let cancelled = setup.submit(Class::BestEffort, 640, 2);
    setup.device.wait_for_launches();
    setup.handle.cancel(cancelled.id);
    assert_eq!(cancelled.error(), InvokeError::Cancelled);

    // The device never went on, and yet nothing is left on it.
    let statistics = setup.handle.statistics();
    assert!(statistics.aborted_launches >= 2, "{} launches were aborted", statistics.aborted_launches);
    assert_eq!((statistics.functions[0].failure, statistics.functions[0].running), (2, 0));
    setup.device.resume();
    setup.submit(Class::BestEffort, 640, 3).result();
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    assert_eq!(setup.handle.statistics().device.memory_used_bytes, 0);
}

#[test]
fn a_lost_device_is_answered_for() {
    let setup = setup(EngineConfig::default());
    setup.device.pause();
    let running: Vec<Pending> = (0..5).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    // Once the statistics are there, all of them have been handled, and nothing but the next one meets
    // the lost device.
    setup.handle.statistics();
    setup.device.lose();
    let discovers = setup.submit(Class::RealTime, 16, 0);
    for pending in running.iter().chain([&discovers, &setup.submit(Class::RealTime, 16, 0)]) {
        assert_eq!(pending.error(), InvokeError::Device("the device is lost: the test lost it".into()));
    }
    assert_eq!(setup.handle.statistics().device.lost.as_deref(), Some("the test lost it"));
    assert!(setup.handle.load(Arc::clone(&setup.bundle), options("g")).is_err());
    setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
    setup.engine.shutdown();
}

#[test]
fn shutdown_lets_invocations_end_and_answers_the_late() {
    let setup = setup(EngineConfig::default());
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    let handle = setup.handle.clone();
    setup.engine.shutdown();
    pending.iter().for_each(|pending| drop(pending.result()));
    assert_eq!(submit(&handle, request("f", Class::RealTime, &[1])).error(), InvokeError::ShuttingDown);
    assert!(matches!(handle.load(Arc::clone(&setup.bundle), options("g")), Err(EngineError::ShuttingDown)));
    assert_eq!(handle.statistics().functions, []);
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    let setup = setup(EngineConfig { shutdown_grace: Duration::from_millis(10), ..EngineConfig::default() });
    setup.device.pause();
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 64, i)).collect();
    setup.device.wait_for_launches();
    // Nothing ends on a device that stands still and does not listen.
    setup.device.be_deaf();
    setup.engine.shutdown();
    pending.iter().for_each(|pending| assert_eq!(pending.error(), InvokeError::ShuttingDown));
}

#[test]
fn dropping_an_engine_answers_everyone() {
    let setup = setup(EngineConfig::default());
    let pending: Vec<Pending> = (0..6).map(|i| setup.submit(Class::BestEffort, 640, i)).collect();
    drop(setup.engine);
    assert!(pending.iter().any(|pending| pending.answer().err() == Some(InvokeError::ShuttingDown)));
}

#[test]
fn a_panic_of_the_thread_answers_everyone() {
    let setup = setup(EngineConfig::default());
    setup.device.panic_on_submit();
    assert_eq!(setup.submit(Class::BestEffort, 64, 0).error(), InvokeError::ShuttingDown);
    assert_eq!(setup.submit(Class::RealTime, 64, 0).error(), InvokeError::ShuttingDown);
    let begin = std::time::Instant::now();
    while !setup.handle.is_lost() {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the device of a thread that panicked does not count as lost"
        );
        std::thread::yield_now();
    }
    assert!(setup.handle.statistics().device.lost.is_some_and(|why| why.contains("panicked")));
    setup.engine.shutdown();
}

#[test]
fn an_unknown_policy_is_named_with_those_there_are() {
    let (device, _) = FakeDevice::new(0);
    let error = Engine::start(device, EngineConfig { policy: "fastest".into(), ..EngineConfig::default() })
        .expect_err("no such policy");
    assert!(error.to_string().contains("`fastest`; there are: reset, reef, streams"), "{error}");
}

/// Clients that come and go in every way at once. Whatever happens: one answer each, right where it
/// is a result, and nothing left at the end. The sum of what some rows say.
fn bill(statistics: &EngineStatistics, which: impl Fn(&UsageRow) -> bool) -> Usage {
    statistics.usage.iter().filter(|row| which(row)).fold(Usage::default(), |mut sum, row| {
        sum += &row.usage;
        sum
    })
}

#[test]
fn everybody_is_billed_for_what_their_functions_used() {
    let setup = setup(EngineConfig::default());
    let tenants: [Tenant; 2] = ["a", "b"].map(|name| name.parse().expect("a name"));
    let key = |tenant: &Tenant| FunctionKey { tenant: tenant.clone(), name: "f".into() };
    for tenant in &tenants {
        setup
            .handle
            .load(Arc::clone(&setup.bundle), FunctionOptions { key: key(tenant), ..options("f") })
            .expect("a function");
    }
    let rows = setup.handle.statistics().usage;
    let names: Vec<_> = rows.iter().map(|row| (row.tenant.as_str(), row.function.as_deref(), row.class)).collect();
    let classes = |tenant| [Class::RealTime, Class::BestEffort].map(|class| (tenant, Some("f"), class));
    assert_eq!(names, ["a", "b", "local"].map(classes).concat(), "rows are there before anything ran");
    let constants = |row: &UsageRow| row.usage.memory[MemoryKind::Constants as usize].bytes;
    assert_eq!(rows.iter().map(constants).collect::<Vec<_>>(), [0, 85, 0, 85, 0, 86], "the constants are there once");

    for (tenant, count) in tenants.iter().zip([3, 5]) {
        for seed in 0..count {
            let request =
                InvocationRequest { function: key(tenant), ..request("f", Class::RealTime, &input(100, seed)) };
            submit(&setup.handle, request).result();
        }
    }
    let statistics = setup.handle.statistics();
    let [a, b, local] = ["a", "b", "local"].map(|name| bill(&statistics, |row| row.tenant.as_str() == name));
    assert_eq!((a.invocations, b.invocations, local.invocations), ([3, 0, 0, 0, 0], [5, 0, 0, 0, 0], [0; 5]));
    assert_eq!(
        (a.written_bytes, a.read_bytes, local.written_bytes, a.cold_starts, local.cold_starts),
        (1200, 1200, 32, 0, 1)
    );
    assert!(a.launches == 3 * 13 && b.launches == 5 * 13 && a.compute_unit_ns > 0 && local.compute_unit_ns == 0);
    assert_eq!(Some(a.compute_unit_ns + b.compute_unit_ns), statistics.device.busy_ns.map(u128::from));
    let held: u64 = bill(&statistics, |_| true).memory.iter().map(|memory| memory.bytes).sum();
    assert_eq!(held, statistics.device.memory_used_bytes);

    // A function that is gone leaves its bill behind, and the others share what it shared.
    setup.handle.unload(&key(&tenants[0])).expect("unloaded");
    let statistics = setup.handle.statistics();
    let gone = bill(&statistics, |row| row.tenant == tenants[0]);
    assert_eq!(
        (gone.compute_unit_ns, gone.invocations, gone.memory.map(|memory| memory.bytes)),
        (a.compute_unit_ns, a.invocations, [0; 3])
    );
    assert!(
        gone.memory[MemoryKind::Idle as usize].byte_ns > 0 && gone.memory[MemoryKind::Invocations as usize].byte_ns > 0
    );
    let rows = statistics.usage;
    assert_eq!(rows.iter().map(constants).sum::<u64>(), 256);
}

#[test]
fn a_life_of_random_events_leaves_nothing_behind() {
    let mut results = 0;
    for seed in 0..8 {
        let mut rng = atoll_core::rng::Rng::new(seed);
        let memory_limit_bytes = Some(256 * 2 + 4 * toy::invocation_memory(200));
        let policy = serving_everybody().cycle().nth(seed as usize).expect("a policy").name.into();
        let setup =
            setup(EngineConfig { policy, memory_limit_bytes, evict_at_random: Some(seed), ..EngineConfig::default() });
        let (mut pending, results_before): (Vec<Pending>, _) = (Vec::new(), results);
        for step in 0..120 {
            let name = if rng.one_in(3) { "g" } else { "f" };
            match rng.below(12) {
                0..2 => drop(setup.handle.load(Arc::clone(&setup.bundle), options(name))),
                2 => drop(setup.handle.unload(&FunctionKey::local(name))),
                3 if !pending.is_empty() => setup.handle.cancel(pending[rng.below(pending.len() as u64) as usize].id),
                _ => {
                    let class = if rng.one_in(3) { Class::RealTime } else { Class::BestEffort };
                    let mut request = request(name, class, &input(rng.below(200) as u32, step));
                    request.deadline = rng.one_in(6).then(|| Duration::from_micros(rng.below(20_000)));
                    pending.push(submit(&setup.handle, request));
                }
            }
        }
        for pending in &pending {
            match pending
                .answers
                .recv_timeout(Duration::from_secs(20))
                .unwrap_or_else(|e| panic!("seed {seed}: no answer: {e}"))
            {
                Ok(result) => {
                    let expected = toy::expected(&pending.input);
                    assert_eq!(result.outputs[0].bytes, expected, "seed {seed}");
                    results += 1;
                }
                Err(InvokeError::Device(text)) => panic!("seed {seed}: {text}"),
                Err(_) => {}
            }
        }
        for name in ["f", "g"] {
            drop(setup.handle.unload(&FunctionKey::local(name)));
        }
        let statistics = setup.handle.statistics();
        let device = &statistics.device;
        assert_eq!((device.memory_used_bytes, setup.device.modules()), (0, 0), "seed {seed}");
        assert!(Some(device.memory_used_bytes_max) <= memory_limit_bytes);
        let bill = bill(&statistics, |_| true);
        assert_eq!(
            Some(bill.compute_unit_ns),
            device.busy_ns.map(u128::from),
            "seed {seed}: the bill is not what the device did"
        );
        assert!(
            statistics.usage.iter().all(|row| row.function.is_none())
                && bill.memory.iter().all(|memory| memory.bytes == 0)
        );
        assert_eq!(bill.invocations[InvocationOutcome::Success as usize], results - results_before, "seed {seed}");
    }
    assert!(results > 100, "{results} results are too few to prove anything");
}

/// `f(f(…f(x)))`, where only the last result comes back.
fn chain(length: usize, class: Class, input: &[u32]) -> ChainRequest {
    let stages = (0..length).map(|stage| {
        let mut request = request("f", class, input);
        let inputs = match stage {
            0 => vec![StageInput::Tensor(request.inputs.remove(0))],
            _ => vec![StageInput::Output { stage: stage - 1, output: 0 }],
        };
        StageRequest {
            function: request.function,
            inputs,
            outputs: Some(if stage + 1 == length { vec![0] } else { vec![] }),
        }
    });
    ChainRequest { stages: stages.collect(), class: Some(class), priority: 0, deadline: None, times_launches: false }
}

fn submit_chain(handle: &EngineHandle, request: ChainRequest) -> Receiver<Answer> {
    let (send, answers) = channel();
    handle.submit_chain(request, Box::new(move |answer| send.send(answer).expect("the test waits")));
    answers
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

#[test]
fn what_a_chain_passes_on_stays_on_the_device() {
    for seed in 0..4 {
        let setup = setup(EngineConfig { evict_at_random: (seed > 0).then_some(seed), ..EngineConfig::default() });
        for length in 1..5 {
            let input = input(100, length as u32);
            let (read, written) = setup.device.traffic();
            let result = submit_chain(&setup.handle, chain(length, Class::BestEffort, &input))
                .recv()
                .expect("an answer")
                .expect("a result");
            let expected = (0..length).fold(input, |x, _| words(&toy::expected(&x)));
            assert_eq!(words(&result.outputs[0].bytes), expected, "seed {seed}, {length} stages");
            let after = setup.device.traffic();
            assert_eq!((result.outputs.len(), after.0 - read), (1, 400), "one result crosses, whatever lies between");
            // Evicted words are cleared from the host.
            assert!(seed > 0 || after.1 - written == 400, "one input crosses: {} bytes", after.1 - written);
        }
        let function = setup.handle.statistics().functions.remove(0);
        assert_eq!((function.success, function.in_queue, function.running), (1 + 2 + 3 + 4, 0, 0));
        setup.handle.unload(&FunctionKey::local("f")).expect("unloaded");
        assert_eq!(setup.handle.statistics().device.memory_used_bytes, 0);
    }
}

#[test]
fn a_chain_takes_all_its_memory_or_none() {
    let limit = 256 + 4 * toy::invocation_memory(200);
    let setup = setup(EngineConfig { memory_limit_bytes: Some(limit), ..EngineConfig::default() });
    let input = input(200, 1);
    let answers: Vec<_> =
        (0..8).map(|i| submit_chain(&setup.handle, chain(2 + i % 3, Class::BestEffort, &input))).collect();
    for answer in answers {
        answer.recv_timeout(Duration::from_secs(20)).expect("chains do not block each other").expect("a result");
    }
    let refused = submit_chain(&setup.handle, chain(5, Class::RealTime, &input))
        .recv()
        .expect("an answer")
        .expect_err("too much");
    assert!(
        matches!(refused, InvokeError::OutOfMemory { wanted, .. } if wanted == 256 + 5 * toy::invocation_memory(200)),
        "{refused}"
    );
}

#[test]
fn chains_that_make_no_sense_are_refused() {
    let setup = setup(EngineConfig::default());
    let refusal = |change: fn(&mut ChainRequest)| {
        let mut request = chain(2, Class::BestEffort, &input(10, 0));
        change(&mut request);
        submit_chain(&setup.handle, request).recv().expect("an answer").expect_err("a refusal").to_string()
    };
    for (says, found) in [
        ("a chain calls 1 to 64 functions, this one 0", refusal(|c| c.stages.clear())),
        (
            "input 0 comes from stage 1, which is not before it",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 1, output: 0 }]),
        ),
        (
            "input 0 comes from output 3 of stage 0",
            refusal(|c| c.stages[1].inputs = vec![StageInput::Output { stage: 0, output: 3 }]),
        ),
        ("has no output 7", refusal(|c| c.stages[1].outputs = Some(vec![7]))),
        ("0 inputs are given", refusal(|c| c.stages[1].inputs.clear())),
        ("no function of this name", refusal(|c| c.stages[1].function.name = "g".into())),
    ] {
        assert!(found.contains(says), "{says}: {found}");
    }
    let function = setup.handle.statistics().functions.remove(0);
    assert_eq!((function.in_queue, function.running), (0, 0), "a refusal gives its places back");
}
