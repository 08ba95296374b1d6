//! Batches of requests on a fake device that computes real results.

mod retained;

use crate::fake;
use crate::fake::{Controls, FakeDevice};
use crate::toy;
use atoll_engine::*;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

type Answer = Result<InvocationResult, InvokeError>;

const LONG: Duration = Duration::from_secs(20);

fn up_to(rows: u32) -> BatchingOptions {
    BatchingOptions::up_to(NonZeroU32::new(rows).expect("at least one row"))
}

fn options(batching: BatchingOptions) -> FunctionOptions {
    FunctionOptions {
        key: FunctionKey::local("f"),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: Default::default(),
        batching: Some(batching),
    }
}

struct Setup {
    engine: Engine,
    handle: EngineHandle,
    device: Controls,
}

fn setup_with(config: EngineConfig, batching: BatchingOptions, checked: bool) -> Setup {
    let (device, controls) = FakeDevice::new(config.evict_at_random.unwrap_or(0));
    let engine = Engine::start(device, config).expect("an engine");
    let handle = engine.handle();
    handle.load(toy::batched_bundle(fake::TARGET, b"fake", checked), options(batching)).expect("a function");
    Setup { engine, handle, device: controls }
}

fn setup(batching: BatchingOptions) -> Setup {
    setup_with(EngineConfig::default(), batching, false)
}

struct Pending {
    id: InvocationId,
    input: Vec<u32>,
    answers: Receiver<Answer>,
}

impl Setup {
    fn submit(&self, rows: u32, seed: u32) -> Pending {
        self.submit_by(rows, seed, |_| ())
    }

    fn submit_by(&self, rows: u32, seed: u32, change: impl Fn(&mut InvocationRequest)) -> Pending {
        let input: Vec<u32> = (0..rows).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect();
        self.submit_input(input, change)
    }

    fn submit_input(&self, input: Vec<u32>, change: impl Fn(&mut InvocationRequest)) -> Pending {
        let mut request = toy::request("f", Class::BestEffort, &input);
        change(&mut request);
        let (send, answers) = channel();
        let id = self.handle.submit(request, Box::new(move |answer| drop(send.send(answer))));
        Pending { id, input, answers }
    }

    /// A request that runs until the device is resumed. Later requests wait for a batch meanwhile.
    fn hold(&self) -> Pending {
        self.device.pause();
        let first = self.submit(8, 1);
        self.device.wait_for_launches();
        first
    }

    fn function(&self) -> FunctionStatistics {
        self.handle.statistics().functions.remove(0)
    }

    /// Rows and number of the runs.
    fn runs(&self) -> Vec<(u64, u64)> {
        self.function().batches.iter().map(|batch| (batch.rows, batch.count)).collect()
    }

    /// Unloads the function, and checks that no resources are left.
    fn unload(&self) {
        self.handle.unload(&FunctionKey::local("f")).expect("unloaded");
        assert_eq!(self.handle.statistics().device.memory_used_bytes, 0);
    }
}

impl Pending {
    fn answer(&self) -> Answer {
        let answer = self.answers.recv_timeout(LONG).expect("an answer");
        let again = self.answers.recv_timeout(LONG);
        assert_eq!(again.err(), Some(RecvTimeoutError::Disconnected), "the reply is called once");
        answer
    }

    /// The result, which must equal that of the request alone.
    fn result(&self) -> InvocationResult {
        let result = self.answer().expect("a result");
        let bytes = toy::expected(&self.input);
        assert_eq!(result.outputs, [OutputTensor { shape: vec![self.input.len() as i64], bytes }]);
        let InvocationTiming { queue_ns, input_ns, compute_ns, output_ns } = result.timing;
        assert!(compute_ns > 0 && queue_ns + input_ns + output_ns > 0);
        result
    }

    fn error(&self) -> InvokeError {
        self.answer().expect_err("an error")
    }
}

#[test]
fn requests_that_arrive_while_the_function_runs_share_a_run() {
    for seed in 0..4 {
        let config = EngineConfig { evict_at_random: (seed > 0).then_some(seed), ..EngineConfig::default() };
        let setup = setup_with(config, up_to(128), false);
        let first = setup.hold();
        let others: Vec<Pending> = [8, 16, 8, 24, 8].into_iter().zip(2..).map(|(n, i)| setup.submit(n, i)).collect();
        assert_eq!(setup.function().in_queue, 5, "seed {seed}");
        setup.device.resume();
        first.result();
        others.iter().for_each(|pending| drop(pending.result()));
        assert_eq!(setup.runs(), [(8, 1), (64, 1)], "seed {seed}");
        let function = setup.function();
        assert_eq!((function.success, function.executions(), function.rows()), (6, 2, 72));
        assert_eq!((function.in_queue, function.running), (0, 0));
        assert!(function.gather_ns > 0);
        setup.unload();
    }
}

#[test]
fn only_rows_that_fit_are_gathered() {
    let setup = setup(up_to(16));
    let first = setup.hold();
    let others: Vec<Pending> = (2..9).map(|i| setup.submit(8, i)).collect();
    setup.device.resume();
    first.result();
    others.iter().for_each(|pending| drop(pending.result()));
    let function = setup.function();
    assert!(function.batches.iter().all(|batch| batch.rows <= 16), "{:?}", function.batches);
    assert!(setup.runs().contains(&(16, 3)), "{:?}", setup.runs());
    let error = setup.submit(24, 1).error().to_string();
    assert!(error.contains("inference request batch-size must be <= 16, but it is 24"), "{error}");
    setup.unload();
}

#[test]
fn real_time_requests_and_other_priorities_run_apart() {
    let setup = setup(up_to(64));
    let first = setup.hold();
    let real_time = |request: &mut InvocationRequest| request.class = Some(Class::RealTime);
    let urgent = [setup.submit_by(8, 2, real_time), setup.submit_by(8, 3, real_time)];
    let low = |request: &mut InvocationRequest| request.priority = 9;
    let others = [setup.submit(8, 4), setup.submit_by(8, 5, low), setup.submit(8, 6), setup.submit_by(8, 7, low)];
    setup.device.resume();
    [&first].into_iter().chain(&urgent).chain(&others).for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(8, 3), (16, 2)]);
    setup.unload();
    let setup = setup_with(EngineConfig::default(), BatchingOptions { real_time: true, ..up_to(64) }, false);
    setup.device.pause();
    let urgent: Vec<Pending> = (0..4).map(|i| setup.submit_by(8, i, real_time)).collect();
    setup.device.resume();
    urgent.iter().for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(8, 1), (24, 1)]);
}

#[test]
fn real_time_requests_with_time_to_wait_share_a_run() {
    let setup = setup(up_to(64));
    let urgent = |deadline| {
        move |request: &mut InvocationRequest| {
            (request.class, request.deadline) = (Some(Class::RealTime), deadline);
        }
    };
    // The first run shows how long one takes.
    setup.submit_by(8, 1, urgent(Some(LONG))).result();
    setup.device.pause();
    let first = setup.submit_by(8, 2, urgent(Some(LONG)));
    let patient: Vec<Pending> = (3..6).map(|seed| setup.submit_by(8, seed, urgent(Some(LONG)))).collect();
    let at_once = setup.submit_by(8, 6, urgent(None));
    setup.device.resume();
    [&first, &at_once].into_iter().chain(&patient).for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(8, 3), (24, 1)]);
    setup.unload();
}

#[test]
fn a_fixed_delay_gathers_on_a_free_device() {
    let setup = setup(BatchingOptions { max_queue_delay: Some(LONG), preferred: vec![24], ..up_to(64) });
    let pending: Vec<Pending> = (0..3).map(|i| setup.submit(8, i)).collect();
    pending.iter().for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(24, 1)], "the preferred size ends the delay");
    // Without `gathers` only the limit of rows applies.
    let setup = setup_with(
        EngineConfig::default(),
        BatchingOptions { gathers: false, max_queue_delay: Some(LONG), ..up_to(16) },
        false,
    );
    setup.submit(8, 1).result();
    assert_eq!(setup.runs(), [(8, 1)]);
    assert!(matches!(setup.submit(24, 1).error(), InvokeError::BadInput(_)));
}

#[test]
fn a_request_leaves_its_batch_alone() {
    let setup = setup(up_to(64));
    let first = setup.hold();
    let others: Vec<Pending> = (2..6).map(|i| setup.submit(8, i)).collect();
    // While it waits for the batch.
    setup.handle.cancel(others[1].id);
    assert_eq!(others[1].error(), InvokeError::Cancelled);
    setup.device.resume();
    [&first, &others[0], &others[2], &others[3]].into_iter().for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(8, 1), (24, 1)]);
    // In a batch: with the fourth request it is full, so it is closed behind the first.
    let setup = setup_with(EngineConfig::default(), up_to(32), false);
    let first = setup.hold();
    let others: Vec<Pending> = (2..6).map(|i| setup.submit(8, i)).collect();
    setup.handle.cancel(others[0].id);
    assert_eq!(others[0].error(), InvokeError::Cancelled, "the device has not run anything yet");
    setup.device.resume();
    [&first, &others[1], &others[2], &others[3]].into_iter().for_each(|pending| drop(pending.result()));
    let function = setup.function();
    assert_eq!((function.success, function.failure), (4, 1));
    setup.unload();
}

#[test]
fn a_batch_of_cancelled_requests_ends() {
    let setup = setup(up_to(16));
    let first = setup.hold();
    let others = [setup.submit(8, 2), setup.submit(8, 3)];
    others.iter().for_each(|pending| setup.handle.cancel(pending.id));
    others.iter().for_each(|pending| assert_eq!(pending.error(), InvokeError::Cancelled));
    setup.handle.cancel(first.id);
    setup.device.resume();
    assert_eq!(first.error(), InvokeError::Cancelled);
    setup.submit(8, 4).result();
    setup.unload();
}

#[test]
fn a_deadline_ends_one_request() {
    let setup = setup(up_to(32));
    let first = setup.hold();
    let soon = |request: &mut InvocationRequest| request.deadline = Some(Duration::from_millis(30));
    // The last one makes the batch full.
    let others = [setup.submit(8, 2), setup.submit_by(8, 3, soon), setup.submit(8, 4), setup.submit(8, 5)];
    let waits = setup.submit_by(8, 6, soon);
    assert_eq!(others[1].error(), InvokeError::DeadlineExceeded);
    assert_eq!(waits.error(), InvokeError::DeadlineExceeded);
    setup.device.resume();
    [&first, &others[0], &others[2], &others[3]].into_iter().for_each(|pending| drop(pending.result()));
    setup.unload();
}

#[test]
fn a_request_that_traps_fails_alone() {
    let setup = setup(up_to(64));
    let first = setup.hold();
    let good = [setup.submit(8, 2), setup.submit(8, 3)];
    let bad = setup.submit_input(vec![toy::TRAP; 8], |_| ());
    let late = setup.submit(8, 4);
    setup.device.resume();
    [&first, &good[0], &good[1], &late].into_iter().for_each(|pending| drop(pending.result()));
    assert!(matches!(bad.error(), InvokeError::Device(_)));
    let function = setup.function();
    assert_eq!((function.success, function.failure), (4, 1));
    setup.unload();
}

#[test]
fn a_request_that_violates_a_check_fails_alone() {
    let setup = setup_with(EngineConfig::default(), up_to(64), true);
    let first = setup.hold();
    let good = [setup.submit(8, 2), setup.submit(8, 3)];
    let bad = setup.submit_input(vec![toy::BAD; 8], |_| ());
    setup.device.resume();
    [&first, &good[0], &good[1]].into_iter().for_each(|pending| drop(pending.result()));
    let error = bad.error();
    assert!(matches!(&error, InvokeError::BadInput(text) if text.contains("one of 8 numbers is bad")), "{error}");
    setup.unload();
}

#[test]
fn a_request_of_a_wrong_form_never_joins() {
    let setup = setup(up_to(64));
    let first = setup.hold();
    let good = [setup.submit(8, 2), setup.submit(8, 3)];
    let short = setup.submit_by(8, 4, |request| request.inputs[0].bytes.truncate(31));
    assert!(matches!(short.error(), InvokeError::BadInput(_)));
    setup.device.resume();
    [&first, &good[0], &good[1]].into_iter().for_each(|pending| drop(pending.result()));
    assert_eq!(setup.runs(), [(8, 1), (16, 1)]);
}

#[test]
fn unloading_and_shutting_down_answer_those_that_wait() {
    let setup = setup(up_to(24));
    let first = setup.hold();
    let others: Vec<Pending> = (2..7).map(|i| setup.submit(8, i)).collect();
    std::thread::scope(|scope| {
        let unloading = scope.spawn(|| setup.unload());
        // A full batch is closed, the others wait for one.
        others[3..].iter().for_each(|pending| assert_eq!(pending.error(), InvokeError::Unloaded));
        setup.device.resume();
        first.result();
        unloading.join().expect("unloaded");
    });
    // The batch of three was closed. It runs if its memory was bound before.
    for pending in &others[..3] {
        assert!(matches!(pending.answer(), Ok(_) | Err(InvokeError::Unloaded)));
    }
    let setup = setup_with(
        EngineConfig { shutdown_grace: Duration::ZERO, ..EngineConfig::default() },
        BatchingOptions { max_queue_delay: Some(LONG), ..up_to(64) },
        false,
    );
    let waits = setup.submit(8, 1);
    setup.engine.shutdown();
    assert_eq!(waits.error(), InvokeError::ShuttingDown);
}

#[test]
fn requests_of_a_removed_instance_do_not_wait_for_their_batch() {
    let setup = setup(BatchingOptions { max_queue_delay: Some(LONG * 10), ..up_to(64) });
    let instance = |name: &str| ShareClient { tenant: FunctionKey::local("f").tenant, instance: Some(name.into()) };
    let half = ShareRequest { sm_partition: 100.0, quota_request: 0.5, quota_limit: 0.5, group: 0 };
    for name in ["a", "b"] {
        let share = ShareSpec::new(&half).expect("a valid share");
        setup.handle.set_share(instance(name), LaneId::DEFAULT, share).expect("it fits");
    }
    let submit = |name: &str| setup.submit_by(8, 1, |request| request.instance = Some(name.into()));
    let (gone, other) = ([submit("a"), submit("a")], submit("b"));
    assert!(setup.handle.remove_share(instance("a")));
    gone.iter().for_each(|pending| assert_eq!(pending.error(), InvokeError::InstanceRemoved("a".into())));
    assert_eq!(submit("a").error(), InvokeError::UnknownInstance("a".into()));
    assert!(setup.handle.remove_share(instance("b")));
    assert_eq!(other.error(), InvokeError::InstanceRemoved("b".into()));
    setup.unload();
}

#[test]
fn a_lost_device_answers_all_requests() {
    let setup = setup(up_to(24));
    let first = setup.hold();
    let others: Vec<Pending> = (2..7).map(|i| setup.submit(8, i)).collect();
    setup.device.lose();
    setup.device.resume();
    setup.handle.cancel(first.id);
    for pending in [&first].into_iter().chain(&others) {
        assert!(matches!(pending.error(), InvokeError::DeviceLost(_) | InvokeError::Cancelled));
    }
}

#[test]
fn batches_without_memory_run_request_by_request() {
    // Room for one request of 64 rows, and no more.
    let limit = 256 + toy::invocation_memory(64);
    let setup =
        setup_with(EngineConfig { memory_limit_bytes: Some(limit), ..EngineConfig::default() }, up_to(256), false);
    let first = setup.hold();
    let others: Vec<Pending> = (2..7).map(|i| setup.submit(64, i)).collect();
    setup.device.resume();
    first.result();
    others.iter().for_each(|pending| drop(pending.result()));
    setup.unload();
}

#[test]
fn options_that_cannot_be_honoured_are_refused() {
    let (device, _) = FakeDevice::new(0);
    let engine = Engine::start(device, EngineConfig::default()).expect("an engine");
    let refusal =
        |bundle: Arc<_>, batching| engine.handle().load(bundle, options(batching)).expect_err("a refusal").to_string();
    let batched = || toy::batched_bundle(fake::TARGET, b"fake", false);
    for (says, found) in [
        (
            "max_batch_size is 8, but its rows are not proven independent",
            refusal(toy::bundle(fake::TARGET, b"fake"), up_to(8)),
        ),
        (
            "compiled for at most 1048576 rows; compile it with `--symbol n=1..2000000`",
            refusal(batched(), up_to(2_000_000)),
        ),
        ("at most 65536 is possible", refusal(batched(), up_to(70_000))),
        (
            "the preferred batch size 9 is not between 1 and max_batch_size, which is 8",
            refusal(batched(), BatchingOptions { preferred: vec![4, 9], ..up_to(8) }),
        ),
    ] {
        assert!(found.contains(says), "{says}: {found}");
    }
}
