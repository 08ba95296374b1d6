//! Lanes of a GPU: streams with masks of compute units, in this process and in an executor.

use super::executor::executor;
use super::suite::rig::{Launch, Rig, Wanted};
use super::{code, config, device};
use atoll_core::Epoch;
use atoll_device::{DeviceError, Lane, LaneSpec, LaunchStatus};
use atoll_executor::ExecutorPool;

fn here() -> Rig {
    Rig::new(Box::new(device(Wanted::default())), code())
}

fn in_an_executor() -> Rig {
    let pool = ExecutorPool::new(executor(config(Wanted::default()))).expect("an executor");
    Rig::new(Box::new(pool), code())
}

fn open(rig: &mut Rig, units: &[u32]) -> Result<Lane, DeviceError> {
    rig.device.open_lane(&LaneSpec { units: units.to_vec(), queues: 2 })
}

fn why<T: std::fmt::Debug>(answer: Result<T, DeviceError>) -> String {
    match answer {
        Err(DeviceError::Lanes(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn a_busy_lane_does_not_delay_another(mut rig: Rig) {
    let [first, second] = [&[0, 3], &[1, 2]].map(|units| open(&mut rig, units).expect("a lane"));
    assert!(
        first.paired_queues && first.queues.len() == 4 && first.queues.end == second.queues.start,
        "{first:?} {second:?}"
    );
    let (log, gate, counts) = (rig.alloc(1 << 12), rig.alloc(4), rig.alloc(4 * 20));
    // More blocks than the lane can hold at once: those that wait for the gate occupy all of it.
    let blocks = 64;
    rig.submit(second.queues.start, &Launch::note(blocks, log, 1, gate, 1)).expect("room");
    while rig.u32(log) == 0 {
        std::thread::yield_now();
    }
    for queue in first.queues.clone() {
        assert_eq!(
            rig.run(queue, &Launch::spin(20, counts, 100)).status,
            LaunchStatus::Complete,
            "although the gate is closed"
        );
    }
    assert!(why(rig.device.close_lane(second.id)).contains("holds launches"));
    rig.device.store_epoch(gate, Epoch(1));
    assert_eq!(rig.wait().status, LaunchStatus::Complete);
    assert_eq!((rig.u32(log), rig.u32s(counts, 20)), (blocks, vec![4; 20]));
    rig.device.close_lane(second.id).expect("nothing is in it");
    rig.device.close_lane(first.id).expect("nothing is in it");
    assert_eq!(rig.run(1, &Launch::spin(20, counts, 100)).status, LaunchStatus::Complete);
}

#[test]
fn a_busy_lane_does_not_delay_another_here() {
    a_busy_lane_does_not_delay_another(here());
}

#[test]
fn a_busy_lane_does_not_delay_another_in_an_executor() {
    a_busy_lane_does_not_delay_another(in_an_executor());
}

#[test]
fn invalid_lanes_are_refused() {
    let mut rig = here();
    let all = rig.device.info().compute_units;
    assert!(why(open(&mut rig, &[all])).contains(&format!("there is no compute unit {all}")));
    assert!(why(open(&mut rig, &[])).contains("at least one compute unit"));
    assert!(why(open(&mut rig, &[1, 1])).contains("listed twice"));
    let lane = open(&mut rig, &[0]).expect("a lane");
    rig.device.close_lane(lane.id).expect("nothing is in it");
    assert!(why(rig.device.close_lane(lane.id)).contains("there is no lane"));
}

#[test]
fn a_lane_can_be_opened_often() {
    let mut rig = here();
    let counts = rig.alloc(16);
    for round in 0..20_u32 {
        let lane = open(&mut rig, &[round % 8]).expect("a lane");
        assert_eq!(rig.run(lane.queues.start, &Launch::spin(4, counts, 0)).status, LaunchStatus::Complete);
        rig.device.close_lane(lane.id).expect("nothing is in it");
    }
    assert_eq!(rig.u32s(counts, 4), [20; 4]);
}
