//! Lanes: groups of device queues that are bound to a set of compute units.

use crate::DeviceError;
use atoll_core::{LaneId, QueueId};
use std::ops::Range;

/// A lane to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// The compute units whose blocks its queues give out, by index. Not empty.
    pub units: Vec<u32>,
    /// Device queues that it has; the first one is the most urgent of the lane.
    pub queues: u32,
}

/// An open lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name for [`Lanes::close_lane`].
    pub id: LaneId,
    /// The device queues that belong to it.
    pub queues: Range<u32>,
}

impl Lane {
    /// Whether a device queue belongs to it.
    pub fn has(&self, queue: QueueId) -> bool {
        self.queues.contains(&queue.0)
    }
}

/// Divides the compute units of a device. A device that cannot be divided implements nothing of it: all its queues then are one lane of all compute units.
pub trait Lanes {
    /// Opens a lane.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] if the device cannot be divided, has no such compute units, or has too few free queues.
    fn open_lane(&mut self, _spec: &LaneSpec) -> Result<Lane, DeviceError> {
        Err(DeviceError::Lanes("this device cannot be divided into lanes".to_owned()))
    }

    /// Closes a lane whose queues hold no launches.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] if there is no such lane or one of its queues holds launches.
    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        Err(DeviceError::Lanes(format!("there is no lane {}: this device cannot be divided into lanes", lane.0)))
    }
}
