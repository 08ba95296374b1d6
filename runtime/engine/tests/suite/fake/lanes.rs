//! Lanes of the fake device: one at a time, with one queue that nothing runs in.

use super::{FakeDevice, QUEUES, Refusal};
use atoll_core::LaneId;
use atoll_device::{DeviceError, Lane, LaneSpec, Lanes};

/// The lane that is open, and the id of the last one.
#[derive(Default)]
pub(super) struct OneLane {
    open: Option<LaneId>,
    last: u32,
}

impl Lanes for FakeDevice {
    fn open_lane(&mut self, _: &LaneSpec) -> Result<Lane, DeviceError> {
        self.check()?;
        if let Some(open) = self.lane.open {
            return Err(DeviceError::Lanes(format!("lane {} has the only queue", open.0)));
        }
        self.lane.last += 1;
        let id = LaneId(self.lane.last);
        self.lane.open = Some(id);
        Ok(Lane { id, queues: QUEUES..QUEUES + 1, paired_queues: false })
    }

    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        if self.refuses(Refusal::Lane) {
            return Err(DeviceError::Lanes(format!("the test keeps lane {}", lane.0)));
        }
        assert_eq!(self.lane.open.take(), Some(lane), "each lane is closed once");
        Ok(())
    }
}
