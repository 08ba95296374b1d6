//! The host device in executors: the compute units run there, in memory of the daemon.

use crate::HostConfig;
use crate::device_side::DeviceSide;
use crate::module::SCRATCH_BYTES_MAX;
use crate::space::KernelSpace;
use atoll_device::link::LinkShape;
use atoll_device::process::{
    DeviceKind, DevicePlan, MemoryHome, OpenDevice, Plan, RunningUnits, StartUnits, UnitResources,
};
use atoll_device::{DeviceError, ModuleId, ModuleImage};

/// The host device, for the device table of a program that runs executors.
pub const KIND: DeviceKind = DeviceKind { name: "host", open };

fn open(config: &str, _memory_bytes: Option<u64>) -> Result<OpenDevice, DeviceError> {
    let config: HostConfig = serde_json::from_str(config)
        .map_err(|error| DeviceError::Unavailable(format!("invalid configuration of a host device: {error}")))?;
    Ok(OpenDevice::Units(Box::new(config.checked()?)))
}

impl Plan for HostConfig {
    fn plan(self) -> Result<DevicePlan, DeviceError> {
        let config = self.checked()?;
        Ok(DevicePlan {
            kind: KIND.name,
            config: serde_json::to_string(&config).map_err(|error| DeviceError::Unavailable(error.to_string()))?,
            link: config.link_shape(),
            memory: MemoryHome::Daemon,
            memory_bytes: None,
            time_limit: config.time_limit,
            load_within: None,
            environment: Vec::new(),
            service: None,
            imports: None,
            second: None,
            info: config.info(),
        })
    }
}

impl StartUnits for HostConfig {
    fn link_shape(&self) -> LinkShape {
        HostConfig::link_shape(self)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn constants_bytes(&self) -> u64 {
        self.constants_bytes
    }

    fn private_bytes(&self) -> u64 {
        u64::from(self.compute_units) * (u64::from(SCRATCH_BYTES_MAX) + u64::from(self.shared_bytes_max))
    }

    fn start(self: Box<Self>, resources: UnitResources) -> Result<Box<dyn RunningUnits>, DeviceError> {
        let UnitResources { link, memory, constants, bell, reports } = resources;
        Ok(Box::new(DeviceSide::start(&self, link, KernelSpace::new(memory, constants), bell, reports)?))
    }
}

impl RunningUnits for DeviceSide {
    fn load_module(&mut self, id: ModuleId, image: ModuleImage<'_>) -> Result<(), DeviceError> {
        DeviceSide::load_module(self, id, image)
    }

    fn unload_module(&mut self, id: ModuleId) {
        DeviceSide::unload_module(self, id);
    }
}
