//! The host device in an executor: the conformance suite, and tests of the process.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../device/tests/suite/mod.rs"]
mod suite;

#[allow(unreachable_pub, reason = "shared by the tests of executors")]
mod common;

use atoll_core::DeviceOffset;
use atoll_device::{LaunchStatus, Modules, SubmitError};
use atoll_executor::{ExecutorConfig, ExecutorDevice};
use common::config;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use suite::rig::{Kernel, Launch, Param, Rig, Wanted, kernels};

/// The program that the tests start as an executor: this binary, running only this test.
#[test]
#[ignore = "the other tests run it"]
fn executor_process() {
    common::serve_and_exit();
}

fn device() -> ExecutorDevice {
    ExecutorDevice::start(config(Wanted::default())).expect("an executor")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(ExecutorDevice::start(config(wanted)).expect("an executor")), kernels())
}

conforms!(make);

/// A device with the kernels, and its process id.
fn rig() -> (Rig, Pid) {
    let device = device();
    let pid = Pid::from_raw(device.pid() as i32).expect("a process");
    (Rig::new(Box::new(device), kernels()), pid)
}

/// Fills a queue with an endless kernel and others behind it, calls `harm`, and returns the reasons
/// of the failures.
fn after(harm: impl FnOnce(Pid)) -> Vec<String> {
    let (mut rig, pid) = rig();
    let counts = rig.alloc(400);
    rig.submit(1, &Launch { kernel: Kernel::ForeverAt, ..Launch::fault_at(100, counts, 0, 1, 0) }).expect("room");
    for _ in 0..3 {
        rig.submit(1, &Launch::spin(1, counts, 0)).expect("room");
    }
    rig.wait_for(counts, 1);
    harm(pid);
    let reasons = (0..4).map(|_| {
        let completion = rig.wait();
        assert_eq!(completion.status, LaunchStatus::Failed);
        rig.device.report(completion.launch).and_then(|report| report.fault).expect("a fault").to_string()
    });
    let reasons: Vec<String> = reasons.collect();
    assert_eq!(rig.device.next_completion(), None);
    assert_eq!(rig.submit(1, &Launch::spin(1, counts, 0)).unwrap_err(), SubmitError::Lost);
    assert_eq!(rig.u32(counts), 1, "its memory is still there");
    assert!(rig.device.lost().is_some_and(|why| reasons.iter().all(|reason| reason.ends_with(&why))), "{reasons:?}");
    assert!(is_gone(pid), "it was reaped");
    reasons
}

fn is_gone(pid: Pid) -> bool {
    !std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

#[test]
fn a_killed_executor_fails_its_launches_with_the_signal() {
    for (signal, name) in [(Signal::KILL, "SIGKILL"), (Signal::TERM, "SIGTERM")] {
        let reasons = after(|pid| kill_process(pid, signal).expect("it lives"));
        assert!(
            reasons[0].contains(": executor ") && reasons[0].ends_with(&format!("was killed by {name}")),
            "{reasons:?}"
        );
    }
}

#[test]
fn a_stopped_executor_is_detected_and_killed() {
    let reasons = after(|pid| kill_process(pid, Signal::STOP).expect("it lives"));
    assert!(reasons[0].ends_with("showed no sign of life for 2s and was killed"), "{reasons:?}");
}

/// Stops an executor, and waits until it has stopped: the signal takes effect later.
fn stop(device: &ExecutorDevice) {
    kill_process(Pid::from_raw(device.pid() as i32).expect("a process"), Signal::STOP).expect("it lives");
    let is_stopped =
        || std::fs::read_to_string(format!("/proc/{}/stat", device.pid())).is_ok_and(|stat| stat.contains(") T "));
    while !is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stopped_executor_is_detected_while_it_loads() {
    let mut device = device();
    stop(&device);
    let image = atoll_device::ModuleImage {
        domain: "suite",
        target: "host-x86-64-v3",
        code: kernels(),
        ptx: None,
        kernels: &suite::rig::facts(),
    };
    device.begin_load(image).expect("nothing waits");
    // It may have been stopped before it reported that it runs; then the other time limit applies.
    let short = ExecutorConfig { answer_within: Duration::from_secs(2), ..config(Wanted::default()) };
    let mut device = ExecutorDevice::start(short).expect("an executor");
    stop(&device);
    let error = device.load_module(image).unwrap_err().to_string();
    assert!(error.contains("and was killed"), "{error}");
}

/// The result of a system call made by native code in an executor; or why the executor is gone, if
/// the call is fatal.
fn ask(number: i64, [first, second, third]: [Param; 3]) -> Result<i64, String> {
    ask_four(number, [first, second, third, Param::U64(0)])
}

fn ask_four(number: i64, arguments: [Param; 4]) -> Result<i64, String> {
    let (mut rig, _) = rig();
    let path = rig.alloc(64);
    rig.device.write(path, b"/etc/hostname\0").expect("memory");
    let answer = rig.alloc(8);
    rig.device.fill(answer, 0x55, 8).expect("memory");
    let argument = |argument| if let Param::At(_) = argument { Param::At(path) } else { argument };
    let [first, second, third, fourth] = arguments.map(argument);
    let completion = rig.run(
        0,
        &Launch::new(
            Kernel::SystemCall,
            1,
            vec![Param::At(answer), Param::U64(number as u64), first, second, third, fourth],
        ),
    );
    match completion.status {
        LaunchStatus::Complete => Ok(rig.u64s(answer, 1)[0] as i64),
        _ => Err(rig.device.report(completion.launch).and_then(|report| report.fault).expect("a fault").to_string()),
    }
}

#[test]
fn code_in_an_executor_has_no_files_and_no_network() {
    let (path, none) = (Param::At(DeviceOffset(0)), Param::U64(0));
    let here = Param::U64(libc::AT_FDCWD as u64);
    assert!(ask(libc::SYS_getpid, [none; 3]).expect("an answer") > 0, "what it needs it may");
    assert_eq!(ask(libc::SYS_openat, [here, path, none]), Ok(-i64::from(libc::EPERM)));
    assert_eq!(ask(libc::SYS_open, [path, none, none]), Ok(-i64::from(libc::EPERM)));
    let map = |flags: i32| ask_four(libc::SYS_mmap, [none, Param::U64(1 << 20), none, Param::U64(flags as u64)]);
    assert!(map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).expect("an answer") > 0);
    for uncounted in [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE, libc::MAP_PRIVATE | libc::MAP_GROWSDOWN] {
        assert_eq!(map(uncounted | libc::MAP_ANONYMOUS), Ok(-i64::from(libc::EPERM)), "no limit counts it");
    }
    let parent = Param::U64(std::process::id().into());
    for (number, arguments) in [
        (libc::SYS_socket, [Param::U64(libc::AF_INET as u64), Param::U64(libc::SOCK_STREAM as u64), none]),
        (libc::SYS_fork, [none; 3]),
        (libc::SYS_vfork, [none; 3]),
        (libc::SYS_clone, [none; 3]),
        (libc::SYS_clone3, [none; 3]),
        (libc::SYS_execve, [path, none, none]),
        (libc::SYS_memfd_create, [path, none, none]),
        (libc::SYS_kill, [parent, Param::U64(9), none]),
        (libc::SYS_tgkill, [parent, parent, Param::U64(9)]),
        (libc::SYS_ptrace, [Param::U64(16), parent, none]),
        (libc::SYS_process_vm_readv, [parent, none, none]),
        (libc::SYS_prctl, [Param::U64(libc::PR_SET_DUMPABLE as u64), Param::U64(1), none]),
        (libc::SYS_io_uring_setup, [Param::U64(1), none, none]),
        (libc::SYS_mount, [path, path, none]),
        (libc::SYS_setuid, [none; 3]),
    ] {
        let answer = ask(number, arguments).expect_err("a forbidden call");
        assert!(answer.contains("was killed by SIGSYS"), "call {number}: {answer}");
    }
}

#[test]
fn the_jail_reports_what_it_lacks() {
    let (rig, pid) = rig();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).expect("it lives");
    let statuses =
        tasks.map(|task| std::fs::read_to_string(task.expect("it lives").path().join("status")).expect("it lives"));
    // A thread that runs kernels; the test harness has threads of its own.
    let status = statuses.into_iter().find(|status| status.starts_with("Name:\tatoll-cu-")).expect("a compute unit");
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).expect("a field").to_owned()
    };
    assert_eq!(
        (field("NoNewPrivs:"), field("Seccomp:"), field("CapEff:")),
        ("1".into(), "2".into(), "0000000000000000".into())
    );
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero())).expect("it lives");
    assert_eq!(score.trim(), "900", "it goes before the daemon where memory is short");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).expect("it lives");
    assert!(limits.lines().any(|line| line.starts_with("Max file size") && line.contains(" 0 ")), "{limits}");
    drop(rig);
    let mut device = device();
    let image = atoll_device::ModuleImage {
        domain: "suite",
        target: "host-x86-64-v3",
        code: kernels(),
        ptx: None,
        kernels: &suite::rig::facts(),
    };
    device.load_module(image).expect("the kernels");
    let lacks = device.jail_lacks().expect("it runs");
    assert!(lacks.iter().all(|what| what.starts_with("landlock: ")), "{lacks:?}");
}

#[test]
fn dropping_an_executor_leaks_nothing() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("a folder").count();
    // The supervisor's own descriptors stay.
    drop(device());
    let before = descriptors();
    for _ in 0..3 {
        let device = device();
        let pid = Pid::from_raw(device.pid() as i32).expect("a process");
        drop(device);
        assert!(is_gone(pid));
    }
    let after = Instant::now() + Duration::from_secs(20);
    // Other tests of this program open and close descriptors too.
    while descriptors() > before && Instant::now() < after {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(Instant::now() < after, "{before} descriptors before, {} after", descriptors());
}

#[test]
fn a_program_that_is_no_executor_is_reported_with_its_status() {
    let config = ExecutorConfig { program: "/bin/false".into(), arguments: Vec::new(), ..config(Wanted::default()) };
    let mut device = ExecutorDevice::start(config).expect("a process");
    let image = atoll_device::ModuleImage {
        domain: "suite",
        target: "host-x86-64-v3",
        code: kernels(),
        ptx: None,
        kernels: &suite::rig::facts(),
    };
    let error = device.load_module(image).unwrap_err().to_string();
    assert!(error.contains("ended by itself, with status 1"), "{error}");
    let config = ExecutorConfig { program: "/nowhere".into(), ..self::config(Wanted::default()) };
    assert!(ExecutorDevice::start(config).unwrap_err().to_string().contains("start an executor"));
}
