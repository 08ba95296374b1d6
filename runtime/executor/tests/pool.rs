//! Several executors as one device: the conformance suite, and the isolation of domains.
#![cfg(target_arch = "x86_64")]

#[allow(unreachable_pub, dead_code, reason = "the suite is shared by the tests of all devices")]
#[macro_use]
#[path = "../../device/tests/suite/mod.rs"]
mod suite;

#[allow(unreachable_pub, reason = "shared by the tests of executors")]
mod common;

use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::{
    Completion, Constants, Device, DeviceError, DomainState, Domains, LaneSpec, Lanes, LaunchRecord, LaunchStatus,
    Launching, Memory, ModuleId, ModuleImage, Modules, Telemetry,
};
use atoll_executor::{ExecutorConfig, ExecutorPool};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use suite::rig::{Kernel, Rig, Wanted, facts, kernels, wait_for};

/// The program that the tests start as an executor: this binary, running only this test.
#[test]
#[ignore = "the other tests run it"]
fn executor_process() {
    common::serve_and_exit();
}

fn pool(wanted: Wanted) -> ExecutorPool {
    ExecutorPool::new(common::config(wanted)).expect("a pool")
}

fn make(wanted: Wanted) -> Rig {
    Rig::new(Box::new(pool(wanted)), kernels())
}

// Without tests that use memory of no domain.
conforms! {
    make:
    kernels_compute,
    every_block_runs_once,
    a_launch_without_blocks_completes,
    launches_of_a_queue_run_in_order,
    a_full_queue_refuses_launches,
    queues_run_side_by_side,
    the_urgent_queue_goes_first,
    an_epoch_raised_before_the_start_evicts,
    an_epoch_raised_midway_evicts_and_the_rest_resumes,
    a_launch_resumes_until_it_is_complete,
    a_trap_fails_its_launch_and_no_other,
    a_trap_reports_its_location,
    an_aborted_launch_ends_and_no_other,
    compute_units_report_the_chunks_they_ran,
    an_interrupted_block_runs_again,
    an_interrupted_launch_of_an_evicted_task_ends_at_once,
    the_largest_parameter_block_arrives_whole,
    one_byte_more_than_the_largest_block_is_refused,
    a_relocation_outside_the_parameter_block_is_refused,
    addresses_may_be_absolute,
    a_large_block_keeps_its_preemption_parameters,
    an_evicted_block_is_interrupted_for_more_urgent_ones,
    a_released_constant_is_unmapped,
    constants_do_not_overlap,
    modules_are_loaded_and_unloaded,
    random_traffic_on_two_queues,
    a_busy_device_can_be_dropped,
}

/// A pool with the kernels in two domains.
struct Two {
    pool: ExecutorPool,
    modules: [ModuleId; 2],
    launches: u64,
    ended: Vec<Completion>,
    queue: QueueId,
}

const NAMES: [&str; 2] = ["one", "two"];

fn is_ready(pool: &ExecutorPool, name: &str) -> bool {
    let has_process = pool.executors().processes.iter().any(|process| process.domain == name && process.pid.is_some());
    has_process && pool.domain_state(name) == DomainState::Ready
}

/// Sleeps on the descriptor alone, without polling. Nothing is in flight.
fn sleep_until(pool: &mut ExecutorPool, is_so: impl Fn(&ExecutorPool) -> bool) {
    while !is_so(pool) {
        let fd = pool.completion_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_ne!(rustix::event::poll(&mut fds, Some(&limit)), Ok(0), "it would sleep for ever");
        assert_eq!(pool.next_completion(), None);
    }
}

impl Two {
    fn new() -> Two {
        Two::of(pool(Wanted::default()))
    }

    fn of(mut pool: ExecutorPool) -> Two {
        let image = |domain| ModuleImage { domain, target: "host-x86-64-v3", code: kernels(), ptx: None, kernels: &[] };
        let modules = NAMES
            .map(|domain| pool.load_module(ModuleImage { kernels: &facts(), ..image(domain) }).expect("the kernels"));
        Two { pool, modules, launches: 0, ended: Vec::new(), queue: QueueId(1) }
    }

    fn base(&mut self, domain: usize) -> u64 {
        self.pool.domain(NAMES[domain]).expect("a domain").0
    }

    fn pid(&self, domain: usize) -> Option<Pid> {
        let processes = self.pool.executors().processes;
        Pid::from_raw(processes.iter().find(|process| process.domain == NAMES[domain])?.pid? as i32)
    }

    /// Submits one block of a kernel with the parameters `counts` and two numbers.
    fn submit(&mut self, domain: usize, kernel: Kernel, counts: DeviceOffset, rest: [u64; 2]) -> LaunchId {
        self.submit_at(domain, kernel, [counts.0, rest[0], rest[1], 0], &[0])
    }

    /// Submits one block of a kernel, some of whose parameters are addresses.
    fn submit_at(&mut self, domain: usize, kernel: Kernel, params: [u64; 4], addresses: &[usize]) -> LaunchId {
        let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let none = DeviceOffset(0);
        let launch = LaunchId(self.launches);
        self.launches += 1;
        let record = LaunchRecord {
            launch,
            module: self.modules[domain],
            kernel: kernel as u32,
            grid: [1; 3],
            shared_bytes: 0,
            address_slots: addresses.iter().copied().collect(),
            evicted_word: none,
            epoch_word: none,
            epoch: Epoch(0),
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
        };
        self.pool.submit(self.queue, &record, &params).expect("room");
        launch
    }

    /// Waits for the end of a launch; completions of other launches are kept.
    fn wait(&mut self, launch: LaunchId) -> Completion {
        self.wait_until(|two| {
            two.ended.extend(two.pool.next_completion());
            two.ended.iter().position(|completion| completion.launch == launch).map(|at| two.ended.remove(at))
        })
    }

    fn wait_until<T>(&mut self, found: impl FnMut(&mut Two) -> Option<T>) -> T {
        wait_for(self, |two| &two.pool, found)
    }

    fn runs(&mut self, domain: usize) {
        self.runs_at(domain, 0);
    }

    /// A kernel counts at an offset in the memory of a domain.
    fn runs_at(&mut self, domain: usize, at: u64) {
        let counts = DeviceOffset(self.base(domain) + at);
        self.pool.fill(counts, 0, 4).expect("memory");
        let launch = self.submit(domain, Kernel::Spin, counts, [0; 2]);
        assert_eq!(self.wait(launch).status, LaunchStatus::Complete);
        let mut count = [0; 4];
        self.pool.read(counts, &mut count).expect("memory");
        assert_eq!(count, [1, 0, 0, 0]);
    }

    /// Kills the executor of a domain, and waits until it is gone.
    fn kill_executor(&mut self, domain: usize) {
        let pid = self.pid(domain).expect("a process");
        kill_process(pid, Signal::KILL).expect("it lives");
        self.wait_until(|two| {
            assert_eq!(two.pool.next_completion(), None);
            (two.pid(domain) != Some(pid)).then_some(())
        });
    }

    fn is_ready(&self, domain: usize) -> bool {
        is_ready(&self.pool, NAMES[domain])
    }

    fn show(&mut self, domain: usize, constants: &[DeviceOffset]) {
        self.pool.show_constants(NAMES[domain], constants);
        self.wait_until(|two| two.pool.sees_constants(NAMES[domain]).then_some(()));
    }

    /// Whether a kernel of a domain can read a constant: it adds the constant's first number to
    /// itself.
    fn sees(&mut self, domain: usize, constant: DeviceOffset) -> bool {
        let out = DeviceOffset(self.base(domain) + 4096);
        let launch = self.submit_at(domain, Kernel::VectorAdd, [constant.0, constant.0, out.0, 1], &[0, 1, 2]);
        self.wait(launch).status == LaunchStatus::Complete
    }

    fn why(&mut self, launch: LaunchId) -> String {
        self.pool.report(launch).and_then(|report| report.fault).expect("a fault").to_string()
    }
}

#[test]
fn domains_share_only_constants_that_both_were_shown() {
    let mut two = Two::new();
    let constants = two.pool.info().constants_base;
    let (one, other) = (two.base(0), two.base(1));
    assert!(one != other && two.pid(0) != two.pid(1));
    two.pool.reserve_constant(constants, 4096).expect("room");
    two.pool.write(constants, &[5; 4]).expect("memory");
    two.pool.copy(constants, DeviceOffset(other), 4).expect("memory");
    let mut bytes = [[9; 4]; 3];
    for (at, bytes) in [constants.0, one, other].into_iter().zip(&mut bytes) {
        two.pool.read(DeviceOffset(at), bytes).expect("memory");
    }
    assert_eq!(bytes, [[5; 4], [0; 4], [5; 4]]);
    two.show(0, &[constants]);
    assert_eq!([0, 1].map(|domain| two.sees(domain, constants)), [true, false]);
    two.show(1, &[constants]);
    assert_eq!([0, 1].map(|domain| two.sees(domain, constants)), [true, true]);
    two.pool.hide_constants(NAMES[0], &[constants]);
    // Orders are handled in sequence.
    two.pool.reserve_constant(DeviceOffset(constants.0 + 4096), 4096).expect("room");
    two.show(0, &[DeviceOffset(constants.0 + 4096)]);
    assert_eq!([0, 1].map(|domain| two.sees(domain, constants)), [false, true]);
    // A launch of one domain with an address of the other.
    let launch = two.submit(0, Kernel::Spin, DeviceOffset(other), [0; 2]);
    assert_eq!(two.wait(launch).status, LaunchStatus::Failed);
    assert!(two.why(launch).contains("is gone"));
    two.runs(0);
    two.runs(1);
}

#[test]
fn a_lost_executor_is_replaced_and_others_are_unaffected() {
    for signal in [Signal::KILL, Signal::STOP] {
        let mut two = Two::new();
        let old = two.base(0);
        two.pool.write(DeviceOffset(old + 4096), &[7]).expect("memory");
        // Endless: block 0, kind 1.
        let victim = two.submit(0, Kernel::ForeverAt, DeviceOffset(old), [1 << 32, 0]);
        let (pid, neighbour) = (two.pid(0).expect("a process"), two.pid(1));
        kill_process(pid, signal).expect("it lives");
        two.runs(1);
        assert_eq!(two.wait(victim).status, LaunchStatus::Failed);
        two.wait_until(|two| {
            assert_eq!(two.pool.next_completion(), None);
            two.pid(0).filter(|new| *new != pid)
        });
        let why = two.why(victim);
        assert!(
            why.contains(if signal == Signal::KILL { "was killed by SIGKILL" } else { "no sign of life" }),
            "{why}"
        );
        assert!(
            matches!(two.pool.write(DeviceOffset(old), &[1]), Err(DeviceError::DomainLost(_))),
            "its memory is gone"
        );
        let mut byte = [9];
        let new = DeviceOffset(two.base(0) + 4096);
        two.pool.read(new, &mut byte).expect("memory");
        assert_eq!(byte, [0]);
        two.wait_until(|two| {
            let _ = two.pool.next_completion();
            (two.pool.domain_state(NAMES[0]) == DomainState::Ready).then_some(())
        });
        two.runs(0);
        two.runs(1);
        assert_eq!(two.pid(1), neighbour);
        let statistics = two.pool.executors();
        assert_eq!((statistics.alive, statistics.started, statistics.died + statistics.hung), (2, 3, 1));
    }
}

#[test]
fn a_domain_whose_executors_keep_dying_is_unavailable() {
    let mut two = Two::new();
    let mut losses = 0;
    let cause = two.wait_until(|two| {
        let _ = two.pool.next_completion();
        match two.pool.domain_state(NAMES[0]) {
            DomainState::Unavailable(cause) => Some(cause),
            _ => {
                if let Some(pid) = two.pid(0) {
                    losses += u32::from(kill_process(pid, Signal::KILL).is_ok());
                }
                None
            }
        }
    });
    assert!(cause.contains("SIGKILL") && losses >= 5, "{cause}, {losses}");
    let image =
        ModuleImage { domain: NAMES[0], target: "host-x86-64-v3", code: kernels(), ptx: None, kernels: &facts() };
    assert!(matches!(two.pool.load_module(image), Err(DeviceError::DomainLost(_))));
    // A domain that waits for an executor has memory by then, which is freed with the last module.
    let memory = DeviceOffset(two.base(0));
    two.pool.write(memory, &[1]).expect("memory");
    two.pool.unload_module(two.modules[0]);
    assert!(matches!(two.pool.write(memory, &[1]), Err(DeviceError::DomainLost(_))));
    two.runs(1);
}

#[test]
fn launches_of_a_queue_end_in_order_when_their_executor_is_lost() {
    let mut two = Two::new();
    let base = two.base(0);
    let first = two.submit(0, Kernel::ForeverAt, DeviceOffset(base), [1 << 32, 0]);
    let pid = two.pid(0).expect("a process");
    kill_process(pid, Signal::KILL).expect("it lives");
    // It is gone, and the pool has not been polled, so it has not noticed.
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    two.wait_until(|_| (!std::path::Path::new(&process).exists()).then_some(()));
    std::thread::sleep(Duration::from_millis(100));
    let second = two.submit(0, Kernel::Spin, DeviceOffset(base), [0; 2]);
    let mut ended = Vec::new();
    two.wait_until(|two| {
        ended.extend(two.pool.next_completion().map(|completion| completion.launch));
        (ended.len() == 2).then_some(())
    });
    assert_eq!(ended, [first, second]);
}

/// A waiter that only sleeps on the descriptor sees every domain come back, whatever the lengths of
/// their pauses.
#[test]
fn every_pause_ends_by_itself() {
    let mut two = Two::new();
    for domain in [1, 1, 1, 0] {
        two.kill_executor(domain);
        two.wait_until(|two| {
            assert_eq!(two.pool.next_completion(), None);
            two.is_ready(domain).then_some(())
        });
    }
    // The second loss of one domain, the fourth of the other: the shorter pause ends first.
    two.kill_executor(1);
    two.kill_executor(0);
    sleep_until(&mut two.pool, |pool| NAMES.iter().all(|name| is_ready(pool, name)));
}

/// A program that is no executor and ends at once, maybe while it is still being started. It is
/// started once more, since it might have ended for another reason than the module.
#[test]
fn a_sleeping_waiter_misses_no_death() {
    for _ in 0..50 {
        let config = ExecutorConfig { program: "/bin/false".into(), ..common::config(Wanted::default()) };
        let mut pool = ExecutorPool::new(config).expect("a pool");
        let image =
            ModuleImage { domain: NAMES[0], target: "host-x86-64-v3", code: kernels(), ptx: None, kernels: &facts() };
        pool.begin_load(image).expect("the loss is not known yet");
        sleep_until(&mut pool, |pool| pool.executors().processes.iter().any(|process| process.losses == 2));
    }
}

#[test]
fn a_domain_without_modules_has_no_process() {
    let mut two = Two::new();
    let pid = two.pid(0).expect("a process");
    let old = DeviceOffset(two.base(0));
    two.pool.unload_module(two.modules[0]);
    assert!(matches!(two.pool.write(old, &[1]), Err(DeviceError::DomainLost(_))), "its memory went with it");
    assert_eq!((two.pid(0), two.pool.executors().alive), (None, 1));
    // Another thread reaps the process.
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    two.wait_until(|_| (!std::path::Path::new(&process).exists()).then_some(()));
    two.runs(1);
}

#[test]
fn a_lane_exists_in_every_executor_and_in_replacements() {
    let mut two = Two::new();
    let lane = two.pool.open_lane(&LaneSpec { units: vec![1], queues: 2 }).expect("a lane");
    two.queue = QueueId(lane.queues.start);
    let units = |two: &mut Two| {
        let mut units = Vec::new();
        two.pool.take_chunks(u64::MAX, &mut |_, chunk| units.push((chunk.unit, chunk.queue)));
        units
    };
    let in_the_lane = (1, two.queue);
    two.runs(0);
    two.runs(1);
    assert_eq!(units(&mut two), [in_the_lane; 2]);
    two.kill_executor(0);
    two.wait_until(|two| {
        assert_eq!(two.pool.next_completion(), None);
        two.is_ready(0).then_some(())
    });
    two.runs(0);
    assert_eq!(units(&mut two), [in_the_lane]);
    two.pool.close_lane(lane.id).expect("nothing is in it");
    let again = two.pool.close_lane(lane.id).expect_err("it is closed").to_string();
    assert!(again.contains("there is no lane 1") && lane.id == LaneId(1), "{again}");
    two.queue = QueueId(1);
    two.runs(0);
}

/// The memory of a domain with a bound is a region of twice the bound. Any offset of the engine can
/// be placed in it as a part; offsets outside parts are refused.
#[test]
fn a_bound_domain_has_room_for_its_parts_and_no_more() {
    let mut unbound = pool(Wanted::default());
    let far = unbound.info().memory_bytes - 8192;
    unbound.bound_memory("one", 1 << 20);
    let mut two = Two::of(unbound);
    let base = two.base(0);
    assert!(matches!(two.pool.write(DeviceOffset(base + far), &[1]), Err(DeviceError::OutOfRange { .. })));
    let refused = two.submit(0, Kernel::Spin, DeviceOffset(base + far), [0; 2]);
    assert_eq!(two.wait(refused).status, LaunchStatus::Failed);
    for at in [far, 0] {
        two.pool.place_part("one", DeviceOffset(at), 4096).expect("room");
        two.runs_at(0, at);
        two.runs_at(0, at + 4092);
    }
    // The first part begins where the region does.
    let start = two.pool.memory_start("one").expect("memory");
    two.pool.write(DeviceOffset(base + far), &[7; 4]).expect("a part");
    let mut bytes = [0; 4];
    two.pool.read(start, &mut bytes).expect("the region");
    assert_eq!((bytes, start == DeviceOffset(base)), ([7; 4], false));
    // Two MiB, of which two pages are taken.
    let large = two.pool.place_part("one", DeviceOffset(1 << 20), (2 << 20) - 4096).expect_err("no room");
    assert!(large.to_string().contains("the tenant's process has 2 MiB of memory, and no free piece"), "{large}");
    two.pool.place_part("one", DeviceOffset(1 << 20), (2 << 20) - 8192).expect("room");
    // A new executor has new memory, and the parts where they were.
    two.kill_executor(0);
    two.wait_until(|two| {
        assert_eq!(two.pool.next_completion(), None);
        two.is_ready(0).then_some(())
    });
    two.runs_at(0, far);
    two.pool.remove_part("one", DeviceOffset(far));
    let base = two.base(0);
    assert!(two.pool.write(DeviceOffset(base + far), &[1]).is_err());
    // A domain without a bound has the whole device, and the bound of one that has memory is late.
    two.pool.bound_memory("two", 1 << 20);
    two.runs_at(1, far);
    let (base, start) = (two.base(1), two.pool.memory_start("two").expect("memory"));
    assert_eq!(start, DeviceOffset(base));
}

/// A part whose address kernels know returns to it. In the memory of a domain with a bound, the
/// engine may have it at another offset.
#[test]
fn a_part_returns_to_the_address_that_kernels_know() {
    let mut bound = pool(Wanted::default());
    bound.bound_memory("one", 1 << 20);
    let mut two = Two::of(bound);
    let base = two.base(0);
    let [first, second, third] = [0, 1 << 20, 2 << 20].map(DeviceOffset);
    let address = |two: &Two, at: DeviceOffset| two.pool.kernel_address(DeviceOffset(base + at.0));
    two.pool.place_part_at("one", first, 8192, None).expect("room");
    let known = address(&two, first).expect("it is known");
    assert_eq!(two.pool.offset_of("one", known), None, "any offset will do");
    two.pool.remove_part("one", first);
    two.pool.reserve_address("one", known, 8192);
    two.pool.place_part_at("one", second, 8192, None).expect("room");
    assert!(address(&two, second).is_some_and(|other| other != known), "the address is left to the other part");
    two.pool.place_part_at("one", third, 8192, Some(known)).expect("it is free");
    assert_eq!(address(&two, third), Some(known));
    two.runs_at(0, third.0);
    let taken = two.pool.place_part_at("one", first, 256, Some(known)).expect_err("it is in use");
    assert!(taken.to_string().contains("are in use"), "{taken}");
    // Without a bound, the address decides the offset.
    let base = two.base(1);
    let known = two.pool.kernel_address(DeviceOffset(base + 4096)).expect("it is known");
    assert_eq!(two.pool.offset_of("two", known), Some(DeviceOffset(4096)));
    two.pool.place_part_at("two", DeviceOffset(4096), 256, Some(known)).expect("it is the address of the offset");
    assert!(two.pool.place_part_at("two", DeviceOffset(8192), 256, Some(known)).is_err());
}
