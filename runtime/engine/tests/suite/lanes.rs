//! Lanes that a device fails to close.

use crate::fake::{FakeDevice, Refusal};
use atoll_core::LaneId;
use atoll_device::LaneSpec;
use atoll_engine::{Engine, EngineConfig};

#[test]
fn a_lane_that_the_device_fails_to_close_is_closed_before_the_next_one_opens() {
    let (device, controls) = FakeDevice::new(0);
    let engine = Engine::start(device, EngineConfig::default()).expect("an engine");
    let handle = engine.handle();
    let open = || handle.open_lane(LaneSpec { units: vec![0], queues: 1 });
    let first = open().expect("a lane").id;
    controls.refuse(Refusal::Lane, 0);
    let refused = handle.close_lane(first).expect_err("the device refuses").to_string();
    assert!(refused.contains("the test keeps lane 1"), "{refused}");
    assert_eq!(handle.statistics().device.lanes.len(), 1, "nothing runs in it any more");
    let refused = open().expect_err("the queue is taken").to_string();
    assert!(refused.contains("lane 1 has the only queue"), "{refused}");
    controls.accept();
    assert_eq!(open().expect("the queue is free again").id, LaneId(2));
    handle.close_lane(LaneId(2)).expect("it is open");
    engine.shutdown();
}
