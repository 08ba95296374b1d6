//! Lanes of a GPU: streams on partitions of its compute units.

use super::device::CudaDevice;
use super::error::GpuError;
use super::queue::Queue;
use atoll_core::{LaneId, QueueId};
use atoll_cuda::{Context, Partition};
use atoll_device::{DeviceError, Lane, LaneSpec, Lanes};
use std::ops::Range;
use std::sync::Arc;

impl Lanes for CudaDevice {
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

impl CudaDevice {
    /// Creates the streams of a lane on a partition of its compute units, which must be a range.
    pub(super) fn attach_lane(&mut self, lane: &Lane, units: &[u32]) -> Result<(), DeviceError> {
        let (Some(first), Some(last)) = (units.iter().min(), units.iter().max()) else {
            return Err(DeviceError::Lanes("a lane needs at least one compute unit".to_owned()));
        };
        let partition = Partition::range(&self.context, *first..*last + 1).map_err(GpuError::from)?;
        let opened = open_queues(
            &self.context,
            &mut self.queues,
            lane,
            Some(&partition),
            self.highest_priority,
            self.queue_capacity,
        );
        Ok(opened.inspect_err(|_| self.detach_lane(lane.queues.clone()))?)
    }

    /// Drops the streams of a lane; its partition is freed with the last of them.
    pub(super) fn detach_lane(&mut self, queues: Range<u32>) {
        self.segments.forget();
        self.queues[queues.start as usize..queues.end as usize].fill_with(|| None);
    }

    /// # Panics
    /// If the device has no such queue.
    pub(super) fn queue(&mut self, queue: QueueId) -> &mut Queue {
        self.queues[queue.0 as usize].as_mut().expect("launches are only submitted to queues of open lanes")
    }
}

/// Creates the queues of a lane; paired queues have the priorities of the first half.
pub(super) fn open_queues(
    context: &Arc<Context>,
    queues: &mut [Option<Queue>],
    lane: &Lane,
    partition: Option<&Arc<Partition>>,
    highest: i32,
    capacity: u32,
) -> Result<(), GpuError> {
    let count = lane.queues.len() as u32 / if lane.paired_queues { 2 } else { 1 };
    for (place, queue) in (0_u32..).zip(lane.queues.clone()) {
        let priority = stream_priority(place % count, count, highest);
        queues[queue as usize] = Some(Queue::new(context, partition, priority, capacity)?);
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
