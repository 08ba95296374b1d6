//! The conformance suite: requirements for every device. A device's tests list the suite's tests by
//! name (see `host.rs`).
//!
//! No test asserts times. If the order of events matters, kernels wait for a gate word that the
//! test opens with `store_epoch`.

mod abort;
mod chunks;
mod interrupt;
mod memory;
mod params;
#[allow(dead_code, reason = "the latency example uses the rest")]
pub mod rig;

pub use abort::*;
pub use chunks::*;
pub use interrupt::*;
pub use memory::*;
pub use params::*;

use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use atoll_device::{Completion, FaultKind, LaunchStatus, ModuleId, SubmitError};
use atoll_kgraph::host_abi::TrapCode;
use rig::{ARENAS_SHARED_BYTES, Kernel, Launch, Param, Rig, Wanted};
use std::collections::HashMap;

/// Creates a device of the kind under test.
pub type Make = fn(Wanted) -> Rig;

/// Defines tests for the device that `make` creates: all of the suite, those for GPUs too
/// (`common`), or a list of names.
macro_rules! conforms {
    ($make:ident) => {
        conforms! { common $make }
        conforms! {
            $make:
            the_urgent_queue_goes_first,
            the_urgent_queue_stops_preemptible_blocks,
            an_epoch_raised_midway_evicts_and_the_rest_resumes,
            a_trap_fails_its_launch_and_no_other,
            a_trap_reports_its_location,
            shared_and_scratch_memory_are_provided,
            an_aborted_launch_ends_and_no_other,
            a_launch_is_aborted_although_every_compute_unit_is_busy,
            only_the_oldest_launch_in_flight_is_aborted,
            random_aborts_leave_other_launches_correct_and_accounted,
            compute_units_report_the_chunks_they_ran,
            an_interrupted_block_runs_again,
            blocks_that_may_not_run_again_are_not_interrupted,
            an_interrupted_launch_of_an_evicted_task_ends_at_once,
            an_evicted_block_is_interrupted_for_more_urgent_ones,
            a_launch_may_be_interrupted_and_aborted_at_once,
            random_interruptions_leave_results_correct_and_accounted,
            constants_are_read_by_kernels_and_written_by_the_engine,
            a_released_constant_is_unmapped,
            constants_do_not_overlap,
        }
    };
    (common $make:ident) => {
        conforms! {
            $make:
            kernels_compute,
            every_block_runs_once,
            a_launch_without_blocks_completes,
            launches_of_a_queue_run_in_order,
            a_full_queue_refuses_launches,
            queues_run_side_by_side,
            an_epoch_raised_before_the_start_evicts,
            epochs_wrap_around,
            an_epoch_raised_after_the_end_changes_nothing,
            a_launch_resumes_until_it_is_complete,
            blocks_that_are_done_are_not_run_again,
            memory_is_bounded,
            memory_given_back_reads_as_zero,
            an_invalid_launch_fails,
            the_largest_parameter_block_arrives_whole,
            one_byte_more_than_the_largest_block_is_refused,
            a_relocation_outside_the_parameter_block_is_refused,
            a_relocation_outside_the_memory_is_refused,
            addresses_may_be_absolute,
            a_large_block_keeps_its_preemption_parameters,
            modules_are_loaded_and_unloaded,
            many_small_launches,
            random_traffic_on_two_queues,
            a_busy_device_can_be_dropped,
        }
    };
    ($make:ident: $($test:ident,)*) => {
        $(#[test]
        fn $test() {
            suite::$test($make);
        })*
    };
}

/// A few microseconds on any CPU.
const SHORT_CYCLES: u64 = 10_000;

fn with_capacity(make: Make, queue_capacity: u32) -> Rig {
    make(Wanted { queue_capacity, ..Wanted::default() })
}

/// A device with one compute unit, so that the order of events is determined.
fn with_one_compute_unit(make: Make) -> Rig {
    make(Wanted { compute_units: 1, ..Wanted::default() })
}

pub fn kernels_compute(make: Make) {
    let mut rig = make(Wanted::default());
    let n = 100_003u32;
    let floats = |scale: f32| (0..n).flat_map(|i| (i as f32 * scale).to_ne_bytes()).collect::<Vec<u8>>();
    let [a, b, out] = [0; 3].map(|_| rig.alloc(u64::from(n) * 4));
    rig.device.write(a, &floats(1.0)).unwrap();
    rig.device.write(b, &floats(0.5)).unwrap();
    let params = vec![Param::At(a), Param::At(b), Param::At(out), Param::U32(n)];
    let completion = rig.run(0, &Launch::new(Kernel::VectorAdd, n.div_ceil(256), params));
    assert_eq!(completion.status, LaunchStatus::Complete);
    assert!(completion.started_ns <= completion.ended_ns);
    let mut sum = vec![0; n as usize * 4];
    rig.device.read(out, &mut sum).unwrap();
    assert!(sum == floats(1.5));
}

pub fn every_block_runs_once(make: Make) {
    let mut rig = make(Wanted { compute_units: 3, queue_capacity: 4 });
    for grid in [[1, 1, 1], [2, 1, 1], [1, 7, 1], [3, 5, 7], [1000, 1, 1], [1, 1, 20_000]] {
        let blocks = grid.iter().product::<u32>();
        let counts = rig.alloc(u64::from(blocks) * 4);
        let launch = Launch { grid, ..Launch::spin(blocks, counts, 100) };
        assert_eq!(rig.run(0, &launch).status, LaunchStatus::Complete);
        assert!(rig.u32s(counts, blocks as usize).iter().all(|count| *count == 1), "{grid:?}");
    }
}

pub fn a_launch_without_blocks_completes(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4);
    for grid in [[0, 1, 1], [1, 0, 1], [5, 5, 0]] {
        let launch = Launch { grid, ..Launch::spin(0, counts, 0) };
        assert_eq!(rig.run(0, &launch).status, LaunchStatus::Complete);
    }
    assert_eq!(rig.u32(counts), 0);
}

pub fn launches_of_a_queue_run_in_order(make: Make) {
    let mut rig = with_capacity(make, 64);
    let (log, gate) = (rig.alloc(1 + 64 * 4 * 4), rig.alloc(4));
    let ids: Vec<_> = (0..64).map(|tag| rig.submit(0, &Launch::note(4, log, tag, gate, 0)).unwrap()).collect();
    for id in ids {
        assert_eq!(rig.wait().launch, id);
    }
    let entries = rig.u32s(log, 1 + 64 * 4);
    let expected: Vec<u32> = (0..64).flat_map(|tag| [tag; 4]).collect();
    assert_eq!(entries[0], 256);
    assert_eq!(entries[1..], expected);
}

pub fn a_full_queue_refuses_launches(make: Make) {
    let mut rig = make(Wanted::default());
    let (log, gate) = (rig.alloc(64), rig.alloc(4));
    let waiting = Launch::note(1, log, 0, gate, 1);
    (0..4).for_each(|_| assert!(rig.submit(1, &waiting).is_ok()));
    assert_eq!(rig.submit(1, &waiting), Err(SubmitError::Full));
    assert!(rig.submit(0, &waiting).is_ok(), "other queues have room");
    rig.device.store_epoch(gate, Epoch(1));
    let first = rig.wait();
    assert_eq!(first.status, LaunchStatus::Complete);
    while rig.device.next_completion().is_none() {
        std::thread::yield_now();
    }
    assert!(rig.submit(1, &waiting).is_ok(), "a slot is free once a completion was taken");
}

pub fn queues_run_side_by_side(make: Make) {
    let mut rig = make(Wanted::default());
    let (log, gate) = (rig.alloc(64), rig.alloc(4));
    let blocked = rig.submit(1, &Launch::note(1, log, 1, gate, 1)).unwrap();
    rig.wait_for(log, 1);
    for _ in 0..10 {
        assert_eq!(rig.run(0, &Launch::note(1, log, 0, gate, 0)).status, LaunchStatus::Complete);
    }
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.wait().launch, blocked);
}

pub fn the_urgent_queue_goes_first(make: Make) {
    let mut rig = with_one_compute_unit(make);
    let (log, gate) = (rig.alloc(256), rig.alloc(4));
    // The first block occupies the compute unit; ten more blocks and a whole launch wait.
    rig.submit(1, &Launch::note(11, log, 1, gate, 1)).unwrap();
    rig.submit(1, &Launch::note(1, log, 2, gate, 0)).unwrap();
    rig.wait_for(log, 1);
    rig.submit(0, &Launch::note(3, log, 7, gate, 1)).unwrap();
    rig.device.store_epoch(gate, Epoch(1));
    (0..3).for_each(|_| assert_eq!(rig.wait().status, LaunchStatus::Complete));
    let entries = rig.u32s(log, 1 + 15);
    assert_eq!(entries[..5], [15, 1, 7, 7, 7], "real-time blocks run at the next block boundary");
    assert_eq!(entries[15], 2);
}

pub fn the_urgent_queue_stops_preemptible_blocks(make: Make) {
    let mut rig = with_one_compute_unit(make);
    let (log, gate, counts) = (rig.alloc(64), rig.alloc(4), rig.alloc(50_000 * 4));
    let preempt = rig.preempt(50_000);
    for _ in 0..10 {
        rig.device.fill(counts, 0, 50_000 * 4).unwrap();
        rig.device.fill(preempt.progress, 0, 50_000).unwrap();
        rig.device.fill(log, 0, 4).unwrap();
        // Blocks so short that a compute unit takes dozens at a time, and so many that even a busy
        // machine does not finish them before the urgent launch.
        let long = rig.submit(1, &Launch::spin_preemptible(50_000, counts, 2500, preempt)).unwrap();
        for _ in 0..5 {
            let urgent = rig.submit(0, &Launch::note(1, log, 0, gate, 0)).unwrap();
            let completion = rig.wait();
            assert_eq!(
                (completion.launch, completion.status),
                (urgent, LaunchStatus::Complete),
                "the real-time launch ends first"
            );
        }
        let completion = rig.wait();
        assert_eq!((completion.launch, completion.status), (long, LaunchStatus::Complete));
        assert!(rig.u32s(counts, 50_000).iter().all(|count| *count == 1), "stopped blocks run later, each once");
    }
}

pub fn an_epoch_raised_before_the_start_evicts(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4000);
    let preempt = rig.preempt(1000);
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    let completion = rig.run(1, &Launch::spin_preemptible(1000, counts, SHORT_CYCLES, preempt));
    assert_eq!(completion.status, LaunchStatus::Evicted);
    assert_eq!(rig.u32(preempt.evicted_word), 1);
    assert!(rig.u32s(counts, 1000).iter().all(|count| *count == 0));
}

pub fn epochs_wrap_around(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4);
    for (issued, word, status) in [
        (u32::MAX, 0, LaunchStatus::Evicted),
        (0, u32::MAX, LaunchStatus::Complete),
        (5, 5, LaunchStatus::Complete),
        (5, 6, LaunchStatus::Evicted),
        (6, 5, LaunchStatus::Complete),
    ] {
        let mut preempt = rig.preempt(1);
        preempt.epoch = Epoch(issued);
        rig.device.store_epoch(preempt.epoch_word, Epoch(word));
        let completion = rig.run(1, &Launch::spin_preemptible(1, counts, 0, preempt));
        assert_eq!(completion.status, status, "issued under {issued}, the word reads {word}");
    }
}

pub fn an_epoch_raised_midway_evicts_and_the_rest_resumes(make: Make) {
    let mut rig = with_one_compute_unit(make);
    let (log, gate) = (rig.alloc(4096), rig.alloc(4));
    let mut preempt = rig.preempt(100);
    rig.submit(1, &Launch::note_preemptible(100, log, 1, gate, 1, preempt)).unwrap();
    rig.submit(1, &Launch::note_preemptible(100, log, 2, gate, 0, preempt)).unwrap();
    // The first block waits for the gate; the blocks behind it must exit.
    rig.wait_for(log, 1);
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    rig.device.store_epoch(gate, Epoch(1));
    (0..2).for_each(|_| assert_eq!(rig.wait().status, LaunchStatus::Evicted));
    assert_eq!(rig.u32(log), 1, "the running block finished, no other ran");

    preempt.epoch = Epoch(1);
    rig.device.fill(preempt.evicted_word, 0, 4).unwrap();
    assert_eq!(rig.run(1, &Launch::note_preemptible(100, log, 3, gate, 1, preempt)).status, LaunchStatus::Complete);
    let entries = rig.u32s(log, 101);
    assert_eq!(entries[..2], [100, 1]);
    assert!(entries[2..].iter().all(|tag| *tag == 3), "the other 99 blocks ran in the resumed launch");
}

pub fn an_epoch_raised_after_the_end_changes_nothing(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(400);
    let preempt = rig.preempt(100);
    let completion = rig.run(1, &Launch::spin_preemptible(100, counts, 10, preempt));
    rig.device.store_epoch(preempt.epoch_word, Epoch(1));
    assert_eq!(completion.status, LaunchStatus::Complete);
    assert_eq!(rig.u32(preempt.evicted_word), 0);
}

pub fn a_launch_resumes_until_it_is_complete(make: Make) {
    const BLOCKS: u32 = 3000;
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(u64::from(BLOCKS) * 4);
    let mut preempt = rig.preempt(BLOCKS.into());
    let mut evictions = 0u64;
    loop {
        rig.device.fill(preempt.evicted_word, 0, 4).unwrap();
        let id = rig.submit(1, &Launch::spin_preemptible(BLOCKS, counts, SHORT_CYCLES, preempt)).unwrap();
        // Each launch gets more time than the one before, because it spends time on each block that
        // has finished already: a microsecond if kernels read epochs in host memory, and more if
        // they are interpreted.
        std::thread::sleep(std::time::Duration::from_micros(evictions % 7 * 150 + evictions * evictions));
        preempt.epoch = preempt.epoch.next();
        rig.device.store_epoch(preempt.epoch_word, preempt.epoch);
        let completion = rig.wait();
        assert_eq!(completion.launch, id);
        match completion.status {
            LaunchStatus::Complete => break,
            LaunchStatus::Evicted => evictions += 1,
            LaunchStatus::Failed | LaunchStatus::Aborted => panic!("a launch failed"),
        }
        assert!(evictions < 100_000, "no progress");
    }
    assert!(rig.u32s(counts, BLOCKS as usize).iter().all(|count| *count == 1), "after {evictions} evictions");
}

pub fn blocks_that_are_done_are_not_run_again(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4000);
    let preempt = rig.preempt(1000);
    let progress: Vec<u8> = (0..1000u32).map(|i| u8::from(i < 300 || i % 3 == 0 || i > 950)).collect();
    rig.device.write(preempt.progress, &progress).unwrap();
    assert_eq!(rig.run(1, &Launch::spin_preemptible(1000, counts, 10, preempt)).status, LaunchStatus::Complete);
    for (i, (count, done)) in rig.u32s(counts, 1000).into_iter().zip(progress).enumerate() {
        assert_eq!(count, u32::from(done == 0), "block {i}");
    }
    assert_eq!(
        rig.run(1, &Launch::spin_preemptible(1000, counts, 10, preempt)).status,
        LaunchStatus::Complete,
        "nothing is left to do"
    );
}

pub fn a_trap_fails_its_launch_and_no_other(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(400_000);
    let trapping = rig.run(1, &Launch::trap_at(100_000, counts, 5, TrapCode::Trap));
    assert_eq!(trapping.status, LaunchStatus::Failed);
    assert!(rig.u32s(counts, 100_000).contains(&0), "the rest of a failed launch is dropped");
    assert_eq!(rig.run(1, &Launch::trap_at(100, counts, 100, TrapCode::Trap)).status, LaunchStatus::Complete);
}

pub fn a_trap_reports_its_location(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(400);
    for (code, kind) in [
        (TrapCode::Trap, FaultKind::Trap),
        (TrapCode::Assert, FaultKind::Assert),
        (TrapCode::Deadlock, FaultKind::Deadlock),
    ] {
        let launch = Launch { grid: [5, 4, 5], ..Launch::trap_at(100, counts, 37, code) };
        let completion = rig.run(1, &launch);
        assert_eq!(completion.status, LaunchStatus::Failed);
        let fault = rig.device.report(completion.launch).expect("a report").fault.expect("a fault");
        assert_eq!(fault.kind, kind);
        assert_eq!(
            (fault.kernel.as_str(), fault.block, fault.thread, fault.line),
            ("trap_at", Some([2, 3, 1]), Some([7, 0, 0]), Some(1234))
        );
        assert_eq!(rig.device.report(completion.launch), None, "a report is taken once");
    }
    let completion = rig.run(1, &Launch::trap_at(100, counts, 100, TrapCode::Trap));
    assert_eq!(rig.device.report(completion.launch), None, "a launch that succeeds has no report");
}

pub fn shared_and_scratch_memory_are_provided(make: Make) {
    let mut rig = make(Wanted::default());
    let out = rig.alloc(400);
    let params = vec![Param::At(out), Param::U32(ARENAS_SHARED_BYTES), Param::U32(rig::ARENAS_SCRATCH_BYTES)];
    let mut launch = Launch::new(Kernel::Arenas, 20, params);
    let refused = rig.run(0, &launch);
    assert_eq!(refused.status, LaunchStatus::Failed, "less shared memory than the kernel declares");
    let fault = rig.device.report(refused.launch).and_then(|report| report.fault).expect("a fault");
    assert!(fault.to_string().starts_with("kernel 'arenas' was not started: less shared memory"), "{fault}");
    launch.shared_bytes = rig.device.info().shared_bytes_max + 1;
    assert_eq!(rig.run(0, &launch).status, LaunchStatus::Failed, "more shared memory than there is");
    launch.shared_bytes = ARENAS_SHARED_BYTES;
    assert_eq!(rig.run(0, &launch).status, LaunchStatus::Complete);
    assert_eq!(rig.u32s(out, 20), [1; 20]);
}

pub fn an_invalid_launch_fails(make: Make) {
    let mut rig = make(Wanted::default());
    let (counts, end) = (rig.alloc(64), rig.device.info().memory_bytes);
    let sound = Launch::spin(1, counts, 0);
    let preempt = rig.preempt(16);
    let mut fails = |launch: &Launch, why: &str| assert_eq!(rig.run(0, launch).status, LaunchStatus::Failed, "{why}");
    fails(&Launch { grid: [u32::MAX; 3], ..sound.clone() }, "uncountable blocks");
    fails(&Launch { params: vec![Param::At(counts)], ..sound.clone() }, "a parameter is missing");
    fails(&Launch { params: vec![Param::U64(0); 513], ..sound.clone() }, "too many parameters");
    fails(&Launch::spin(1, DeviceOffset(end + 1), 0), "an address outside the memory");
    let outside = rig::Preempt { progress: DeviceOffset(end - 15), ..preempt };
    fails(&Launch::spin_preemptible(16, counts, 0, outside), "a progress map that does not fit");
    let crooked = rig::Preempt { evicted_word: DeviceOffset(preempt.evicted_word.0 + 1), ..preempt };
    fails(&Launch::spin_preemptible(16, counts, 0, crooked), "an evicted word that is not aligned");
    let module = std::mem::replace(&mut rig.module, ModuleId(999));
    assert_eq!(rig.run(0, &sound).status, LaunchStatus::Failed, "an unknown module");
    rig.module = module;
    assert_eq!(rig.run(0, &sound).status, LaunchStatus::Complete);
}

pub fn modules_are_loaded_and_unloaded(make: Make) {
    let mut rig = make(Wanted::default());
    let counts = rig.alloc(4);
    let first = rig.module;
    for round in 0..20 {
        let module = rig.load().unwrap();
        assert_ne!(module, first);
        rig.module = module;
        assert_eq!(rig.run(0, &Launch::spin(1, counts, 0)).status, LaunchStatus::Complete);
        rig.device.unload_module(module);
        assert_eq!(rig.run(0, &Launch::spin(1, counts, 0)).status, LaunchStatus::Failed, "unloaded in round {round}");
    }
    rig.module = first;
    assert_eq!(rig.run(0, &Launch::spin(1, counts, 0)).status, LaunchStatus::Complete);
    assert_eq!(rig.u32(counts), 21);
}

pub fn many_small_launches(make: Make) {
    small_launches(make, 100_000);
}

/// As many small launches on two queues, of which none is lost or runs twice.
pub fn small_launches(make: Make, launches: u64) {
    let mut rig = with_capacity(make, 16);
    let counts = rig.alloc(8);
    let launch = Launch::spin(2, counts, 0);
    let (mut submitted, mut completed) = (0, 0);
    while completed < launches {
        while submitted < launches && rig.submit((submitted % 2) as u32, &launch).is_ok() {
            submitted += 1;
        }
        assert_eq!(rig.wait().status, LaunchStatus::Complete);
        completed += 1;
    }
    assert_eq!(rig.u32s(counts, 2), [launches as u32; 2]);
}

pub fn random_traffic_on_two_queues(make: Make) {
    const BLOCKS: u64 = 257;
    let mut rig = make(Wanted { compute_units: 3, queue_capacity: 8 });
    let mut random = Rng::new(0x5eed);
    let counts = rig.alloc(BLOCKS * 4);
    let preempt = rig.preempt(BLOCKS);
    let (mut epoch, mut open) = (Epoch(0), HashMap::new());
    for _ in 0..4000 {
        let urgent = random.below(3) == 0;
        let blocks = 1 + random.below(BLOCKS) as u32;
        let launch = if urgent {
            Launch::spin(blocks, counts, random.below(2000))
        } else {
            // Launches share the map until the queue is empty; each block runs in one of them.
            if !open.values().any(|urgent| !urgent) {
                rig.device.fill(preempt.progress, 0, BLOCKS).unwrap();
                rig.device.fill(preempt.evicted_word, 0, 4).unwrap();
            }
            Launch::spin_preemptible(blocks, counts, random.below(2000), rig::Preempt { epoch, ..preempt })
        };
        let queue = u32::from(!urgent);
        let id = loop {
            match rig.submit(queue, &launch) {
                Ok(id) => break id,
                Err(_) => ends(rig.wait(), &mut open),
            }
        };
        open.insert(id, urgent);
        if random.below(20) == 0 {
            epoch = epoch.next();
            rig.device.store_epoch(preempt.epoch_word, epoch);
        }
    }
    while !open.is_empty() {
        ends(rig.wait(), &mut open);
    }
    assert!(rig.device.next_completion().is_none());
}

pub fn a_busy_device_can_be_dropped(make: Make) {
    for capacity in [1, 4] {
        let mut rig = with_capacity(make, capacity);
        let counts = rig.alloc(40_000);
        let preempt = rig.preempt(10_000);
        let _ = rig.submit(1, &Launch::spin_preemptible(10_000, counts, SHORT_CYCLES, preempt));
        let _ = rig.submit(1, &Launch::spin(100, counts, SHORT_CYCLES));
        let _ = rig.submit(0, &Launch::spin(100, counts, SHORT_CYCLES));
    }
    // A device that never ran anything can be dropped as well.
    drop(make(Wanted::default()));
}

/// Checks that each launch ends once, and that only preemptible launches are evicted.
fn ends(completion: Completion, open: &mut HashMap<LaunchId, bool>) {
    let urgent = open.remove(&completion.launch).expect("a launch ends once");
    assert!(
        completion.status == LaunchStatus::Complete || (completion.status == LaunchStatus::Evicted && !urgent),
        "{completion:?}"
    );
}
