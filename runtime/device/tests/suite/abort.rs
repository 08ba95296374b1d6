//! Aborted launches, and the time that launches are charged.

use super::Make;
use super::rig::{Kernel, Launch, Rig, Wanted};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{Completion, LaunchStatus};

/// A launch whose first block never ends. Kind 0 checks the halt word, kind 1 does not, and kind 2
/// spends most of its time in a helper function.
fn endless(blocks: u32, counts: DeviceOffset, kind: u32) -> Launch {
    Launch { kernel: Kernel::ForeverAt, ..Launch::fault_at(blocks, counts, 0, kind, 0) }
}

/// Submits a launch, waits until its first block runs, and aborts it.
fn abort_running(rig: &mut Rig, queue: u32, launch: &Launch, counts: DeviceOffset) -> Completion {
    let id = rig.submit(queue, launch).expect("room");
    rig.wait_for(counts, 1);
    rig.device.abort(QueueId(queue), id);
    let completion = rig.wait();
    assert_eq!(completion.launch, id);
    completion
}

pub fn an_aborted_launch_ends_and_no_other(make: Make) {
    let mut rig = make(Wanted::default());
    for kind in [0, 1, 2] {
        for queue in [0, 1] {
            let (counts, others) = (rig.alloc(400), rig.alloc(400));
            let completion = abort_running(&mut rig, queue, &endless(100, counts, kind), counts);
            assert_eq!(completion.status, LaunchStatus::Aborted, "kind {kind}");
            assert!(completion.busy_ns > 0 && completion.started_ns <= completion.ended_ns, "{completion:?}");
            let report = rig.device.report(completion.launch);
            assert_eq!(report.and_then(|report| report.fault), None, "an aborted launch has no fault");
            assert_eq!(rig.run(queue, &Launch::spin(100, others, 10)).status, LaunchStatus::Complete);
            assert_eq!(rig.u32s(others, 100), [1; 100]);
        }
    }
}

pub fn a_launch_is_aborted_although_every_compute_unit_is_busy(make: Make) {
    let mut rig = make(Wanted { compute_units: 1, ..Wanted::default() });
    let (counts, waits) = (rig.alloc(400), rig.alloc(400));
    let urgent = rig.submit(0, &endless(1, counts, 1)).expect("room");
    rig.wait_for(counts, 1);
    let [first, second] = [(); 2].map(|()| rig.submit(1, &Launch::spin(100, waits, 10)).expect("room"));
    rig.device.abort(QueueId(1), first);
    let aborted = rig.wait();
    assert_eq!((aborted.launch, aborted.status, aborted.busy_ns), (first, LaunchStatus::Aborted, 0));
    assert_eq!(rig.u32s(waits, 100), [0; 100], "it never ran");
    rig.device.abort(QueueId(0), urgent);
    let ends = [rig.wait(), rig.wait()].map(|end| (end.launch, end.status));
    assert_eq!(ends, [(urgent, LaunchStatus::Aborted), (second, LaunchStatus::Complete)]);
    assert_eq!(rig.u32s(waits, 100), [1; 100]);
}

pub fn only_the_oldest_launch_in_flight_is_aborted(make: Make) {
    let mut rig = make(Wanted::default());
    let (log, gate) = (rig.alloc(256), rig.alloc(4));
    let over = rig.run(1, &Launch::note(1, log, 0, gate, 0)).launch;
    let [oldest, behind] = [1, 2].map(|tag| rig.submit(1, &Launch::note(1, log, tag, gate, 1)).expect("room"));
    for launch in [over, behind, LaunchId(u64::MAX)] {
        rig.device.abort(QueueId(1), launch);
    }
    rig.device.store_epoch(gate, Epoch(1));
    let ends = [rig.wait(), rig.wait()].map(|end| (end.launch, end.status));
    assert_eq!(ends, [(oldest, LaunchStatus::Complete), (behind, LaunchStatus::Complete)]);
}

/// Aborts launches at random moments: before, while and after they run. Launches that were not
/// aborted are correct, and their times sum up to the device's.
pub fn random_aborts_leave_other_launches_correct_and_accounted(make: Make) {
    for seed in 0..8 {
        let (mut rng, mut rig) = (Rng::new(seed), make(Wanted { compute_units: 3, queue_capacity: 1 }));
        let (mut busy_ns, mut aborted) = (0, 0);
        for round in 0..150 {
            let (queue, blocks) = (rng.below(2) as u32, 1 + rng.below(40) as u32);
            let counts = rig.alloc(160);
            let launch = rig.submit(queue, &Launch::spin(blocks, counts, rng.below(20_000))).expect("room");
            if rng.one_in(2) {
                let pause = rng.below(2_000);
                (0..pause).for_each(|_| std::hint::spin_loop());
                rig.device.abort(QueueId(queue), launch);
            }
            let end = rig.wait();
            busy_ns += end.busy_ns;
            match end.status {
                LaunchStatus::Complete => {
                    assert!(rig.u32s(counts, blocks as usize).iter().all(|&n| n == 1), "seed {seed}, round {round}")
                }
                LaunchStatus::Aborted => aborted += 1,
                other => panic!("seed {seed}, round {round}: {other:?}"),
            }
        }
        assert!(aborted > 0, "seed {seed}: every launch was over too soon");
        assert_eq!(rig.device.busy_ns(), Some(busy_ns), "seed {seed}");
    }
}
