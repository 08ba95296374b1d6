//! Lanes of a GPU: streams on partitions of its compute units, in this process and in an executor.

use super::executor::executor;
use super::suite::rig::{Launch, Rig, Wanted};
use super::{KERNELS, config, device};
use atoll_core::{Epoch, LaneId};
use atoll_device::{DeviceError, Lane, LaneSpec, LaneUnits, LaunchStatus};
use atoll_executor::ExecutorPool;
use std::ops::Range;

fn here() -> Rig {
    Rig::new(Box::new(device(Wanted::default())), KERNELS.as_bytes())
}

fn in_an_executor() -> Rig {
    let pool = ExecutorPool::new(executor(config(Wanted::default()))).expect("an executor");
    Rig::new(Box::new(pool), KERNELS.as_bytes())
}

/// Size of a group of compute units.
fn step(rig: &Rig) -> u32 {
    match rig.device.info().lane_units {
        LaneUnits::Ranges { step } => step,
        other => panic!("lanes have {other:?}"),
    }
}

fn open(rig: &mut Rig, units: Range<u32>) -> Result<Lane, DeviceError> {
    rig.device.open_lane(&LaneSpec { units: units.collect(), queues: 2 })
}

fn why<T: std::fmt::Debug>(answer: Result<T, DeviceError>) -> String {
    match answer {
        Err(DeviceError::Lanes(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn a_busy_lane_does_not_delay_another(mut rig: Rig) {
    let step = step(&rig);
    let [first, second] = [0..step, step..2 * step].map(|units| open(&mut rig, units).expect("a lane"));
    assert!(
        first.paired_queues && first.queues.len() == 4 && first.queues.end == second.queues.start,
        "{first:?} {second:?}"
    );
    let (log, gate, counts) = (rig.alloc(1 << 16), rig.alloc(4), rig.alloc(4 * 50));
    // More blocks than the lane can hold at once: those that wait for the gate occupy all of it.
    let blocks = step * 64;
    rig.submit(second.queues.start, &Launch::note(blocks, log, 1, gate, 1)).expect("room");
    while rig.u32(log) == 0 {
        std::thread::yield_now();
    }
    for queue in first.queues.clone() {
        assert_eq!(
            rig.run(queue, &Launch::spin(50, counts, 1_000)).status,
            LaunchStatus::Complete,
            "although the gate is closed"
        );
    }
    assert!(why(rig.device.close_lane(second.id)).contains("holds launches"));
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.wait().status, LaunchStatus::Complete);
    assert_eq!((rig.u32(log), rig.u32s(counts, 50)), (blocks, vec![4; 50]));
    rig.device.close_lane(second.id).expect("nothing is in it");
    rig.device.close_lane(first.id).expect("nothing is in it");
    assert_eq!(rig.run(1, &Launch::spin(50, counts, 1_000)).status, LaunchStatus::Complete);
}

#[test]
fn a_busy_lane_does_not_delay_another_here() {
    a_busy_lane_does_not_delay_another(here());
}

#[test]
fn a_busy_lane_does_not_delay_another_in_an_executor() {
    a_busy_lane_does_not_delay_another(in_an_executor());
}

fn invalid_lanes_are_refused(mut rig: Rig) {
    let (step, all) = (step(&rig), rig.device.info().compute_units);
    let end = all - all % step;
    for units in [0..1, 1..1 + step, 0..step + 1] {
        let expected = format!("a range that begins and ends at multiples of {step}, up to {end}");
        let refused = why(open(&mut rig, units.clone()));
        assert!(step == 1 || refused.contains(&expected), "{units:?}: {refused}");
    }
    assert!(why(open(&mut rig, 0..all + step)).contains(&format!("there is no compute unit {all}")));
    assert!(why(rig.device.open_lane(&LaneSpec { units: vec![], queues: 2 })).contains("at least one compute unit"));
    assert!(why(rig.device.close_lane(LaneId(1))).contains("there is no lane 1"));
    assert!(why(rig.device.close_lane(LaneId::DEFAULT)).contains("the default lane cannot be closed"));
    let lane = open(&mut rig, 0..step).expect("a lane");
    rig.device.close_lane(lane.id).expect("nothing is in it");
    assert!(why(rig.device.close_lane(lane.id)).contains("there is no lane"));
}

#[test]
fn invalid_lanes_are_refused_here() {
    invalid_lanes_are_refused(here());
}

#[test]
fn invalid_lanes_are_refused_in_an_executor() {
    invalid_lanes_are_refused(in_an_executor());
}

fn a_lane_can_be_opened_often(mut rig: Rig) {
    let step = step(&rig);
    let counts = rig.alloc(4 * 4);
    let first = open(&mut rig, 0..step).expect("a lane");
    rig.device.close_lane(first.id).expect("nothing is in it");
    // A lane is freed when it is closed, not later by another thread.
    for _ in 0..100 {
        let lane = open(&mut rig, 0..step).expect("a lane");
        rig.device.close_lane(lane.id).expect("nothing is in it");
    }
    for round in 0..100_u32 {
        let begin = (round % 2) * step;
        let lane = open(&mut rig, begin..begin + step).expect("a lane");
        assert_eq!(lane.queues, first.queues);
        assert_eq!(rig.run(lane.queues.start, &Launch::spin(4, counts, 0)).status, LaunchStatus::Complete);
        rig.device.close_lane(lane.id).expect("nothing is in it");
    }
    assert_eq!(rig.u32s(counts, 4), [100; 4]);
}

#[test]
fn a_lane_can_be_opened_often_here() {
    a_lane_can_be_opened_often(here());
}

#[test]
fn a_lane_can_be_opened_often_in_an_executor() {
    a_lane_can_be_opened_often(in_an_executor());
}

#[test]
fn a_partition_cannot_be_divided() {
    let device = atoll_device_cuda::CudaDevice::start(&atoll_device_cuda::CudaConfig {
        part: Some(atoll_device_cuda::GpuPart::Of(2)),
        ..config(Wanted::default())
    });
    let mut rig = Rig::new(Box::new(device.expect("a part of a GPU")), KERNELS.as_bytes());
    assert_eq!(rig.device.info().lane_units, LaneUnits::None, "a partition cannot be divided");
    assert!(why(open(&mut rig, 0..2)).contains("cannot be divided"));
}
