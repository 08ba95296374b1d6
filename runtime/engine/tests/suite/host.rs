//! The engine on the host device, with kernels in C that follow the conventions of compiled
//! kernels. Their blocks work in place, so that a block that runs twice gives a wrong result.

use crate::toy;
use atoll_core::{LaunchEnd, Outcome};
use atoll_device::Device;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::*;
use atoll_trace::{EventKind, Raise, Record};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Far above the time that the toy's kernels need, even while other tests run.
const TIME_LIMIT: Duration = Duration::from_millis(500);

/// An engine with the function `f` on the host device.
fn start(config: EngineConfig) -> (Engine, EngineHandle) {
    start_with(config, TIME_LIMIT)
}

fn start_with(config: EngineConfig, time_limit: Duration) -> (Engine, EngineHandle) {
    let device =
        HostDevice::start(HostConfig { compute_units: 2, memory_bytes: 64 << 20, time_limit, ..HostConfig::default() })
            .expect("a device");
    let target = device.info().targets.last().cloned().expect("an x86-64 CPU of level 3 or above");
    let engine = Engine::start(Box::new(device), config).expect("an engine");
    let handle = engine.handle();
    let options = FunctionOptions {
        key: FunctionKey::local("f"),
        class: Class::BestEffort,
        queue_capacity: Some(1000),
        lane: Default::default(),
        batching: None,
    };
    handle.load(toy::bundle(&target, &toy::compile()), options).expect("a function");
    (engine, handle)
}

fn submit(handle: &EngineHandle, class: Class, input: &[u32]) -> Receiver<Result<InvocationResult, InvokeError>> {
    let (send, answer) = channel();
    handle.submit(toy::request("f", class, input), Box::new(move |result| send.send(result).expect("the test waits")));
    answer
}

fn result(answer: &Receiver<Result<InvocationResult, InvokeError>>, input: &[u32]) -> InvocationResult {
    let result = answer.recv_timeout(Duration::from_secs(20)).expect("an answer").expect("a result");
    assert!(result.outputs[0].bytes == toy::expected(input), "a wrong answer");
    result
}

fn input(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed) | 1 << 31).collect()
}

#[test]
fn real_time_invocations_preempt_a_stream_of_best_effort_ones() {
    let (engine, handle) = start(EngineConfig::default());
    let best_effort: Vec<_> = (0..40)
        .map(|i| (input(4000, i), i))
        .map(|(input, _)| (submit(&handle, Class::BestEffort, &input), input))
        .collect();
    for seed in 0..50 {
        let input = input(64, seed);
        result(&submit(&handle, Class::RealTime, &input), &input);
        std::thread::sleep(Duration::from_millis(1));
    }
    let preempted: u32 = best_effort.iter().map(|(answer, input)| result(answer, input).preemptions).sum();
    let statistics = handle.statistics();
    assert!(
        preempted > 0 && statistics.evicted_launches > 0,
        "{preempted} preemptions, {} evicted",
        statistics.evicted_launches
    );
    assert!(statistics.preemption_latency.count() > 0);
    assert_eq!(statistics.rt_start_latency.count(), 50);
    engine.shutdown();
}

/// Reads records until there are no more.
fn read(handle: &EngineHandle, next: &mut u64, records: &mut Vec<Record>) {
    loop {
        let batch = handle.trace(Some(*next)).expect("the engine runs");
        assert_eq!((batch.lost, batch.chunks_lost, batch.separate), (0, 0, false));
        assert!(
            batch
                .functions
                .iter()
                .all(|(_, function)| function.name == "f" && function.nodes.contains(&"step_0".to_owned()))
        );
        *next = batch.next;
        records.extend(&batch.records);
        if batch.records.is_empty() {
            return;
        }
    }
}

#[test]
fn everything_is_recorded_once_and_agrees_with_the_counters() {
    let (engine, handle) = start(EngineConfig::default());
    let (mut next, mut records) = (0, Vec::new());
    let best_effort: Vec<_> = (0..20)
        .map(|i| (input(4000, i), i))
        .map(|(input, _)| (submit(&handle, Class::BestEffort, &input), input))
        .collect();
    for seed in 0..30 {
        let input = input(64, seed);
        result(&submit(&handle, Class::RealTime, &input), &input);
        read(&handle, &mut next, &mut records);
        std::thread::sleep(Duration::from_millis(1));
    }
    best_effort.iter().for_each(|(answer, input)| drop(result(answer, input)));
    read(&handle, &mut next, &mut records);
    let statistics = handle.statistics();

    let count = |is: fn(&EventKind) -> bool| records.iter().filter(|record| is(&record.kind)).count() as u64;
    assert_eq!(count(|kind| matches!(kind, EventKind::Arrived { ready: true, .. })), 50);
    assert_eq!(count(|kind| matches!(kind, EventKind::Finished { outcome: Outcome::Complete, .. })), 50);
    assert_eq!(count(|kind| matches!(kind, EventKind::Issued { .. })), statistics.issued_launches);
    assert_eq!(
        count(|kind| matches!(kind, EventKind::Ended { end: LaunchEnd::Evicted, .. })),
        statistics.evicted_launches
    );
    assert_eq!(count(|kind| matches!(kind, EventKind::Raised { why: Raise::Preempted, .. })), statistics.preemptions);

    let decisions: Vec<_> = records.iter().filter(|record| !matches!(record.kind, EventKind::Chunk { .. })).collect();
    assert!(decisions.windows(2).all(|pair| pair[0].at <= pair[1].at), "decisions are in order");
    let (mut ended, mut busy_ns) = (HashMap::new(), 0);
    for record in &records {
        match record.kind {
            EventKind::Ended { launch, started, ended: end, .. } => {
                ended.insert(launch, (record.task, started, end));
            }
            EventKind::Chunk { .. } => {}
            _ => assert!(record.function != Record::NO_FUNCTION, "{record:?}"),
        }
    }
    assert_eq!(ended.len() as u64, statistics.issued_launches, "every launch ends once");
    for record in &records {
        if let EventKind::Chunk { launch, ended: end, .. } = record.kind {
            let (task, first, last) = ended[&launch];
            assert!(record.task == task && first <= record.at && end <= last, "a chunk lies within its launch");
            busy_ns += end.0 - record.at.0;
        }
    }
    assert_eq!(Some(busy_ns), statistics.device.busy_ns, "all chunks are recorded");
    engine.shutdown();
    assert!(handle.trace(None).is_none());
}

#[test]
fn perturbed_invocations_give_the_same_answers() {
    for seed in 0..6 {
        let (engine, handle) = start(EngineConfig { evict_at_random: Some(seed), ..EngineConfig::default() });
        let pending: Vec<_> = (0..12)
            .map(|i| input(1000 + 17 * i, i))
            .map(|input| (submit(&handle, Class::BestEffort, &input), input))
            .collect();
        let preemptions: u32 = pending.iter().map(|(answer, input)| result(answer, input).preemptions).sum();
        let evicted = handle.statistics().evicted_launches;
        assert!(preemptions > 20 && evicted > 20, "seed {seed}: {preemptions} preemptions, {evicted} evicted");
        engine.shutdown();
    }
}

#[test]
fn a_kernel_that_faults_fails_its_invocation_only() {
    let (_engine, handle) = start(EngineConfig::default());
    let good = input(3000, 1);
    for (bad, says) in [
        (toy::TRAP, "thread (2,0,0) at line 54: it executed `trap` (node 'step_0', step 2 of 14, on host:0)"),
        (
            toy::WILD,
            ": write to 0x317d, through a null pointer, outside device memory (node 'step_0', step 2 of 14, \
             on host:0); to find",
        ),
        (toy::HANG, ": it ran for longer than its limit of 500 ms (node 'step_0', step 2 of 14, on host:0)"),
    ] {
        let before = submit(&handle, Class::BestEffort, &good);
        let mut input = input(100, 2);
        input[34] = bad;
        let failing = submit(&handle, Class::BestEffort, &input);
        let after = submit(&handle, Class::RealTime, &good);
        let error = failing.recv().expect("an answer").expect_err("a fault").to_string();
        assert!(error.starts_with("kernel 'step' faulted in block (2,0,0)") && error.contains(says), "{error}");
        result(&before, &good);
        result(&after, &good);
    }
}

#[test]
fn endless_kernels_of_cancelled_invocations_are_ended() {
    let (_engine, handle) = start_with(EngineConfig::default(), Duration::from_secs(600));
    let (mut endless, good) = (input(100, 2), input(3000, 1));
    endless[34] = toy::HANG;
    for round in 0..6 {
        let deadline = (round % 2 == 1).then_some(Duration::from_millis(30));
        let (send, answer) = channel();
        let request = InvocationRequest { deadline, ..toy::request("f", Class::BestEffort, &endless) };
        let id = handle.submit(request, Box::new(move |result| send.send(result).expect("the test waits")));
        // The other compute unit is free meanwhile, and both are afterwards.
        result(&submit(&handle, Class::RealTime, &good), &good);
        if deadline.is_none() {
            handle.cancel(id);
        }
        let error = answer.recv_timeout(Duration::from_secs(20)).expect("an answer").expect_err("an error");
        assert_eq!(error, if deadline.is_some() { InvokeError::DeadlineExceeded } else { InvokeError::Cancelled });
        result(&submit(&handle, Class::BestEffort, &good), &good);
    }
    // On a busy machine some were cancelled before they ran.
    assert!(handle.statistics().aborted_launches > 0);
    handle.unload(&FunctionKey::local("f")).expect("unloaded");
    assert_eq!(handle.statistics().device.memory_used_bytes, 0);
}

/// Loads the toy model into a lane.
fn load_into(handle: &EngineHandle, name: &str, lane: LaneId) -> Result<FunctionInfo, EngineError> {
    let target = handle.device_info().targets.last().cloned().expect("a target");
    let options = FunctionOptions {
        key: FunctionKey::local(name),
        class: Class::BestEffort,
        queue_capacity: Some(1000),
        lane,
        batching: None,
    };
    handle.load(toy::bundle(&target, &toy::compile()), options)
}

fn call(handle: &EngineHandle, name: &str, input: &[u32]) -> Receiver<Result<InvocationResult, InvokeError>> {
    let (send, answer) = channel();
    handle.submit(
        toy::request(name, Class::BestEffort, input),
        Box::new(move |result| send.send(result).expect("the test waits")),
    );
    answer
}

#[test]
fn invocations_of_a_closing_lane_continue_in_the_default_lane() {
    let (engine, handle) = start(EngineConfig::default());
    let mut preempted = 0;
    for round in 0..20 {
        let lane = handle.open_lane(LaneSpec { units: vec![round % 2], queues: 2 }).expect("a lane");
        let name = format!("g{round}");
        load_into(&handle, &name, lane.id).expect("a function");
        let pending: Vec<_> =
            (0..8).map(|i| input(40_000, i)).map(|input| (call(&handle, &name, &input), input)).collect();
        while !handle.statistics().device.lanes[1].queue_depths.iter().any(|&depth| depth > 0) {
            std::thread::sleep(Duration::from_micros(100));
        }
        handle.close_lane(lane.id).expect("it is open");
        let lanes = handle.statistics().device.lanes;
        assert!(lanes.len() == 1 && lanes[0].lane == LaneId::DEFAULT && lanes[0].units == [0, 1], "{lanes:?}");
        preempted += pending.iter().map(|(answer, input)| result(answer, input).preemptions).sum::<u32>();
        // Its functions run in the default lane from now on.
        let last = input(64, round);
        result(&call(&handle, &name, &last), &last);
    }
    assert!(preempted > 0, "no round preempted anything");
    engine.shutdown();
}

#[test]
fn invalid_lanes_are_refused_with_the_cause() {
    let (engine, handle) = start(EngineConfig::default());
    let why = |answer: Result<Lane, EngineError>| answer.expect_err("refused").to_string();
    let open = |units: &[u32], queues| handle.open_lane(LaneSpec { units: units.to_vec(), queues });
    assert!(why(open(&[2], 1)).contains("there is no compute unit 2; the device has 2, numbered from 0"));
    assert!(why(open(&[], 1)).contains("a lane needs at least one compute unit"));
    assert!(why(open(&[0], 100)).contains("no 100 device queues in a row are free"));
    let close = |lane| handle.close_lane(LaneId(lane)).expect_err("refused").to_string();
    assert_eq!([close(0), close(7)], ["the default lane cannot be closed", "there is no lane 7"]);
    assert_eq!(load_into(&handle, "g", LaneId(7)).expect_err("refused").to_string(), "there is no lane 7");
    for _ in 0..1_000 {
        let lane = open(&[0], 2).expect("a lane");
        handle.close_lane(lane.id).expect("it is open");
    }
    assert_eq!(handle.statistics().device.lanes.len(), 1);
    engine.shutdown();
}
