//! Opens and closes lanes, on the device and in the scheduler together.

use super::Worker;
use crate::clock;
use crate::error::EngineError;
use crate::statistics::LaneStatistics;
use atoll_core::{LaneConfig, LaneError, LaneId, QueueId};
use atoll_device::{DeviceError, Lane, LaneSpec};
use crossbeam_channel::Sender;

impl Worker {
    /// Whether functions may be loaded into a lane.
    pub(super) fn has_lane(&self, lane: LaneId) -> bool {
        lane == LaneId::DEFAULT || self.lanes.units.contains_key(&lane) && !self.lanes.closing.contains_key(&lane)
    }

    /// The number of compute units on which branches of an invocation can run concurrently; 0 if
    /// the lane has no paired queues.
    pub(super) fn units_of(&self, lane: LaneId) -> u32 {
        let units = self.scheduler.lanes().find(|state| state.config.lane == lane && state.config.paired_queues);
        units.map_or(0, |state| state.config.compute_units)
    }

    pub(super) fn open_lane(&mut self, spec: &LaneSpec) -> Result<Lane, EngineError> {
        if let Some(reason) = &self.lost {
            return Err(EngineError::Device(DeviceError::Lost(reason.clone())));
        }
        self.close_unclosed();
        let lane = self.device.open_lane(spec)?;
        let config = LaneConfig {
            lane: lane.id,
            queues: lane.queues.clone(),
            paired_queues: lane.paired_queues,
            compute_units: spec.units.len() as u32,
        };
        if let Err(error) = self.scheduler.open_lane(&config) {
            // The caller learns why the lane was refused, whatever becomes of it on the device.
            self.close_on_device(lane.id).unwrap_or_else(|error| log_unclosed(lane.id, &error));
            return Err(EngineError::Lane(error));
        }
        tracing::info!(
            device = %self.shared.device.name,
            lane = lane.id.0,
            units = ?spec.units,
            queues = ?lane.queues,
            "lane opened"
        );
        self.lanes.units.insert(lane.id, spec.units.clone());
        Ok(lane)
    }

    /// Begins to close a lane. The caller, if any, is answered when the lane is closed. Its shares
    /// move to the default lane.
    pub(super) fn begin_close_lane(&mut self, lane: LaneId, answer: Option<Sender<Result<(), EngineError>>>) {
        let closing = match self.lanes.closing.contains_key(&lane) {
            true => Err(LaneError::Closing(lane)),
            false => self.scheduler.close_lane(clock::now(), lane, &mut self.pending_actions),
        };
        match (closing, answer) {
            // Sending fails only if the caller no longer waits for the answer; here and below.
            (Err(error), Some(answer)) => drop(answer.send(Err(EngineError::Lane(error)))),
            (Err(error), None) => tracing::error!(lane = lane.0, %error, "a lane without shares stays open"),
            (Ok(()), answer) => {
                self.leave_lane(lane);
                self.lanes.closing.insert(lane, answer);
                self.actions.extend(self.pending_actions.drain(..));
            }
        }
    }

    /// Closes an empty lane on the device.
    pub(super) fn close_lane(&mut self, lane: LaneId) {
        let closed = self.close_on_device(lane);
        tracing::info!(device = %self.shared.device.name, lane = lane.0, "lane closed");
        self.lanes.units.remove(&lane);
        match (self.lanes.closing.remove(&lane).flatten(), closed) {
            (Some(answer), closed) => drop(answer.send(closed.map_err(EngineError::from))),
            (None, Err(error)) => log_unclosed(lane, &error),
            (None, Ok(())) => {}
        }
        self.bind_others();
    }

    /// Closes a lane, which the scheduler no longer knows, on the device. If the device fails, the
    /// queues of the lane stay taken until [`Worker::close_unclosed`] succeeds.
    fn close_on_device(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        let closed = if self.lost.is_some() { Ok(()) } else { self.device.close_lane(lane) };
        if closed.is_err() {
            self.lanes.unclosed.insert(lane);
        }
        closed
    }

    /// Tries again to close lanes that the device failed to close, before another one is opened.
    fn close_unclosed(&mut self) {
        for lane in std::mem::take(&mut self.lanes.unclosed) {
            self.close_on_device(lane).unwrap_or_else(|error| log_unclosed(lane, &error));
        }
    }

    pub(super) fn lane_statistics(&self) -> Vec<LaneStatistics> {
        let depth = |queue| self.scheduler.device_queue_depth(QueueId(queue)) as u64;
        let lanes = self.scheduler.lanes().map(|state| LaneStatistics {
            lane: state.config.lane,
            units: self
                .lanes
                .units
                .get(&state.config.lane)
                .cloned()
                .unwrap_or_else(|| (0..state.config.compute_units).collect()),
            invocations: state.tasks as u64,
            queue_depths: state.config.queues.map(depth).collect(),
            is_closing: state.is_closing,
        });
        lanes.collect()
    }
}

fn log_unclosed(lane: LaneId, error: &DeviceError) {
    tracing::error!(lane = lane.0, %error, "the device cannot close a lane");
}
