//! Lanes of the host device.
#![cfg(target_arch = "x86_64")]

#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "the suite is shared by the tests of all devices"
)]
#[macro_use]
#[path = "../../../device/tests/suite/mod.rs"]
mod suite;

use atoll_core::{DeviceOffset, Epoch, LaneId};
use atoll_device::{DeviceError, Lane, LaneSpec, LaunchStatus};
use atoll_device_host::{HostConfig, HostDevice};
use std::collections::BTreeSet;
use suite::rig::{Launch, Rig, kernels};

fn rig(compute_units: u32) -> Rig {
    let config = HostConfig {
        compute_units,
        memory_bytes: 16 << 20,
        constants_bytes: 1 << 20,
        cpus: vec![],
        ..HostConfig::default()
    };
    Rig::new(Box::new(HostDevice::start(config).expect("a host device")), kernels())
}

fn open(rig: &mut Rig, units: &[u32]) -> Lane {
    rig.device.open_lane(&LaneSpec { units: units.to_vec(), queues: 2 }).expect("a lane")
}

/// The compute units that ran blocks since the last call.
fn units_used(rig: &mut Rig) -> BTreeSet<u32> {
    let mut units = BTreeSet::new();
    assert_eq!(
        rig.device.take_chunks(u64::MAX, &mut |_, chunk| units.extend([chunk.unit])),
        0,
        "chunks were overwritten"
    );
    units
}

/// Starts blocks in a queue, one on each compute unit of its lane, that wait until a gate is
/// opened.
fn hold(rig: &mut Rig, queue: u32, blocks: u32, gate: DeviceOffset) -> DeviceOffset {
    let (log, preempt) = (rig.alloc(4096), rig.preempt(blocks.into()));
    let launch = Launch { may_run_again: true, ..Launch::note_preemptible(blocks, log, 1, gate, 1, preempt) };
    rig.submit(queue, &launch).expect("room");
    rig.wait_for(log, blocks);
    log
}

#[test]
fn blocks_of_a_lane_run_on_its_compute_units_only() {
    let mut rig = rig(70);
    let counts = rig.alloc(4 * 500);
    let wanted = [3, 63, 64, 69];
    let lane = open(&mut rig, &wanted);
    units_used(&mut rig);
    let mut used = BTreeSet::new();
    for round in 1..=200 {
        for queue in lane.queues.clone() {
            assert_eq!(rig.run(queue, &Launch::spin(500, counts, 50_000)).status, LaunchStatus::Complete);
        }
        let queues = lane.queues.len() as u32;
        assert!(
            rig.u32s(counts, 500).iter().all(|count| *count == queues * round),
            "each block runs once in each queue"
        );
        used.extend(units_used(&mut rig));
        assert!(used.iter().all(|unit| wanted.contains(unit)), "{used:?} ran blocks of a lane of {wanted:?}");
        if used.len() == wanted.len() {
            return;
        }
    }
    panic!("only {used:?} of {wanted:?} ever ran anything");
}

#[test]
fn a_busy_lane_does_not_delay_another() {
    let mut rig = rig(2);
    let [first, second] = [[0], [1]].map(|units| open(&mut rig, &units));
    let (gate, counts) = (rig.alloc(4), rig.alloc(4 * 50));
    // Not preemptible, so they keep the compute unit.
    let log = rig.alloc(4096);
    rig.submit(second.queues.start, &Launch::note(3, log, 1, gate, 1)).expect("room");
    rig.wait_for(log, 1);
    for queue in first.queues.clone() {
        assert_eq!(
            rig.run(queue, &Launch::spin(50, counts, 1_000)).status,
            LaunchStatus::Complete,
            "although the gate is closed"
        );
    }
    // Launches in the default lane run on the remaining compute unit.
    assert_eq!(rig.run(1, &Launch::spin(50, counts, 1_000)).status, LaunchStatus::Complete);
    assert_eq!(rig.u32s(counts, 50), vec![3; 50]);
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.wait().status, LaunchStatus::Complete);
    assert_eq!(rig.u32(log), 3);
}

#[test]
fn paired_queues_run_side_by_side_without_interrupting_others() {
    let mut rig = rig(2);
    let both = open(&mut rig, &[0, 1]);
    assert!(both.paired_queues && both.queues.len() == 4 && rig.device.info().paired_queues);
    for (queue, paired_queue) in
        [(0, 2), (1, 3), (both.queues.start, both.queues.start + 2), (both.queues.start + 1, both.queues.start + 3)]
    {
        let gate = rig.alloc(4);
        // Each block occupies a compute unit, so both begin only if they run side by side.
        let logs = [queue, paired_queue].map(|queue| hold(&mut rig, queue, 1, gate));
        rig.device.store_epoch(gate, Epoch(1));
        assert_eq!(
            [rig.wait(), rig.wait()].map(|completion| completion.reexecuted_blocks),
            [0, 0],
            "neither interrupted the other"
        );
        assert_eq!(logs.map(|log| rig.u32(log)), [1, 1]);
    }
}

#[test]
fn urgent_blocks_interrupt_their_own_lane_only() {
    let mut rig = rig(2);
    let [first, second] = [[0], [1]].map(|units| open(&mut rig, &units));
    let gate = rig.alloc(4);
    let logs = [&first, &second].map(|lane| hold(&mut rig, lane.queues.end - 1, 1, gate));
    for begun in 2..10 {
        let (log, open) = (rig.alloc(64), rig.alloc(4));
        let urgent = Launch::note(1, log, 7, open, 0);
        assert_eq!(rig.run(first.queues.start, &urgent).status, LaunchStatus::Complete, "although the gate is closed");
        rig.wait_for(logs[0], begun);
    }
    rig.device.store_epoch(gate, Epoch(1));
    let mut again = [rig.wait(), rig.wait()].map(|completion| completion.reexecuted_blocks);
    again.sort_unstable();
    assert_eq!(again, [0, 8], "the other lane's block was started once");
}

#[test]
fn lanes_may_share_a_compute_unit_and_first_queues_come_first() {
    let mut rig = rig(1);
    let lane = open(&mut rig, &[0]);
    let gate = rig.alloc(4);
    let log = hold(&mut rig, 1, 1, gate);
    let (mark, counts) = (rig.alloc(64), rig.alloc(4));
    let urgent = Launch::note(1, mark, 7, gate, 0);
    assert_eq!(
        rig.run(lane.queues.start, &urgent).status,
        LaunchStatus::Complete,
        "a first queue comes before the default lane's second one"
    );
    rig.wait_for(log, 2);
    rig.submit(lane.queues.start + 1, &Launch::spin(1, counts, 0)).expect("room");
    rig.device.store_epoch(gate, Epoch(1));
    let ends = [rig.wait(), rig.wait()].map(|completion| completion.status);
    assert_eq!(ends, [LaunchStatus::Complete; 2]);
}

#[test]
fn a_lane_can_be_opened_and_closed_a_thousand_times() {
    let mut rig = rig(2);
    let counts = rig.alloc(4 * 4);
    let mut last = LaneId::DEFAULT;
    for round in 1..=1_000 {
        let lane = open(&mut rig, &[round % 2]);
        assert!(lane.id > last && lane.queues == (4..6), "{lane:?}");
        last = lane.id;
        units_used(&mut rig);
        assert_eq!(rig.run(lane.queues.start, &Launch::spin(4, counts, 0)).status, LaunchStatus::Complete);
        assert_eq!(units_used(&mut rig), BTreeSet::from([round % 2]));
        rig.device.close_lane(lane.id).expect("nothing is in it");
    }
    assert_eq!(rig.u32s(counts, 4), [1_000; 4]);
    assert_eq!(rig.run(1, &Launch::spin(4, counts, 0)).status, LaunchStatus::Complete);
}

#[test]
fn impossible_lanes_are_refused_with_a_reason() {
    let mut rig = rig(2);
    let lane = open(&mut rig, &[1]);
    let why = |answer: Result<(), DeviceError>| match answer {
        Err(DeviceError::Lanes(why)) => why,
        other => panic!("{other:?}"),
    };
    let gate = rig.alloc(4);
    hold(&mut rig, lane.queues.start, 1, gate);
    assert_eq!(why(rig.device.close_lane(lane.id)), "lane 1 holds launches");
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.wait().status, LaunchStatus::Complete);
    rig.device.close_lane(lane.id).expect("nothing is in it");
    assert_eq!(why(rig.device.close_lane(lane.id)), "there is no lane 1");
    let opened = rig.device.open_lane(&LaneSpec { units: vec![0, 2], queues: 2 }).map(drop);
    assert_eq!(why(opened), "there is no compute unit 2; the device has 2, numbered from 0");
}
