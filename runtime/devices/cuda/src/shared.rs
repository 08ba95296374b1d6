//! A GPU in an executor: a CUDA device that also uses the memory shared with the daemon.

use super::config::CudaConfig;
use super::device::CudaDevice;
use super::error::GpuError;
use super::gpu_id::{GpuId, VISIBLE_DEVICES};
use super::import::CudaImporter;
use super::module::Module;
use super::mps::{Mps, MpsShare};
use super::words::SharedWords;
use atoll_core::{DeviceOffset, QueueId};
use atoll_cuda::HostMemory;
use atoll_device::link::LinkShape;
use atoll_device::process::{
    DeviceKind, DevicePlan, LoadModule, LoadedModule, MemoryHome, OpenDevice, Plan, ProcessService, RelayedDevice,
    StartRelayed,
};
use atoll_device::shm::Region;
use atoll_device::{Device, DeviceError, DeviceFacts, DeviceInfo, Importer, Lane, ModuleId, ModuleImage};
use std::ffi::OsString;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for loading a module: the driver may compile the kernels of many functions.
const COMPILE_WITHIN: Duration = Duration::from_secs(600);

/// NVIDIA GPUs, for the device table of a program that runs executors.
pub const KIND: DeviceKind = DeviceKind { name: "cuda", open };

fn open(config: &str, memory_bytes: Option<u64>) -> Result<OpenDevice, DeviceError> {
    let config: CudaConfig = serde_json::from_str(config)
        .map_err(|error| DeviceError::Unavailable(format!("invalid configuration of a GPU: {error}")))?;
    let link = config.link_shape()?;
    Ok(OpenDevice::Relayed(Box::new(Opened {
        link,
        config: CudaConfig { memory_bytes: memory_bytes.or(config.memory_bytes), ..config },
    })))
}

impl Plan for CudaConfig {
    fn plan(self) -> Result<DevicePlan, DeviceError> {
        Ok(DevicePlan {
            kind: KIND.name,
            config: serde_json::to_string(&self).map_err(|error| DeviceError::Unavailable(error.to_string()))?,
            info: DeviceInfo { time_limit: Some(self.time_limit), ..self.info() },
            link: self.link_shape()?,
            memory: MemoryHome::Process,
            memory_bytes: None,
            time_limit: self.time_limit,
            load_within: Some(COMPILE_WITHIN),
            environment: environment(&self),
            service: self.service(),
            imports: self.ordinal(),
            second: None,
        })
    }
}

/// The variables of this process's environment that the driver reads, and those of the MPS share and
/// of a GPU that is named by its UUID.
fn environment(config: &CudaConfig) -> Vec<(OsString, OsString)> {
    let is_meant =
        |name: &str| name == "HOME" || ["CUDA_", "NVIDIA_", "ATOLL_"].iter().any(|begin| name.starts_with(begin));
    let of_this_process = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_meant));
    // If a name occurs twice, the last value counts.
    let alone = config.gpu.visible_alone().map(|id| (VISIBLE_DEVICES.into(), id.into()));
    of_this_process.chain(alone).chain(config.mps.iter().flat_map(MpsShare::environment)).collect()
}

impl CudaConfig {
    /// The number by which clients name the GPU whose memory they share.
    fn ordinal(&self) -> Option<u32> {
        if let GpuId::Number(number) = self.gpu { Some(number) } else { None }
    }

    fn service(&self) -> Option<Arc<dyn ProcessService>> {
        let control = self.control()?;
        Some(Arc::new(Mps { control, share: self.mps.clone() }))
    }
}

/// A GPU that has not been started yet.
#[derive(Debug)]
struct Opened {
    config: CudaConfig,
    link: LinkShape,
}

impl StartRelayed for Opened {
    fn link_shape(&self) -> LinkShape {
        self.link
    }

    fn service(&self) -> Option<Arc<dyn ProcessService>> {
        self.config.service()
    }

    fn start(self: Box<Self>, region: &Arc<Region>, words_at: u64) -> Result<Box<dyn RelayedDevice>, DeviceError> {
        Ok(Box::new(SharedCuda::start(&self.config, region, words_at)?))
    }
}

/// A CUDA device whose epoch words are the daemon's and whose transfers go through the daemon's
/// shared memory.
#[derive(Debug)]
struct SharedCuda {
    device: CudaDevice,
    memory: Arc<HostMemory>,
}

impl SharedCuda {
    fn start(config: &CudaConfig, region: &Arc<Region>, words_at: u64) -> Result<SharedCuda, GpuError> {
        let mut device = CudaDevice::start(config)?;
        let begin = std::ptr::with_exposed_provenance_mut(region.address(0).unwrap_or_default() as usize);
        // SAFETY: the device's words keep the region mapped, and all other references into it are
        // to atomics.
        let memory = Arc::new(unsafe { HostMemory::register(&device.context, begin, region.bytes())? });
        device.epochs.share(SharedWords::new(region.clone(), memory.clone(), words_at));
        Ok(SharedCuda { device, memory })
    }
}

impl RelayedDevice for SharedCuda {
    fn device(&self) -> &dyn Device {
        &self.device
    }

    fn device_mut(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn facts(&self) -> DeviceFacts {
        self.device.facts.clone()
    }

    fn loader(&self) -> LoadModule {
        let (context, info) = (self.device.context.clone(), self.device.info.clone());
        Box::new(move |image: ModuleImage<'_>| Ok(LoadedModule(Box::new(Module::load(&context, &info, image)?))))
    }

    fn importer(&self) -> Result<Option<Box<dyn Importer>>, DeviceError> {
        Ok(Some(Box::new(CudaImporter::new(&self.device.context)?)))
    }

    fn adopt(&mut self, module: LoadedModule) -> Result<ModuleId, DeviceError> {
        let foreign = |_| DeviceError::BadModule("it was loaded for another device".to_owned());
        let module = module.0.downcast::<Module>().map_err(foreign)?;
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
        let CudaDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.bind(word, index, service, memory);
        self.device.transferred(answer)
    }

    fn follow_epochs(&mut self) -> Result<(), DeviceError> {
        let CudaDevice { epochs, service, memory, .. } = &mut self.device;
        let answer = epochs.follow(service, memory);
        self.device.transferred(answer)
    }

    fn write_from(&mut self, at: DeviceOffset, from: u64, bytes: u64) -> Result<(), DeviceError> {
        let CudaDevice { service, memory, .. } = &self.device;
        self.device.transferred(service.write_from(memory, at.0, &self.memory, from, bytes))
    }

    fn read_into(&mut self, at: DeviceOffset, to: u64, bytes: u64) -> Result<(), DeviceError> {
        let CudaDevice { service, memory, .. } = &self.device;
        self.device.transferred(service.read_into(memory, at.0, &self.memory, to, bytes))
    }
}
