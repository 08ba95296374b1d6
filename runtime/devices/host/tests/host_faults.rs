//! Faulty kernels on a host device: every fault ends the launch with a report, and the device
//! continues.
#![cfg(target_arch = "x86_64")]

#[path = "../../../device/tests/suite/rig.rs"]
#[allow(dead_code, unreachable_pub, reason = "the rig belongs to the conformance suite")]
mod rig;

use atoll_core::DeviceOffset;
use atoll_device::report::{Access, AccessKind, AccessSpace};
use atoll_device::{Fault, FaultKind, LaunchReport, LaunchStatus};
use atoll_device_host::{CheckedBuffer, HostConfig, HostDevice};
use rig::{Kernel, Launch, Param, Rig, kernels};
use std::time::{Duration, Instant};

/// Long enough for a busy machine to reach the block that never ends.
const TIME_LIMIT: Duration = Duration::from_millis(250);

fn config() -> HostConfig {
    HostConfig {
        compute_units: 2,
        memory_bytes: 16 << 20,
        constants_bytes: 1 << 20,
        cpus: vec![],
        time_limit: TIME_LIMIT,
        ..HostConfig::default()
    }
}

fn device() -> HostDevice {
    HostDevice::start(config()).expect("a host device")
}

fn rig_on(device: HostDevice) -> Rig {
    Rig::new(Box::new(device), kernels())
}

/// Runs a launch that must fail, and then one that must not.
fn fault(rig: &mut Rig, launch: &Launch) -> Fault {
    let completion = rig.run(1, launch);
    assert_eq!(completion.status, LaunchStatus::Failed);
    let fault = rig.device.report(completion.launch).and_then(|report| report.fault).expect("a fault");
    let counts = rig.alloc(400);
    assert_eq!(rig.run(1, &Launch::spin(100, counts, 10)).status, LaunchStatus::Complete);
    assert_eq!(rig.u32s(counts, 100), [1; 100]);
    fault
}

/// The line of `kernels.c` that has a remark.
fn line_of(remark: &str) -> Option<u32> {
    let source = include_str!("../../../device/tests/kernels/kernels.c");
    let line = source.lines().position(|line| line.contains(&format!("/* {remark} */"))).expect("the remark");
    Some(line as u32 + 1)
}

#[test]
fn a_fault_names_its_cause_and_its_location() {
    let mut rig = rig_on(device());
    let counts = rig.alloc(400);
    let (read, write) = (Some(AccessKind::Read), Some(AccessKind::Write));
    let address = |signal| FaultKind::BadAddress { signal };
    let instruction = |signal| FaultKind::BadInstruction { signal };
    for _ in 0..3 {
        for (kind, at, expected, access, remark) in [
            (0, 8, address(libc::SIGSEGV), write, Some("store")),
            (4, 8, address(libc::SIGSEGV), read, Some("load")),
            (0, 0x10_0000_0000, address(libc::SIGSEGV), write, Some("store")),
            (4, 1 << 63, address(libc::SIGSEGV), None, Some("load")),
            (1, 0, instruction(libc::SIGFPE), None, Some("divide")),
            (2, 0, instruction(libc::SIGILL), None, Some("undefined")),
            (3, 0, address(libc::SIGSEGV), write, None),
            (5, 8, address(libc::SIGSEGV), read, None),
        ] {
            let launch = Launch { grid: [10, 10, 1], ..Launch::fault_at(100, counts, 37, kind, at) };
            let fault = fault(&mut rig, &launch);
            assert_eq!(fault.kind, expected, "{fault}");
            assert_eq!(
                (fault.kernel.as_str(), fault.block, fault.thread),
                ("fault_at", Some([7, 3, 0]), None),
                "{fault}"
            );
            assert_eq!(fault.access.map(|a| a.kind), access, "{fault}");
            if let Some(remark) = remark {
                assert_eq!(fault.line, line_of(remark), "{fault}");
            }
            if access.is_some() && kind != 3 {
                assert_eq!(fault.address, Some(at), "{fault}");
            }
        }
    }
}

#[test]
fn a_launch_that_takes_too_long_is_ended() {
    let mut rig = rig_on(device());
    let counts = rig.alloc(400);
    for kind in [0, 1, 2, 1] {
        let start = Instant::now();
        let launch = Launch { kernel: Kernel::ForeverAt, ..Launch::fault_at(100, counts, 37, kind, 0) };
        let fault = fault(&mut rig, &launch);
        assert!(start.elapsed() >= TIME_LIMIT);
        assert_eq!(fault.kind, FaultKind::TimeLimit { limit_ns: TIME_LIMIT.as_nanos() as u64 });
        assert_eq!((fault.kernel.as_str(), fault.block), ("forever_at", Some([37, 0, 0])), "{fault}");
        // A kernel that checks the halt word may still get the signal, if it does not get a CPU in
        // time.
        assert!(fault.line.is_some() && (kind == 0 || fault.line != Some(4321)), "{fault}");
    }
}

#[test]
fn an_endless_block_is_interrupted_until_its_time_is_over() {
    let mut rig = rig_on(HostDevice::start(HostConfig { compute_units: 1, ..config() }).expect("a host device"));
    let (log, gate, counts, preempt) = (rig.alloc(1 << 20), rig.alloc(4), rig.alloc(400), rig.preempt(1));
    let endless = Launch { may_run_again: true, ..Launch::note_preemptible(1, log, 1, gate, 1, preempt) };
    let endless = rig.submit(1, &endless).expect("room");
    rig.wait_for(log, 1);
    let mut gave_way = 0;
    let end = loop {
        let urgent = rig.submit(0, &Launch::spin(100, counts, 10)).expect("room");
        let first = rig.wait();
        if first.launch == endless {
            break first;
        }
        assert_eq!((first.launch, first.status), (urgent, LaunchStatus::Complete));
        gave_way += 1;
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(end.status, LaunchStatus::Failed);
    assert!(gave_way > 0 && end.reexecuted_blocks > 0, "{gave_way} times");
    // Not the busy time of compute units: the limit counts from when a unit takes a block, and the
    // unit may wait for a CPU before the block begins.
    assert!(end.ended_ns - end.started_ns >= TIME_LIMIT.as_nanos() as u64, "it was ended before its time limit");
    let fault = rig.device.report(endless).and_then(|report| report.fault).expect("a fault");
    assert_eq!(fault.kind, FaultKind::TimeLimit { limit_ns: TIME_LIMIT.as_nanos() as u64 });
    assert_eq!(rig.wait().status, LaunchStatus::Complete, "the launch behind it");
}

#[test]
fn many_short_blocks_exceed_the_time_limit() {
    let mut rig = rig_on(device());
    let counts = rig.alloc(400_000);
    let fault = fault(&mut rig, &Launch::spin(100_000, counts, 100_000));
    assert!(matches!(fault.kind, FaultKind::TimeLimit { .. }) && fault.block.is_some(), "{fault}");
    assert_eq!(
        rig.run(1, &Launch::spin(100, counts, 100_000)).status,
        LaunchStatus::Complete,
        "each launch has its own limit"
    );
}

#[test]
fn a_device_with_an_endless_kernel_can_be_dropped() {
    let mut rig =
        rig_on(HostDevice::start(HostConfig { time_limit: Duration::MAX, ..config() }).expect("a host device"));
    let counts = rig.alloc(400);
    rig.submit(1, &Launch { kernel: Kernel::ForeverAt, ..Launch::fault_at(100, counts, 0, 1, 0) }).expect("room");
    rig.wait_for(counts, 1);
    drop(rig);
}

fn print(rig: &mut Rig, blocks: u32, format: u64) -> (LaunchStatus, Option<LaunchReport>) {
    let counts = rig.alloc(u64::from(blocks) * 4);
    let launch = Launch { kernel: Kernel::PrintAll, ..Launch::fault_at(blocks, counts, 0, 0, format) };
    let completion = rig.run(1, &launch);
    (completion.status, rig.device.report(completion.launch))
}

#[test]
fn the_output_of_a_kernel_is_in_its_report() {
    let mut rig = rig_on(device());
    let (status, report) = print(&mut rig, 20, 0);
    assert_eq!(status, LaunchStatus::Complete);
    let report = report.expect("a report");
    assert_eq!((report.fault, report.printed_lost_bytes), (None, 0));
    let mut lines: Vec<&str> = report.printed.lines().collect();
    lines.sort_by_key(|line| line.len());
    assert_eq!(lines.len(), 20);
    assert!(lines[0].starts_with("block ") && lines.contains(&"block 7: 3.5 seven"), "{lines:?}");
}

#[test]
fn a_kernel_that_prints_too_much_loses_the_rest() {
    let mut rig = rig_on(
        HostDevice::start(HostConfig { time_limit: Duration::from_secs(10), ..config() }).expect("a host device"),
    );
    let report = print(&mut rig, 100_000, 0).1.expect("a report");
    assert!(report.printed.len() <= 1 << 20 && report.printed_lost_bytes > 0);
    assert!(report.printed.ends_with(" seven\n"), "each call's output is complete or missing");
}

#[test]
fn a_format_that_cannot_be_read_faults() {
    let mut rig = rig_on(device());
    let (status, report) = print(&mut rig, 3, 8);
    let fault = report.and_then(|report| report.fault).expect("a fault");
    assert_eq!(
        (status, fault.kind, fault.address),
        (LaunchStatus::Failed, FaultKind::BadAddress { signal: libc::SIGSEGV }, Some(8))
    );
}

/// The fault of checked code that makes one access.
fn check(rig: &mut Rig, kind: AccessKind, space: AccessSpace, bytes: u16, address: Param) -> Option<Fault> {
    let counts = rig.alloc(4);
    let access = Access { kind, space, bytes }.to_bits();
    let params = vec![Param::At(counts), Param::U64(0), Param::U32(0), Param::U32(access), address];
    let completion = rig.run(1, &Launch { shared_bytes: 64, ..Launch::new(Kernel::Checked, 1, params) });
    let fault = rig.device.report(completion.launch).and_then(|report| report.fault);
    assert_eq!(completion.status == LaunchStatus::Failed, fault.is_some());
    fault
}

#[test]
fn checked_accesses_are_confined_to_their_buffers() {
    use AccessKind::{Atomic, Read, Write};
    use AccessSpace::{Generic, Global, Local, Param as Params, Shared};
    let mut device = device();
    let buffer =
        |name: &str, at, bytes, read_only| CheckedBuffer { name: name.into(), at: DeviceOffset(at), bytes, read_only };
    device.set_checked_buffers(&[buffer("x", 1 << 20, 1000, true), buffer("y", 2 << 20, 64, false)]).expect("inside");
    assert!(device.set_checked_buffers(&[buffer("z", 16 << 20, 1, true)]).is_err());
    let mut rig = rig_on(device);
    let at = |offset| Param::At(DeviceOffset(offset));
    for (kind, space, bytes, address) in [
        (Read, Global, 8, at((1 << 20) + 992)),
        (Write, Generic, 16, at(2 << 20)),
        (Atomic, Global, 4, at((2 << 20) + 60)),
    ] {
        assert_eq!(check(&mut rig, kind, space, bytes, address), None);
    }
    for (kind, space, bytes, address, says) in [
        (Read, Global, 16, at((1 << 20) + 992), "992 bytes into 'x' (1000 bytes), 8 bytes beyond its end"),
        (Write, Global, 4, at(1 << 20), "0 bytes into 'x' (1000 bytes), which is read-only"),
        (Write, Global, 4, at((2 << 20) + 64), "right behind the end of 'y' (64 bytes)"),
        (Read, Global, 4, at((2 << 20) - 4), "4 bytes before 'y' (64 bytes)"),
        (Atomic, Global, 8, at((2 << 20) + 4), "misaligned atomic update of 8 bytes"),
        (Read, Generic, 4, Param::U64(0), "at 0x0, through a null pointer, outside every buffer"),
        (Read, Shared, 4, at(1 << 20), "'shared memory' (64 bytes)"),
        (Read, Local, 4, at(1 << 20), "'local memory' (16 bytes)"),
        (Write, Params, 4, at(1 << 20), "'parameters' (32 bytes)"),
    ] {
        let fault = check(&mut rig, kind, space, bytes, address).expect("a fault");
        assert!(fault.to_string().contains(says), "{fault}");
        assert_eq!((fault.block, fault.thread, fault.line), (Some([0, 0, 0]), Some([3, 0, 0]), Some(77)));
    }
}
