//! A device in an executor: it also uses the memory shared with the daemon.

use crate::device::StreamDevice;
use crate::driver::Driver;
use crate::error::device_error;
use crate::module::Module;
use crate::words::SharedWords;
use atoll_core::{DeviceOffset, QueueId};
use atoll_device::process::{LoadModule, LoadedModule, RelayedDevice};
use atoll_device::shm::Region;
use atoll_device::{Device, DeviceError, DeviceFacts, Lane, ModuleId, ModuleImage};
use std::ops::Range;
use std::sync::Arc;

/// A device whose epoch words are the daemon's and whose transfers go through the daemon's shared
/// memory.
#[derive(Debug)]
pub struct SharedDevice<D: Driver> {
    device: StreamDevice<D>,
    memory: Arc<D::Registered>,
}

impl<D: Driver> SharedDevice<D> {
    /// Lets a device use a region that the daemon shares, with epoch words at an offset.
    ///
    /// # Errors
    /// If the driver refuses to register the region.
    pub fn new(
        mut device: StreamDevice<D>,
        region: &Arc<Region>,
        words_at: u64,
    ) -> Result<SharedDevice<D>, DeviceError> {
        let begin = std::ptr::with_exposed_provenance_mut(region.address(0).unwrap_or_default() as usize);
        // SAFETY: the device's words keep the region mapped, and all other references into it are
        // to atomics.
        let memory = unsafe { D::register(&device.context, begin, region.bytes()) };
        let memory = Arc::new(memory.map_err(|error| device_error(&error))?);
        device.epochs.share(SharedWords::new(region.clone(), memory.clone(), words_at));
        Ok(SharedDevice { device, memory })
    }
}

impl<D: Driver> RelayedDevice for SharedDevice<D> {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    fn device_mut(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn facts(&self) -> DeviceFacts {
        self.device.facts.clone()
    }

    /// Another process is needed only for kills that hit nothing else.
    fn share_memory(&self) -> Option<Vec<u8>> {
        let StreamDevice { memory, can_reset, is_owner, .. } = &self.device;
        if *can_reset && *is_owner { D::share(memory) } else { None }
    }

    fn loader(&self) -> LoadModule {
        let (context, info) = (self.device.context.clone(), self.device.info.clone());
        Box::new(move |image: ModuleImage<'_>| Ok(LoadedModule(Box::new(Module::<D>::load(&context, &info, image)?))))
    }

    fn adopt(&mut self, module: LoadedModule) -> Result<ModuleId, DeviceError> {
        let foreign = |_| DeviceError::BadModule("it was loaded for another device".to_owned());
        let module = module.0.downcast::<Module<D>>().map_err(foreign)?;
        Ok(self.device.adopt(*module))
    }

    fn attach_lane(&mut self, lane: &Lane, units: &[u32]) -> Result<(), DeviceError> {
        self.device.attach_lane(lane, units)
    }

    fn detach_lane(&mut self, queues: Range<u32>) {
        self.device.detach_lane(queues);
    }

    fn has_queue(&self, queue: QueueId) -> bool {
        self.device.queues.get(queue.0 as usize).is_some_and(Option::is_some)
    }

    fn bind_epoch(&mut self, word: DeviceOffset, index: usize) -> Result<(), DeviceError> {
        self.device.check(word, 4)?;
        let StreamDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.bind(word, index, service, memory);
        self.device.transferred(answer)
    }

    fn follow_epochs(&mut self) -> Result<(), DeviceError> {
        if !self.device.is_owner {
            return Ok(());
        }
        let StreamDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.follow(service, memory);
        self.device.transferred(answer)
    }

    fn write_from(&mut self, at: DeviceOffset, from: u64, bytes: u64) -> Result<(), DeviceError> {
        self.device.check(at, bytes)?;
        let StreamDevice { service, memory, .. } = &self.device;
        self.device.transferred(D::write_from(service, memory, at.0, &self.memory, from, bytes))
    }

    fn read_into(&mut self, at: DeviceOffset, to: u64, bytes: u64) -> Result<(), DeviceError> {
        self.device.check(at, bytes)?;
        let StreamDevice { service, memory, .. } = &self.device;
        self.device.transferred(D::read_into(service, memory, at.0, &self.memory, to, bytes))
    }
}
