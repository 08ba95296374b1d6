//! Resets of running waves: by the runtime with REEF's changes, and by the kernel driver with
//! Atoll's patch. Each option of the stand-in needs a separate process.

use super::executor::executor;
use super::faults::in_process;
use super::suite::rig::{Launch, Preempt, Rig, Wanted};
use super::{code, config};
use atoll_core::{DeviceOffset, Epoch, PreemptLevel, QueueId};
use atoll_device::{Device, DomainState, FaultKind, LaunchStatus, SubmitError};
use atoll_device_hip::{HipConfig, HipDevice, start};
use atoll_executor::ExecutorPool;
use std::time::{Duration, Instant};

fn resetting() -> HipConfig {
    HipConfig { resets_waves: true, ..config(Wanted::default()) }
}

fn here() -> HipDevice {
    start(&resetting()).expect("a GPU")
}

fn in_an_executor() -> ExecutorPool {
    ExecutorPool::new(executor(resetting())).expect("an executor")
}

/// A device whose running blocks can be killed.
fn rig(device: impl Device + 'static) -> Rig {
    assert_eq!(device.info().preempt_level, PreemptLevel::Interrupt);
    Rig::new(Box::new(device), code())
}

/// Only the blocks of launches that were told to exit, and may run again, are killed.
fn running_blocks_are_killed(rig: &mut Rig) {
    let (log, gate, mut preempt) = (rig.alloc(4096), rig.alloc(4), rig.preempt(1));
    let note =
        |preempt, may_run_again| Launch { may_run_again, ..Launch::note_preemptible(1, log, 1, gate, 1, preempt) };
    for round in 0..5 {
        let launch = rig.submit(1, &note(preempt, true)).expect("room");
        rig.wait_for(log, round + 1);
        rig.device.store_epoch(preempt.epoch_word, Epoch(round + 1));
        rig.device.interrupt(QueueId(1), launch, 1);
        let end = rig.wait();
        assert_eq!((end.launch, end.status), (launch, LaunchStatus::Evicted), "although the gate is closed");
        assert_eq!(end.reexecuted_blocks, 1);
        assert_eq!(rig.u32s(preempt.progress, 1)[0] & 0xff, 0, "its block did not run to its end");
        preempt = Preempt { epoch: Epoch(round + 1), ..preempt };
        rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
    }
    // If one block must not run again, no block is killed.
    let first = rig.submit(1, &note(preempt, false)).expect("room");
    rig.wait_for(log, 6);
    rig.device.interrupt(QueueId(1), first, 1);
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!((rig.wait().status, rig.u32(log)), (LaunchStatus::Complete, 6));
}

/// Runs a launch that was not told to exit, such as a real-time one, beside one that was, and
/// interrupts the latter. It is killed if they are in different processes, otherwise none is.
fn a_task_goes_on(rig: &mut Rig, queues: [u32; 2], are_apart: bool) {
    let gate = rig.alloc(4);
    let tasks: Vec<(DeviceOffset, Preempt)> = (0..2).map(|_| (rig.alloc(64), rig.preempt(1))).collect();
    let note = |(log, preempt): (_, Preempt)| Launch::note_preemptible(1, log, 1, gate, 1, preempt);
    let launches = [0, 1].map(|at: usize| {
        let launch = Launch { may_run_again: true, ..note(tasks[at]) };
        let launch = rig.submit(queues[at], &launch).expect("room");
        rig.wait_for(tasks[at].0, 1);
        launch
    });
    rig.device.store_epoch(tasks[1].1.epoch_word, Epoch(1));
    rig.device.interrupt(QueueId(queues[1]), launches[1], 1);
    // Every executor answers this after it has handled the interruption.
    let word = rig.alloc(4);
    rig.device.watch_epoch(word);
    if are_apart {
        let end = rig.wait();
        assert_eq!((end.launch, end.status), (launches[1], LaunchStatus::Evicted), "although the gate is closed");
        assert_eq!(rig.device.next_completion(), None, "the gate is closed");
    }
    rig.device.store_epoch(gate, Epoch(1));
    let end = rig.wait();
    if are_apart {
        assert_eq!(end.launch, launches[0]);
    } else {
        assert_eq!(rig.wait().status, LaunchStatus::Complete);
    }
    assert_eq!((end.status, rig.u32(tasks[0].0)), (LaunchStatus::Complete, 1), "it was not started again");
}

/// After a kill, exactly the blocks that were not complete run again.
fn a_killed_launch_resumes(mut rig: Rig) {
    const BLOCKS: u32 = 200;
    let (log, gate) = (rig.alloc(4 + 2 * u64::from(BLOCKS) * 4), rig.alloc(4));
    let mut preempt = rig.preempt(BLOCKS.into());
    let note =
        |tag, preempt| Launch { may_run_again: true, ..Launch::note_preemptible(BLOCKS, log, tag, gate, 1, preempt) };
    let done = |rig: &mut Rig| {
        let bytes = rig.u32s(preempt.progress, BLOCKS as usize / 4);
        bytes.into_iter().flat_map(u32::to_ne_bytes).filter(|byte| *byte != 0).count() as u32
    };
    let launch = rig.submit(1, &note(1, preempt)).expect("room");
    rig.device.store_epoch(gate, Epoch(1));
    while rig.u32(log) < 20 {
        std::thread::yield_now();
    }
    // From here on, blocks wait at the gate. Those that have passed it run to their end.
    rig.device.fill(gate, 0, 4).expect("memory");
    let mut seen = (0, 0);
    loop {
        let now = (rig.u32(log), done(&mut rig));
        if now.0 > now.1 && now == seen {
            break;
        }
        seen = now;
        // Each is answered after all blocks have run for some instructions, far more together than
        // a block has after the gate.
        for _ in 0..30 {
            let word = rig.alloc(4);
            rig.device.watch_epoch(word);
        }
    }
    let (begun, complete) = seen;
    assert!(complete > 0 && begun < BLOCKS, "{complete} of {begun} blocks are complete");
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    rig.device.interrupt(QueueId(1), launch, 1);
    assert_eq!(rig.wait().status, LaunchStatus::Evicted, "although the gate is closed");
    assert_eq!((rig.u32(log), done(&mut rig)), (begun, complete), "the others left at their start");

    preempt.epoch = Epoch(1);
    rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.run(1, &note(2, preempt)).status, LaunchStatus::Complete);
    let entries = rig.u32s(DeviceOffset(log.0 + 4), 2 * BLOCKS as usize);
    let of = |tag: u32| entries.iter().filter(|entry| **entry == tag).count() as u32;
    assert_eq!((of(1), of(2)), (begun, BLOCKS - complete));
}

#[test]
#[ignore = "`running_waves_are_killed` runs it"]
fn kill_here() {
    let mut rig = rig(here());
    running_blocks_are_killed(&mut rig);
    a_task_goes_on(&mut rig, [0, 1], false);
}

/// Queues 0 and 2 belong to the executor of real-time work, 1 and 3 to that of best-effort work.
#[test]
#[ignore = "`running_waves_are_killed` runs it"]
fn kill_in_an_executor() {
    let mut rig = rig(in_an_executor());
    assert_eq!(rig.device.executors().alive, 2);
    running_blocks_are_killed(&mut rig);
    for queues in [[0, 1], [2, 3], [1, 0]] {
        a_task_goes_on(&mut rig, queues, true);
    }
    for queues in [[3, 1], [2, 0]] {
        a_task_goes_on(&mut rig, queues, false);
    }
}

/// If the second executor cannot open the memory, all work shares the first one.
#[test]
#[ignore = "`running_waves_are_killed` runs it"]
fn kill_in_one_executor() {
    let mut rig = rig(in_an_executor());
    assert_eq!(rig.device.executors().alive, 1);
    running_blocks_are_killed(&mut rig);
    a_task_goes_on(&mut rig, [0, 1], false);
}

#[test]
#[ignore = "`running_waves_are_killed` runs it"]
fn resume_here() {
    a_killed_launch_resumes(rig(here()));
}

#[test]
#[ignore = "`running_waves_are_killed` runs it"]
fn resume_in_an_executor() {
    a_killed_launch_resumes(rig(in_an_executor()));
}

#[test]
fn running_waves_are_killed() {
    for test in ["kill_here", "kill_in_an_executor", "resume_here", "resume_in_an_executor"] {
        in_process(&format!("resets::{test}"), "kfd");
    }
    in_process("resets::kill_in_one_executor", "kfd,no-ipc");
    in_process("resets::kill_here", "reef");
}

#[test]
#[ignore = "`the_kernel_driver_kills_on_one_device_only` runs it"]
fn kill_on_one_of_two() {
    let [mut first, mut second] = [0, 1].map(|index| rig(start(&HipConfig { index, ..resetting() }).expect("a GPU")));
    let mut launches = Vec::new();
    for rig in [&mut first, &mut second] {
        let (log, gate, preempt) = (rig.alloc(64), rig.alloc(4), rig.preempt(1));
        let note = Launch::note_preemptible(1, log, 1, gate, 1, preempt);
        let launch = rig.submit(1, &Launch { may_run_again: true, ..note }).expect("room");
        rig.wait_for(log, 1);
        rig.device.store_epoch(preempt.epoch_word, Epoch(1));
        launches.push((launch, gate));
    }
    first.device.interrupt(QueueId(1), launches[0].0, 1);
    assert_eq!(first.wait().status, LaunchStatus::Evicted);
    assert_eq!(second.device.next_completion(), None, "its block waits at the gate");
    second.device.store_epoch(launches[1].1, Epoch(1));
    assert_eq!(second.wait().status, LaunchStatus::Complete);
}

#[test]
fn the_kernel_driver_kills_on_one_device_only() {
    in_process("resets::kill_on_one_of_two", "kfd,devices=2");
}

#[test]
#[ignore = "`a_machine_that_cannot_kill_waves_is_noticed` runs it"]
fn deactivate_here() {
    let device = here();
    assert_eq!(device.info().preempt_level, PreemptLevel::Deactivate);
    let why = device.context().reset_waves().expect_err("it cannot").to_string();
    let expected = match std::env::var("ATOLL_STAND_IN_HIP").as_deref() {
        Ok("kfd=other-abi") => "the kernel driver has the patch of another version",
        Ok("kfd=busy") => "the kernel driver refused to kill waves",
        _ => "patch absent: the kernel driver does not know the ioctl",
    };
    assert!(why.contains(expected), "{why}");
    // The executor is asked in vain as well.
    assert_eq!(in_an_executor().info().preempt_level, PreemptLevel::Deactivate);
}

#[test]
fn a_machine_that_cannot_kill_waves_is_noticed() {
    ["", "kfd=other-abi", "kfd=busy"].iter().for_each(|options| in_process("resets::deactivate_here", options));
}

/// A launch whose waves run and may be killed, and the rest of a reset that loses the GPU.
fn the_gpu_is_lost_during_a_reset(rig: &mut Rig) -> String {
    let (log, gate, preempt) = (rig.alloc(64), rig.alloc(4), rig.preempt(1));
    let note = Launch { may_run_again: true, ..Launch::note_preemptible(1, log, 1, gate, 1, preempt) };
    let launch = rig.submit(1, &note).expect("room");
    rig.wait_for(log, 1);
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    rig.device.interrupt(QueueId(1), launch, 1);
    let end = rig.wait();
    assert_eq!((end.launch, end.status), (launch, LaunchStatus::Failed));
    let fault = rig.device.report(launch).and_then(|report| report.fault).expect("a fault");
    assert!(matches!(fault.kind, FaultKind::Fatal { .. } | FaultKind::Lost { .. }), "{fault:?}");
    fault.to_string()
}

#[test]
#[ignore = "`a_gpu_may_be_lost_during_a_reset` runs it"]
fn lose_here() {
    let mut rig = rig(here());
    let counts = rig.alloc(4);
    the_gpu_is_lost_during_a_reset(&mut rig);
    let lost = rig.device.lost().expect("it is gone");
    assert!(lost.contains("this process's use of the GPU ended with it"), "{lost}");
    assert_eq!(rig.submit(1, &Launch::spin(1, counts, 0)), Err(SubmitError::Lost));
}

#[test]
#[ignore = "`a_gpu_may_be_lost_during_a_reset` runs it"]
fn lose_in_an_executor() {
    let mut rig = rig(in_an_executor());
    let fault = the_gpu_is_lost_during_a_reset(&mut rig);
    assert!(fault.contains("executor") || fault.contains("the GPU ended with it"), "{fault}");
    let until = Instant::now() + Duration::from_secs(20);
    while rig.device.executors().died == 0 {
        assert_eq!(rig.device.next_completion(), None);
        assert!(Instant::now() < until, "its process does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rig.device.lost(), None, "its process is replaced");
    // So is the other process, whose memory it used.
    assert!(rig.device.take_constants_lost());
    while rig.device.executors().alive < 2 || rig.device.domain_state("suite") != DomainState::Ready {
        assert_eq!(rig.device.next_completion(), None);
        assert!(Instant::now() < until, "the processes are not replaced");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut rig = Rig::new(rig.device, code());
    let counts = rig.alloc(4);
    for queue in 0..4 {
        assert_eq!(rig.run(queue, &Launch::spin(1, counts, 0)).status, LaunchStatus::Complete);
    }
    assert_eq!(rig.u32(counts), 4);
}

#[test]
fn a_gpu_may_be_lost_during_a_reset() {
    in_process("resets::lose_here", "kfd=loses");
    in_process("resets::lose_in_an_executor", "kfd=loses");
    in_process("resets::lose_in_an_executor", "kfd=loses,abort");
}
