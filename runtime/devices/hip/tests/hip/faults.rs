//! Faults. These tests end the work of their process, or need another library, so each runs in a
//! separate process.

use super::executor::executor;
use super::suite::rig::{Launch, Rig, Wanted, wait_for};
use super::{code, config};
use atoll_core::{Epoch, LaunchId, QueueId};
use atoll_device::{Device, DeviceError, FaultKind, LaunchStatus, Launching, SubmitError};
use atoll_device_hip::start;
use atoll_executor::ExecutorPool;
use std::process::Command;

/// Runs an ignored test of this program in a process with options of the stand-in.
pub(super) fn in_process(test: &str, options: &str) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("ATOLL_STAND_IN_HIP", options)
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "`a_fault_loses_the_device_and_every_launch_completes` runs it"]
fn fault_here() {
    let mut rig = Rig::new(Box::new(start(&config(Wanted::default())).expect("a GPU")), code());
    let counts = rig.alloc(400);
    assert_eq!(rig.run(1, &Launch::spin(1, counts, 0)).status, LaunchStatus::Complete);
    let culprit = rig.submit(1, &Launch::fault_at(100, counts, 5, 0, 16)).expect("room");
    let mut waiting = vec![culprit];
    for _ in 0..3 {
        // The device may be lost by now.
        match rig.submit(1, &Launch::spin(1, counts, 0)) {
            Ok(launch) => waiting.push(launch),
            Err(SubmitError::Lost) => {}
            Err(SubmitError::Full) => panic!("four fit"),
        }
    }
    for launch in waiting {
        let completion = rig.wait();
        assert_eq!((completion.launch, completion.status), (launch, LaunchStatus::Failed));
        let fault = rig.device.report(launch).and_then(|report| report.fault).expect("a fault");
        // A launch that was submitted after the loss was noticed has not run.
        assert!(matches!(fault.kind, FaultKind::Fatal { .. } | FaultKind::Lost { .. }), "{fault:?}");
        assert!(launch != culprit || matches!(fault.kind, FaultKind::Fatal { .. }), "nothing else ran: {fault:?}");
    }
    let lost = rig.device.lost().expect("it is gone");
    assert!(
        lost.starts_with("a kernel accessed memory that is not mapped for it (hipErrorIllegalAddress, 700)")
            && lost.contains("`fault_at` may have run then"),
        "{lost}"
    );
    assert_eq!(rig.submit(1, &Launch::spin(1, counts, 0)), Err(SubmitError::Lost));
    assert!(matches!(rig.device.read(counts, &mut [0]), Err(DeviceError::Lost(_))));
    assert!(matches!(rig.load(), Err(DeviceError::Lost(_))));
}

#[test]
fn a_fault_loses_the_device_and_every_launch_completes() {
    in_process("faults::fault_here", "");
}

#[test]
#[ignore = "`an_executor_whose_process_a_fault_ends_is_replaced` runs it"]
fn fault_in_an_executor() {
    let mut pool = ExecutorPool::new(executor(config(Wanted::default()))).expect("an executor");
    let target = pool.info().targets.last().expect("a target").clone();
    let kernels = super::suite::rig::facts();
    let image =
        atoll_device::ModuleImage { domain: "tenant", target: &target, code: code(), ptx: None, kernels: &kernels };
    let module = atoll_device::Modules::load_module(&mut pool, image).expect("the kernels");
    let base = atoll_device::Domains::domain(&mut pool, "tenant").expect("memory").0;
    let params: Vec<u8> = [base, 5 << 32, 16].iter().flat_map(|word| word.to_le_bytes()).collect();
    let none = atoll_core::DeviceOffset(0);
    let record = atoll_device::LaunchRecord {
        launch: LaunchId(1),
        module,
        kernel: super::suite::rig::Kernel::FaultAt as u32,
        grid: [10, 1, 1],
        shared_bytes: 0,
        address_slots: [0].into_iter().collect(),
        evicted_word: none,
        epoch_word: none,
        epoch: Epoch(0),
        preemptible: 0,
        may_run_again: 0,
        followed: 0,
    };
    pool.submit(QueueId(1), &record, &params).expect("room");
    let completion = wait_for(&mut pool, |pool| pool, |pool| pool.next_completion());
    assert_eq!((completion.launch, completion.status), (LaunchId(1), LaunchStatus::Failed));
    let why = pool.report(LaunchId(1)).and_then(|report| report.fault).expect("a fault").to_string();
    assert!(why.contains("kernel 'fault_at' faulted") || why.contains("SIGABRT"), "{why}");
    wait_for(
        &mut pool,
        |pool| pool,
        |pool| {
            assert_eq!(pool.next_completion(), None);
            let lost = atoll_device::Constants::take_constants_lost(pool);
            lost.then_some(())
        },
    );
    let ready = |pool: &mut ExecutorPool| {
        let state = atoll_device::Domains::domain_state(pool, "tenant");
        assert_eq!(pool.next_completion(), None);
        (state == atoll_device::DomainState::Ready).then_some(())
    };
    wait_for(&mut pool, |pool| pool, ready);
    assert_ne!(atoll_device::Domains::domain(&mut pool, "tenant").expect("memory").0, base);
    assert_eq!(atoll_device::Domains::executors(&pool).died, 1);
}

#[test]
fn an_executor_whose_process_a_fault_ends_is_replaced() {
    in_process("faults::fault_in_an_executor", "abort");
}

#[test]
#[ignore = "`devices_of_other_releases_and_architectures_are_described` runs it"]
fn describe_here() {
    let device = start(&config(Wanted::default())).expect("a GPU");
    assert_eq!(device.info().targets, ["amd-gfx1100"]);
    assert_eq!(device.info().lane_units, atoll_device::LaneUnits::Ranges { step: 2 });
}

#[test]
fn devices_of_other_releases_and_architectures_are_described() {
    in_process("faults::describe_here", "arch=gfx1100,rocm=5.2,units=6");
    in_process("faults::describe_here", "arch=gfx1100,rocm=7.0,units=6");
}

#[test]
#[ignore = "`a_library_without_a_usable_gpu_is_told` runs it"]
fn unusable_here() {
    let error = start(&config(Wanted::default())).expect_err("no usable GPU").to_string();
    match std::env::var("ATOLL_STAND_IN_HIP").as_deref() {
        Ok("devices=0") => assert!(error.contains("finds no device (hipInit: hipErrorNoDevice (100))"), "{error}"),
        Ok("devices=0,rocm=5.2") => assert!(error.contains("(hipInit: hipErrorInvalidDevice (101))"), "{error}"),
        _ => assert!(error.starts_with("hip:0 is a gfx803, for which Atoll makes no code"), "{error}"),
    }
}

#[test]
fn a_library_without_a_usable_gpu_is_told() {
    ["devices=0", "devices=0,rocm=5.2", "arch=gfx803"]
        .iter()
        .for_each(|options| in_process("faults::unusable_here", options));
}
