//! A GPU in an executor.

use crate::config::HipConfig;
use crate::start::start;
use atoll_device::link::LinkShape;
use atoll_device::process::{
    DeviceKind, DevicePlan, MemoryHome, OpenDevice, Plan, ProcessService, RelayedDevice, StartRelayed,
};
use atoll_device::shm::Region;
use atoll_device::{DeviceError, DeviceInfo};
use atoll_device_streams::SharedDevice;
use std::ffi::OsString;
use std::sync::Arc;

/// Prefixes of the environment variables that the library and its parts read.
const VARIABLES: [&str; 7] = ["HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_", "GPU_", "ATOLL_"];

/// AMD GPUs, for the device table of a program that runs executors.
pub const KIND: DeviceKind = DeviceKind { name: "hip", open };

fn read(config: &str) -> Result<HipConfig, DeviceError> {
    let invalid = |error| DeviceError::Unavailable(format!("invalid configuration of a GPU: {error}"));
    serde_json::from_str(config).map_err(invalid)
}

fn write(config: &HipConfig) -> Result<String, DeviceError> {
    serde_json::to_string(config).map_err(|error| DeviceError::Unavailable(error.to_string()))
}

/// The configuration of a second executor, on the memory of the first one.
fn second(config: &str, memory: &[u8]) -> Result<String, DeviceError> {
    write(&HipConfig { memory_of: Some(memory.to_vec()), ..read(config)? })
}

fn open(config: &str, memory_bytes: Option<u64>) -> Result<OpenDevice, DeviceError> {
    let config = read(config)?;
    let link = config.link_shape()?;
    Ok(OpenDevice::Relayed(Box::new(Opened {
        link,
        config: HipConfig { memory_bytes: memory_bytes.or(config.memory_bytes), ..config },
    })))
}

impl Plan for HipConfig {
    fn plan(self) -> Result<DevicePlan, DeviceError> {
        Ok(DevicePlan {
            kind: KIND.name,
            config: write(&self)?,
            info: DeviceInfo { time_limit: Some(self.time_limit), ..self.info() },
            link: self.link_shape()?,
            memory: MemoryHome::Process,
            memory_bytes: None,
            time_limit: self.time_limit,
            load_within: None,
            environment: environment(),
            service: None,
            imports: None,
            second: self.resets_waves.then_some(second),
        })
    }
}

/// The variables of this process's environment that the library reads.
fn environment() -> Vec<(OsString, OsString)> {
    let is_meant = |name: &str| name == "HOME" || VARIABLES.iter().any(|begin| name.starts_with(begin));
    std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_meant)).collect()
}

/// A GPU that has not been started yet.
#[derive(Debug)]
struct Opened {
    config: HipConfig,
    link: LinkShape,
}

impl StartRelayed for Opened {
    fn link_shape(&self) -> LinkShape {
        self.link
    }

    fn service(&self) -> Option<Arc<dyn ProcessService>> {
        None
    }

    fn start(self: Box<Self>, region: &Arc<Region>, words_at: u64) -> Result<Box<dyn RelayedDevice>, DeviceError> {
        Ok(Box::new(SharedDevice::new(start(&self.config)?, region, words_at)?))
    }
}
