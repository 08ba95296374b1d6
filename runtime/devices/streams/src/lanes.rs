//! Lanes: streams on sets of compute units.

use crate::device::StreamDevice;
use crate::driver::Driver;
use crate::error::device_error;
use crate::queue::Queue;
use atoll_core::{LaneId, QueueId};
use atoll_device::{DeviceError, Lane, LaneSpec, Lanes};
use std::ops::Range;
use std::sync::Arc;

impl<D: Driver> Lanes for StreamDevice<D> {
    fn open_lane(&mut self, spec: &LaneSpec) -> Result<Lane, DeviceError> {
        self.alive()?;
        let lane = self.lanes.open(spec)?;
        let opened = self.attach_lane(&lane, &spec.units);
        opened.map(|()| lane.clone()).inspect_err(|_| self.lanes.close(lane.id))
    }

    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        let queues = self.lanes.find(lane)?.queues.clone();
        if queues.clone().any(|queue| self.queue(QueueId(queue)).is_busy()) {
            return Err(DeviceError::Lanes(format!("lane {} holds launches", lane.0)));
        }
        self.detach_lane(queues);
        self.lanes.close(lane);
        Ok(())
    }
}

impl<D: Driver> StreamDevice<D> {
    /// Creates the streams of a lane on a set of compute units.
    pub(crate) fn attach_lane(&mut self, lane: &Lane, units: &[u32]) -> Result<(), DeviceError> {
        if units.is_empty() {
            return Err(DeviceError::Lanes("a lane needs at least one compute unit".to_owned()));
        }
        let units = D::units(&self.context, units)?;
        let (highest, capacity) = (self.highest_priority, self.queue_capacity);
        let opened = open_queues::<D>(&self.context, &mut self.queues, lane, Some(&units), highest, capacity);
        opened.map_err(|error| device_error(&error)).inspect_err(|_| self.detach_lane(lane.queues.clone()))
    }

    /// Drops the streams of a lane.
    pub(crate) fn detach_lane(&mut self, queues: Range<u32>) {
        self.queues[queues.start as usize..queues.end as usize].fill_with(|| None);
    }

    /// # Panics
    /// If the device has no such queue.
    pub(crate) fn queue(&mut self, queue: QueueId) -> &mut Queue<D> {
        self.queues[queue.0 as usize].as_mut().expect("launches are only submitted to queues of open lanes")
    }
}

/// Creates the queues of a lane; paired queues have the priorities of the first half.
pub(crate) fn open_queues<D: Driver>(
    context: &Arc<D::Context>,
    queues: &mut [Option<Queue<D>>],
    lane: &Lane,
    units: Option<&D::Units>,
    highest: i32,
    capacity: u32,
) -> Result<(), D::Error> {
    let count = lane.queues.len() as u32 / if lane.paired_queues { 2 } else { 1 };
    for (place, queue) in (0_u32..).zip(lane.queues.clone()) {
        let priority = stream_priority(place % count, count, highest);
        queues[queue as usize] = Some(Queue::<D>::new(context, units, priority, capacity)?);
    }
    Ok(())
}

/// Queue 0 has the highest priority, the last one the lowest, 0.
fn stream_priority(queue: u32, queues: u32, highest: i32) -> i32 {
    let below = i64::from(queues.saturating_sub(1).max(1));
    let priority = i64::from(highest) * (below - i64::from(queue)).max(0) / below;
    priority as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_queue_is_the_most_urgent() {
        let priorities =
            |queues, highest| (0..queues).map(|queue| stream_priority(queue, queues, highest)).collect::<Vec<_>>();
        assert_eq!(priorities(1, -5), [-5]);
        assert_eq!(priorities(2, -5), [-5, 0]);
        assert_eq!(priorities(3, -5), [-5, -2, 0]);
        assert_eq!(priorities(2, 0), [0, 0]);
    }
}
