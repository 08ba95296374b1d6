//! Starting a device: its queues, its completion thread, and the place of its epoch words.

use crate::completion::{Common, Poller};
use crate::device::StreamDevice;
use crate::driver::Driver;
use crate::error::device_error;
use crate::lanes::open_queues;
use crate::queue::Queue;
use crate::words::{EpochPlace, EpochWords};
use atoll_core::LaneId;
use atoll_device::doorbell::FdBell;
use atoll_device::link::LinkShape;
use atoll_device::{DeviceError, DeviceFacts, DeviceInfo, Lane, LaneTable};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// The parts from which a device is started.
#[derive(Debug)]
pub struct StartStreams<D: Driver> {
    /// The device in use.
    pub context: Arc<D::Context>,
    /// Its memory, which is zeroed now if this process owns it.
    pub memory: D::Memory,
    /// Whether this process owns the memory. If not, another process makes all transfers, and
    /// writes epochs to it.
    pub is_owner: bool,
    /// Its description, without its facts.
    pub info: DeviceInfo,
    /// Its facts, queried from the driver.
    pub facts: DeviceFacts,
    /// The shape of its rings.
    pub shape: LinkShape,
    /// The compute units of its default lane; all if absent.
    pub units: Option<D::Units>,
    /// The highest priority of streams; 0 is the lowest in use.
    pub highest_priority: i32,
    /// Where kernels read epochs.
    pub epoch_place: EpochPlace,
    /// Whether faults of other processes end this one's work too.
    pub shares_faults: bool,
    /// Whether [`Driver::reset_blocks`] works.
    pub can_reset: bool,
}

impl<D: Driver> StreamDevice<D> {
    /// Starts a device.
    ///
    /// # Errors
    /// If the driver or the operating system refuses a resource.
    pub fn start(with: StartStreams<D>) -> Result<StreamDevice<D>, DeviceError> {
        let StartStreams { context, memory, facts, shape, highest_priority: highest, .. } = with;
        let driver = |error: D::Error| device_error(&error);
        let info = facts.clone().complete(with.info);
        let capacity = info.queue_capacity;
        let all = Lane { id: LaneId::DEFAULT, queues: 0..shape.own_queues(), paired_queues: shape.paired_queues };
        let mut queues: Vec<Option<Queue<D>>> = (0..shape.all_queues()).map(|_| None).collect();
        open_queues::<D>(&context, &mut queues, &all, with.units.as_ref(), highest, capacity).map_err(driver)?;
        let lanes = LaneTable::new(shape, info.compute_units, info.lane_units);
        let bell = FdBell::new().map_err(|source| DeviceError::Os { what: "create an eventfd", source })?;
        let ring = bell.try_clone().map_err(|source| DeviceError::Os { what: "duplicate an eventfd", source })?;
        let common =
            Common { bell_rang: Arc::default(), reports: Arc::default(), lost: Arc::default(), begun: Arc::default() };
        let (flights, inbox) = channel();
        let (outbox, ended) = channel();
        let count = shape.all_queues();
        let poller = Poller::<D>::new(&context, count, inbox, outbox, ring, common.clone(), with.shares_faults);
        let poller = poller.map_err(driver)?;
        let thread = std::thread::Builder::new().name(format!("atoll-{}", info.name));
        thread
            .spawn(move || poller.run())
            .map_err(|source| DeviceError::Os { what: "start the completion thread", source })?;
        let service = D::stream(&context, None, highest).map_err(driver)?;
        if with.is_owner {
            // Clear data of the memory's previous owner: another process, or the executor that this
            // one replaces.
            D::fill(&service, &memory, 0, 0, D::bytes(&memory)).map_err(driver)?;
        }
        Ok(StreamDevice {
            epochs: EpochWords::<D>::new(&context, with.epoch_place).map_err(driver)?,
            service,
            info,
            facts,
            context,
            memory,
            modules: HashMap::new(),
            modules_loaded: 0,
            queues,
            lanes,
            highest_priority: highest,
            queue_capacity: capacity,
            flights: Some(flights),
            ended,
            bell,
            common,
            can_reset: with.can_reset,
            is_owner: with.is_owner,
        })
    }
}
