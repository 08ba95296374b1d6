//! A GPU in an executor process: a part of the conformance suite, and the loss of that process.

use super::suite;
use super::suite::rig::{Launch, Rig, Wanted};
use super::{code, config};
use atoll_core::Epoch;
use atoll_device::{Device, DeviceError, LaunchStatus};
use atoll_device_hip::{HipConfig, KIND};
use atoll_executor::{ExecutorConfig, ExecutorDevice, ExecutorPool, serve};
use std::path::PathBuf;
use std::time::Duration;

/// The program that the tests start as an executor: this binary, running only this test.
#[test]
#[ignore = "the other tests run it"]
fn executor_process() {
    // Errors were reported to the parent process.
    std::process::exit(i32::from(serve(&[KIND]).is_err()));
}

pub(super) fn executor(hip: HipConfig) -> ExecutorConfig {
    ExecutorConfig {
        program: std::env::current_exe().expect("this program"),
        arguments: ["--exact", "executor::executor_process", "--ignored", "--nocapture", "-q"].map(Into::into).into(),
        hang_after: Duration::from_secs(10),
        ..ExecutorConfig::new(hip).expect("a configuration")
    }
}

fn make(wanted: Wanted) -> Rig {
    let device = ExecutorDevice::start(executor(config(wanted))).expect("an executor");
    Rig::new(Box::new(device), code())
}

conforms! {
    make:
    kernels_compute,
    a_full_queue_refuses_launches,
    queues_run_side_by_side,
    an_epoch_raised_before_the_start_evicts,
    epochs_wrap_around,
    blocks_that_are_done_are_not_run_again,
    memory_is_bounded,
    memory_given_back_reads_as_zero,
    an_invalid_launch_fails,
    modules_are_loaded_and_unloaded,
}

#[test]
fn running_blocks_finish_and_the_rest_exit_when_the_epoch_is_raised() {
    super::running_blocks_finish_when_the_epoch_is_raised(make(Wanted::default()));
}

#[test]
fn large_transfers_go_in_pieces() {
    let mut rig = make(Wanted::default());
    let bytes: Vec<u8> = (0..(5 << 20) + 5_u32).map(|i| (i % 251) as u8).collect();
    let (at, other) = (rig.alloc(bytes.len() as u64), rig.alloc(bytes.len() as u64));
    rig.device.write(at, &bytes).expect("memory");
    rig.device.copy(at, other, bytes.len() as u64).expect("memory");
    let mut read = vec![0; bytes.len()];
    rig.device.read(other, &mut read).expect("memory");
    assert!(read == bytes);
}

#[test]
fn errors_of_the_runtime_are_reported_verbatim() {
    let library = Some(PathBuf::from("/nowhere/libamdhip64.so.6"));
    let missing = HipConfig { library, ..config(Wanted::default()) };
    let error = ExecutorPool::new(executor(missing)).expect_err("no runtime");
    assert!(matches!(error, DeviceError::Unavailable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("no HIP runtime here: /nowhere/libamdhip64.so.6 cannot be loaded"), "{text}");
}

/// The epoch word starts at 0 again for each invocation, so the same epochs are raised again and
/// again.
#[test]
fn an_epoch_is_raised_again_after_its_word_was_cleared() {
    let mut rig = make(Wanted::default());
    let (counts, preempt) = (rig.alloc(4), rig.preempt(1));
    for round in 0..5 {
        for (raised, expected) in [(0, LaunchStatus::Complete), (1, LaunchStatus::Evicted), (1, LaunchStatus::Evicted)]
        {
            rig.device.fill(preempt.progress, 0, 1).expect("memory");
            rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
            rig.device.fill(preempt.epoch_word, 0, 4).expect("memory");
            if raised > 0 {
                rig.device.store_epoch(preempt.epoch_word, Epoch(raised));
                // Nothing else waits for the raise; this transfer runs after it.
                assert_eq!(rig.u32(preempt.epoch_word), raised);
            }
            let status = rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status;
            assert_eq!(status, expected, "round {round}, raised to {raised}");
        }
    }
}

#[test]
fn an_executor_describes_its_gpu() {
    let device = ExecutorDevice::start(executor(config(Wanted::default()))).expect("an executor");
    let info = device.info();
    assert_eq!((info.targets.as_slice(), info.compute_units), (&["amd-gfx90a".to_owned()][..], 8));
}
