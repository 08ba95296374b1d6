//! A GPU in an executor: beside what any CUDA device does, what it does with the memory that the daemon shares with it.

use super::module::Module;
use super::words::SharedWords;
use super::{CudaConfig, CudaDevice};
use crate::shm::Region;
use crate::{DeviceError, DeviceInfo, ModuleId, ModuleImage};
use atoll_core::DeviceOffset;
use atoll_cuda::{Context, HostMemory};
use std::sync::Arc;

/// A CUDA device whose epoch words are the daemon's, and whose transfers pass through memory of the daemon.
#[derive(Debug)]
pub(crate) struct SharedCuda {
    pub(crate) device: CudaDevice,
    memory: Arc<HostMemory>,
}

impl SharedCuda {
    /// Starts a device, and makes a region known to it, in which epoch words begin at `words_at`.
    pub(crate) fn start(config: &CudaConfig, region: &Arc<Region>, words_at: u64) -> Result<SharedCuda, DeviceError> {
        let mut device = CudaDevice::start(config)?;
        let begin = std::ptr::with_exposed_provenance_mut(region.address(0).unwrap_or_default() as usize);
        // SAFETY: the device's words keep the region mapped, the only other references into it are to atomics, and whoever has the device does not copy its memory away.
        let memory = Arc::new(unsafe { HostMemory::register(&device.context, begin, region.bytes())? });
        device.epochs.share(SharedWords::new(region.clone(), memory.clone(), words_at));
        Ok(SharedCuda { device, memory })
    }

    /// What loads modules beside everything else.
    pub(crate) fn loader(&self) -> Loader {
        Loader { context: self.device.context.clone(), info: self.device.info.clone() }
    }

    /// Takes a module in that a loader loaded.
    pub(crate) fn adopt(&mut self, module: LoadedModule) -> ModuleId {
        self.device.adopt(module.0)
    }

    /// The daemon raises an epoch word in shared memory from now on; what device memory says is there afterwards.
    pub(crate) fn bind_epoch(&mut self, word: DeviceOffset, index: usize) -> Result<(), DeviceError> {
        let CudaDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.bind(word, index, service, memory);
        self.device.transferred(answer)
    }

    /// Writes through what the daemon raised. Does not wait.
    pub(crate) fn follow_epochs(&mut self) -> Result<(), DeviceError> {
        let CudaDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.follow(service, memory);
        self.device.transferred(answer)
    }

    /// Copies shared memory into the device's.
    pub(crate) fn write(&mut self, at: DeviceOffset, from: u64, bytes: u64) -> Result<(), DeviceError> {
        let CudaDevice { service, memory, .. } = &self.device;
        self.device.transferred(service.write_from(memory, at.0, &self.memory, from, bytes))
    }

    /// Copies the device's memory into shared memory.
    pub(crate) fn read(&mut self, at: DeviceOffset, to: u64, bytes: u64) -> Result<(), DeviceError> {
        let CudaDevice { service, memory, .. } = &self.device;
        self.device.transferred(service.read_into(memory, at.0, &self.memory, to, bytes))
    }
}

/// Loads modules on a thread of its own: the driver may take seconds to compile one, in which launches should not wait.
#[derive(Debug)]
pub(crate) struct Loader {
    context: Arc<Context>,
    info: DeviceInfo,
}

/// A module that the device does not have yet.
#[derive(Debug)]
pub(crate) struct LoadedModule(Module);

impl Loader {
    pub(crate) fn load(&self, image: ModuleImage<'_>) -> Result<LoadedModule, DeviceError> {
        Module::load(&self.context, &self.info, image).map(LoadedModule)
    }
}
