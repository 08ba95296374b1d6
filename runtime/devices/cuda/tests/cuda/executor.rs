//! A GPU in an executor process: the conformance suite, and the loss of that process.

use super::suite::rig::{Kernel, Launch, Rig, Wanted, facts, wait_for};
use super::{KERNELS, config, routes, suite};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{
    Completion, Constants, Device, DeviceError, DomainState, Domains, Fault, FaultKind, LaunchRecord, LaunchStatus,
    Launching, Memory, ModuleId, ModuleImage, Modules,
};
use atoll_device_cuda::{CudaConfig, KIND};
use atoll_executor::{ExecutorConfig, ExecutorDevice, ExecutorPool, serve};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::time::Duration;

const TARGET: &str = "nvidia-sm_75";

/// The program that the tests start as an executor: this binary, running only this test.
#[test]
#[ignore = "the other tests run it"]
fn executor_process() {
    // Errors were reported to the parent process.
    std::process::exit(i32::from(serve(&[KIND]).is_err()));
}

pub(super) fn executor(cuda: CudaConfig) -> ExecutorConfig {
    ExecutorConfig {
        program: std::env::current_exe().expect("this program"),
        arguments: ["--exact", "executor::executor_process", "--ignored", "--nocapture", "-q"].map(Into::into).into(),
        hang_after: Duration::from_secs(2),
        ..ExecutorConfig::new(cuda).expect("a configuration")
    }
}

fn make(wanted: Wanted) -> Rig {
    let device = ExecutorDevice::start(executor(config(wanted))).expect("an executor");
    Rig::new(Box::new(device), KERNELS.as_bytes())
}

conforms! { common make }

#[test]
fn running_blocks_finish_and_the_rest_exit_when_the_epoch_is_raised() {
    super::running_blocks_finish_when_the_epoch_is_raised(make(Wanted::default()));
}

#[test]
fn an_epoch_word_has_the_value_last_written_wherever_it_is_kept() {
    super::an_epoch_word_has_the_value_last_written(make(Wanted::default()));
}

#[test]
fn large_transfers_go_in_pieces() {
    let mut rig = make(Wanted::default());
    let bytes: Vec<u8> = (0..(9 << 20) + 5_u32).map(|i| (i % 251) as u8).collect();
    let (at, other) = (rig.alloc(bytes.len() as u64), rig.alloc(bytes.len() as u64));
    rig.device.write(at, &bytes).expect("memory");
    rig.device.copy(at, other, bytes.len() as u64).expect("memory");
    let mut read = vec![0; bytes.len()];
    rig.device.read(other, &mut read).expect("memory");
    assert!(read == bytes);
}

#[test]
fn errors_of_the_driver_are_reported_verbatim() {
    let missing = CudaConfig { library: Some(PathBuf::from("/nowhere/libcuda.so.1")), ..config(Wanted::default()) };
    let error = ExecutorPool::new(executor(missing)).expect_err("no driver");
    assert!(matches!(error, DeviceError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().starts_with("no NVIDIA driver here: /nowhere/libcuda.so.1 cannot be loaded"), "{error}");
}

/// A pool on a GPU with the kernels, loaded for a tenant.
pub(super) struct Gpu {
    pub(super) pool: ExecutorPool,
    pub(super) module: ModuleId,
    pub(super) launches: u64,
}

impl Gpu {
    pub(super) fn start(cuda: CudaConfig) -> Gpu {
        let mut pool = ExecutorPool::new(executor(cuda)).expect("a pool");
        let kernels = facts();
        let image =
            ModuleImage { domain: "tenant", target: TARGET, code: KERNELS.as_bytes(), ptx: None, kernels: &kernels };
        let module = pool.load_module(image).expect("the kernels");
        Gpu { pool, module, launches: 0 }
    }

    pub(super) fn base(&mut self) -> u64 {
        self.pool.domain("tenant").expect("memory").0
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.pool.executors().processes.first()?.pid? as i32)
    }

    /// Submits one block of a kernel with an address and two numbers as parameters.
    pub(super) fn submit(&mut self, kernel: Kernel, at: u64, rest: [u64; 2]) -> LaunchId {
        self.submit_of(QueueId(1), 0, kernel, at, rest)
    }

    /// The same, for the task with this epoch word.
    fn submit_of(&mut self, queue: QueueId, task: u64, kernel: Kernel, at: u64, rest: [u64; 2]) -> LaunchId {
        let params: Vec<u8> = [at, rest[0], rest[1]].iter().flat_map(|word| word.to_le_bytes()).collect();
        let (none, launch) = (DeviceOffset(0), LaunchId(self.launches));
        self.launches += 1;
        let record = LaunchRecord {
            launch,
            module: self.module,
            kernel: kernel as u32,
            grid: [1; 3],
            shared_bytes: 0,
            address_slots: [0].into_iter().collect(),
            evicted_word: none,
            epoch_word: DeviceOffset(task),
            epoch: Epoch(0),
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
        };
        self.pool.submit(queue, &record, &params).expect("room");
        launch
    }

    pub(super) fn wait(&mut self) -> Completion {
        self.wait_until(|gpu| gpu.pool.next_completion())
    }

    fn wait_until<T>(&mut self, found: impl FnMut(&mut Gpu) -> Option<T>) -> T {
        wait_for(self, |gpu| &gpu.pool, found)
    }

    /// Runs one block that counts itself, at an offset of the domain's memory.
    pub(super) fn runs(&mut self) {
        let at = self.base();
        self.pool.fill(DeviceOffset(at), 0, 4).expect("memory");
        let launch = self.submit(Kernel::Spin, at, [0; 2]);
        let completion = self.wait();
        assert_eq!((completion.launch, completion.status), (launch, LaunchStatus::Complete));
        let mut count = [0; 4];
        self.pool.read(DeviceOffset(at), &mut count).expect("memory");
        assert_eq!(count, [1, 0, 0, 0]);
    }

    pub(super) fn fault(&mut self, launch: LaunchId) -> Fault {
        self.pool.report(launch).and_then(|report| report.fault).expect("a fault")
    }

    fn why(&mut self, launch: LaunchId) -> String {
        self.fault(launch).to_string()
    }

    /// Waits from the loss of an executor until its replacement works: no memory is available
    /// before the loss of constants was taken.
    pub(super) fn recovers(&mut self, old: u64) {
        self.wait_until(|gpu| {
            assert_eq!(gpu.pool.next_completion(), None);
            gpu.pool.take_constants_lost().then_some(())
        });
        assert!(!self.pool.take_constants_lost(), "it is reported once");
        self.wait_until(|gpu| {
            assert_eq!(gpu.pool.next_completion(), None);
            (gpu.pool.domain_state("tenant") == DomainState::Ready).then_some(())
        });
        assert_ne!(self.base(), old);
        let stale = self.pool.write(DeviceOffset(old), &[1]);
        assert!(matches!(stale, Err(DeviceError::DomainLost(_))), "{stale:?}");
        let launch = self.submit(Kernel::Spin, old, [0; 2]);
        assert_eq!(self.wait().launch, launch);
        assert!(self.why(launch).contains("is gone"));
        self.runs();
    }
}

#[test]
fn a_lost_executor_is_replaced_once_the_loss_of_constants_was_noted() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut gpu = Gpu::start(config(Wanted::default()));
        gpu.runs();
        let (old, pid) = (gpu.base(), gpu.pid().expect("a process"));
        // Offsets of constants stay the same for the life of the device.
        gpu.pool.write(DeviceOffset(4096), &[7]).expect("memory");
        let victim = gpu.submit(Kernel::Spin, old, [1 << 40, 0]);
        kill_process(pid, signal).expect("it lives");
        let completion = gpu.wait();
        assert_eq!((completion.launch, completion.status), (victim, LaunchStatus::Failed));
        let why = gpu.why(victim);
        assert!(
            why.contains(if signal == Signal::KILL { "was killed by SIGKILL" } else { "no sign of life" }),
            "{why}"
        );
        assert_eq!(gpu.pool.next_completion(), None);
        assert!(matches!(gpu.pool.domain("tenant"), Err(DeviceError::DomainLost(_))), "its loss was not noted");
        assert!(matches!(gpu.pool.write(DeviceOffset(4096), &[7]), Err(DeviceError::DomainLost(_))));
        gpu.recovers(old);
        gpu.pool.write(DeviceOffset(4096), &[8]).expect("memory");
        assert_ne!(gpu.pid(), Some(pid));
    }
}

#[test]
fn a_fault_ends_the_executor_and_is_reported() {
    let mut gpu = Gpu::start(config(Wanted::default()));
    let old = gpu.base();
    let launch = gpu.submit(Kernel::FaultAt, old, [5 << 32, 16]);
    let completion = gpu.wait();
    assert_eq!((completion.launch, completion.status), (launch, LaunchStatus::Failed));
    let fault = gpu.fault(launch);
    assert!(matches!(fault.kind, FaultKind::Fatal { .. }), "nothing else ran: {fault:?}");
    let why = fault.to_string();
    assert!(why.contains("kernel 'fault_at' faulted: ") && why.contains("the GPU's context ended with it"), "{why}");
    gpu.recovers(old);
    assert_eq!(gpu.pool.executors().died, 1);
}

#[test]
fn a_fault_with_several_launches_running_is_attributed_to_none() {
    let mut gpu = Gpu::start(config(Wanted::default()));
    let old = gpu.base();
    let bystander = gpu.submit_of(QueueId(0), 64, Kernel::Spin, old + 64, [1 << 40, 0]);
    let culprit = gpu.submit(Kernel::FaultAt, old, [5 << 32, 16]);
    let ended = [gpu.wait(), gpu.wait()].map(|completion| completion.launch);
    assert!(ended.contains(&bystander) && ended.contains(&culprit));
    for launch in ended {
        let fault = gpu.fault(launch);
        assert!(matches!(fault.kind, FaultKind::Lost { may_have_run: true, .. }), "{fault:?}");
    }
    gpu.recovers(old);
}

#[test]
fn kernels_that_end_the_context_do_not_make_the_gpu_unavailable() {
    let mut gpu = Gpu::start(config(Wanted::default()));
    for _ in 0..6 {
        let old = gpu.base();
        let launch = gpu.submit(Kernel::FaultAt, old, [5 << 32, 16]);
        assert_eq!(gpu.wait().launch, launch);
        gpu.recovers(old);
    }
}

#[test]
fn a_kernel_that_does_not_end_costs_its_executor() {
    let limit = Duration::from_millis(300);
    let mut gpu = Gpu::start(CudaConfig { time_limit: limit, ..config(Wanted::default()) });
    assert_eq!(gpu.pool.info().time_limit, Some(limit));
    let old = gpu.base();
    let launch = gpu.submit(Kernel::Spin, old, [1 << 40, 0]);
    assert_eq!(gpu.wait().status, LaunchStatus::Failed);
    let why = gpu.why(launch);
    assert!(why.contains("ended no launch within"), "{why}");
    gpu.recovers(old);
}

/// The epoch word starts at 0 again for each invocation, so the same epochs are raised again and
/// again, on every route.
#[test]
fn an_epoch_is_raised_again_after_its_word_was_cleared() {
    let (bar_library, all) = routes();
    for flag_route in all {
        let bar_library = bar_library.clone();
        let device = ExecutorDevice::start(executor(CudaConfig {
            flag_route: Some(flag_route),
            bar_library,
            ..config(Wanted::default())
        }));
        let mut rig = Rig::new(Box::new(device.expect("an executor")), KERNELS.as_bytes());
        let counts = rig.alloc(4);
        let preempt = rig.preempt(1);
        for round in 0..20 {
            for (raised, expected) in
                [(0, LaunchStatus::Complete), (1, LaunchStatus::Evicted), (1, LaunchStatus::Evicted)]
            {
                rig.device.fill(preempt.progress, 0, 1).expect("memory");
                rig.device.fill(preempt.evicted_word, 0, 4).expect("memory");
                rig.device.fill(preempt.epoch_word, 0, 4).expect("memory");
                if raised > 0 {
                    rig.device.store_epoch(preempt.epoch_word, Epoch(raised));
                    // The transfer runs after the raise, for which nothing else waits.
                    assert_eq!(rig.u32(preempt.epoch_word), raised);
                }
                let status = rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status;
                assert_eq!(status, expected, "round {round}, {flag_route:?}, raised to {raised}");
            }
        }
    }
}

#[test]
fn launches_after_many_epochs_are_correct() {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4);
    for round in 0..40 {
        let mut preempt = rig.preempt(1);
        preempt.epoch = Epoch(round);
        rig.device.store_epoch(preempt.epoch_word, Epoch(round + u32::from(round % 3 == 0)));
        let status = rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt)).status;
        let expected = if round % 3 == 0 { LaunchStatus::Evicted } else { LaunchStatus::Complete };
        assert_eq!(status, expected, "round {round}");
    }
}
