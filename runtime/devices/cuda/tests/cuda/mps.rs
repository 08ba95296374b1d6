//! Shares of a GPU through MPS, with a stand-in for the control daemon
//! (`tests/stand-in-cuda/src/bin`) that keeps a journal. On a real GPU these tests do nothing,
//! since NVIDIA's daemon keeps none.

use super::executor::{Gpu, executor};
use super::suite::rig::{Kernel, Wanted};
use super::{DEVICE, beside, config, device};
use atoll_device::{Device, DeviceError, FaultKind, LaunchStatus};
use atoll_device_cuda::{CudaConfig, MpsShare};
use atoll_executor::ExecutorPool;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Time limit of each wait.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Half of the GPU, through a control daemon in a folder; `None` on a real GPU.
fn half(folder: &Path) -> Option<MpsShare> {
    let is_stand_in = std::env::var_os(DEVICE).is_none();
    is_stand_in.then(|| MpsShare {
        percentage: 50,
        folder: folder.to_owned(),
        program: beside("atoll-stand-in-mps-control"),
    })
}

fn with(share: &MpsShare) -> CudaConfig {
    CudaConfig { mps: Some(share.clone()), ..config(Wanted::default()) }
}

/// The events in the journal, with process ids.
fn journal(share: &MpsShare) -> Vec<(String, u32)> {
    let text = std::fs::read_to_string(share.folder.join("journal")).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').map(|(what, pid)| (what.to_owned(), pid.parse().expect("a process")));
    text.lines().map(|text| line(text).expect("two words")).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIME_LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what} took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A control daemon that was started outside the device.
struct Elsewhere(Child);

impl Elsewhere {
    fn start(share: &MpsShare) -> Elsewhere {
        let child = Command::new(&share.program)
            .arg("-f")
            .env("CUDA_MPS_PIPE_DIRECTORY", &share.folder)
            .spawn()
            .expect("a control daemon");
        until("a control daemon", || share.control().answers());
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("it runs");
    }
}

#[test]
fn a_client_is_detached_before_it_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let whole = device(Wanted::default());
    let mut gpu = Gpu::start(CudaConfig { time_limit: Duration::from_millis(300), ..with(&share) });
    assert_eq!(gpu.pool.info().compute_units, whole.info().compute_units.div_ceil(2));
    gpu.runs();
    let (old, pid) = (gpu.base(), gpu.pid().expect("a process").as_raw_nonzero().get().cast_unsigned());
    assert_eq!(share.control().clients().expect("an answer"), [pid]);
    let endless = gpu.submit(Kernel::Spin, old, [1 << 40, 0]);
    assert_eq!((gpu.wait().launch, gpu.fault(endless).to_string().contains("ended no launch within")), (endless, true));
    gpu.recovers(old);
    drop(gpu);
    let journal = journal(&share);
    let at = |what: &str| {
        journal
            .iter()
            .position(|line| line == &(what.to_owned(), pid))
            .unwrap_or_else(|| panic!("no {what} {pid}: {journal:?}"))
    };
    assert!(at("client") < at("terminate") && at("terminate") < at("gone"), "{journal:?}");
    assert_eq!(journal.iter().filter(|(what, _)| what == "terminate").count(), 2, "both executors: {journal:?}");
    assert_eq!(journal.last().map(|(what, _)| what.as_str()), Some("quit"), "we started it: {journal:?}");
    assert!(!share.control().answers());
}

#[test]
fn a_control_daemon_that_dies_is_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let mut gpu = Gpu::start(with(&share));
    let own = |share: &MpsShare| {
        journal(share).into_iter().rev().find(|(what, _)| what == "start").expect("it was started").1
    };
    let first = own(&share);
    kill_process(Pid::from_raw(first.cast_signed()).expect("a process"), Signal::KILL).expect("it lives");
    until("another control daemon", || own(&share) != first && share.control().answers());
    // Existing clients keep their work, and the replacement of one is a client again.
    gpu.runs();
    let (old, pid) = (gpu.base(), gpu.pid().expect("a process"));
    kill_process(pid, Signal::KILL).expect("it lives");
    gpu.recovers(old);
    let pid = gpu.pid().expect("a process").as_raw_nonzero().get().cast_unsigned();
    assert_eq!(share.control().clients().expect("an answer"), [pid]);
}

#[test]
fn a_control_daemon_started_elsewhere_is_used_and_left_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let theirs = Elsewhere::start(&share);
    let mut gpu = Gpu::start(with(&share));
    gpu.runs();
    drop(gpu);
    assert!(share.control().answers());
    assert!(
        journal(&share).iter().all(|(what, pid)| what != "start" || *pid == theirs.0.id()),
        "{:?}",
        journal(&share)
    );
}

#[test]
fn a_control_daemon_with_other_clients_is_left_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let first = Gpu::start(with(&share));
    let mut second = Gpu::start(with(&share));
    drop(first);
    assert!(share.control().answers());
    second.runs();
    let control = journal(&share)[0].1;
    drop(second);
    // No other code in this test ends the control daemon.
    kill_process(Pid::from_raw(control.cast_signed()).expect("a process"), Signal::KILL).expect("it was left");
}

#[test]
fn a_process_that_shares_the_gpu_is_not_blamed_for_the_loss_of_the_context() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let mut gpu = Gpu::start(with(&share));
    let old = gpu.base();
    let launch = gpu.submit(Kernel::FaultAt, old, [5 << 32, 16]);
    assert_eq!(gpu.wait().status, LaunchStatus::Failed);
    let fault = gpu.fault(launch);
    assert!(
        matches!(fault.kind, FaultKind::Lost { may_have_run: true, .. }),
        "it may have been another process: {fault:?}"
    );
    gpu.recovers(old);
}

#[test]
fn a_share_needs_the_service() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(share) = half(folder.path()) else { return };
    let refused = |program: &str| {
        let share = MpsShare { program: program.into(), ..share.clone() };
        match ExecutorPool::new(executor(with(&share))).expect_err(program) {
            DeviceError::Unavailable(why) => why,
            other => panic!("{other:?}"),
        }
    };
    let missing = refused("/nowhere/nvidia-cuda-mps-control");
    assert!(
        missing.starts_with("a share of a GPU needs NVIDIA's MPS: cannot run /nowhere/nvidia-cuda-mps-control: "),
        "{missing}"
    );
    let fails = refused("false");
    assert!(fails.starts_with("the MPS control daemon ended by itself (exit status: 1); "), "{fails}");
}
