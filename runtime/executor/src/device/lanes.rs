//! Lanes of an executor.

use super::ExecutorDevice;
use crate::memory::ExecutorMemory;
use crate::wire::Order;
use atoll_device::{Lane, Lanes};
use std::ops::Range;

/// Lanes are managed by its pool.
impl Lanes for ExecutorDevice {}

impl ExecutorDevice {
    /// Opens a lane: from now on these compute units serve its queues.
    pub(crate) fn attach_lane(&mut self, lane: &Lane, units: &[u32]) {
        match (&self.memory, units.iter().min(), units.iter().max()) {
            // The rings do not tell which compute units serve the queues of such a device, so it
            // gets a message.
            (ExecutorMemory::Remote(_), Some(first), Some(last)) => {
                let Lane { id, queues, paired_queues } = lane.clone();
                self.executor
                    .send(Order::OpenLane { lane: id.0, queues, paired_queues, units: *first..*last + 1 }, Vec::new());
                self.engine_side.open_lane(lane, &[]);
            }
            _ => self.engine_side.open_lane(lane, units),
        }
    }

    /// Closes a lane whose queues are empty.
    pub(crate) fn detach_lane(&mut self, queues: Range<u32>) {
        if matches!(self.memory, ExecutorMemory::Remote(_)) {
            self.executor.send(Order::CloseLane { queues: queues.clone() }, Vec::new());
        }
        self.engine_side.close_lane(queues);
    }

    /// Whether these queues are empty.
    pub(crate) fn is_idle(&self, queues: Range<u32>) -> bool {
        self.engine_side.is_idle(queues)
    }
}
