//! Starts devices in this process or in separate processes.

use crate::device_name::GpuName;
use anyhow::Context;
use atoll_device::Device;
#[cfg(feature = "cuda")]
use atoll_device_cuda::{CudaConfig, CudaDevice, GpuId, GpuPart, MpsShare};
#[cfg(feature = "hip")]
use atoll_device_hip::HipConfig;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_executor::{ControlGroups, ExecutorConfig, ExecutorPool, TenantMemory};
use clap::ValueEnum;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The place for control groups of executors, if there is one.
pub(crate) type Groups = Option<Arc<ControlGroups>>;

/// Isolation of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Kernels run on threads of this process, or this process launches them
    None,
    /// Kernels run in a process that is replaced when it dies: on the host a jailed process per
    /// tenant, on a GPU one or two processes for all tenants
    Process,
}

impl Isolation {
    /// Starts a host device with this isolation.
    pub fn host_device(self, config: HostConfig) -> anyhow::Result<Box<dyn Device>> {
        self.host_device_in(config, None)
    }

    /// Starts a host device with this isolation, whose executors get control groups.
    pub(crate) fn host_device_in(self, config: HostConfig, groups: Groups) -> anyhow::Result<Box<dyn Device>> {
        let cannot = format!("cannot start {}", config.name);
        let pool = |executor| ExecutorPool::new(ExecutorConfig { groups, ..executor });
        Ok(match self {
            Isolation::None => Box::new(HostDevice::start(config).context(cannot)?),
            Isolation::Process => Box::new(ExecutorConfig::new(config).and_then(pool).context(cannot)?),
        })
    }

    /// Starts an NVIDIA GPU with this isolation.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu(self, name: GpuName, args: GpuArgs) -> anyhow::Result<Box<dyn Device>> {
        let GpuArgs { memory_bytes, compute_units, mps, queue_capacity, segment, tenant_memory, time_limit } = args;
        let (part, mps) = (compute_units.map(GpuPart::Of), mps.map(MpsShare::new));
        let default = CudaConfig::default();
        // Room for two segments: one that runs, and one behind it.
        let queue_capacity = queue_capacity.unwrap_or(default.queue_capacity).max(2 * segment);
        let gpu = GpuId::from(name);
        let config = CudaConfig { gpu, memory_bytes, part, mps, queue_capacity, segment, time_limit, ..default };
        let cannot = || format!("cannot start cuda:{name}");
        Ok(match self {
            Isolation::None => Box::new(CudaDevice::start(&config).with_context(cannot)?),
            Isolation::Process => Box::new(gpu_pool(config, tenant_memory).with_context(cannot)?),
        })
    }

    #[cfg(not(feature = "cuda"))]
    pub(crate) fn gpu(self, _name: GpuName, _args: GpuArgs) -> anyhow::Result<Box<dyn Device>> {
        anyhow::bail!("this program was built without support for NVIDIA GPUs; build it with `--features cuda`")
    }

    /// Starts an AMD GPU with this isolation.
    #[cfg(feature = "hip")]
    pub(crate) fn amd_gpu(self, index: u32, args: GpuArgs) -> anyhow::Result<Box<dyn Device>> {
        let GpuArgs { memory_bytes, compute_units, queue_capacity, tenant_memory, time_limit, .. } = args;
        let default = HipConfig::default();
        let queue_capacity = queue_capacity.unwrap_or(default.queue_capacity);
        // All waves of the process are killed, so no other device may run in it.
        let resets_waves = self == Isolation::Process;
        let config =
            HipConfig { index, memory_bytes, compute_units, queue_capacity, resets_waves, time_limit, ..default };
        let cannot = || format!("cannot start hip:{index}");
        Ok(match self {
            Isolation::None => Box::new(atoll_device_hip::start(&config).with_context(cannot)?),
            Isolation::Process => Box::new(gpu_pool(config, tenant_memory).with_context(cannot)?),
        })
    }

    #[cfg(not(feature = "hip"))]
    pub(crate) fn amd_gpu(self, _index: u32, _args: GpuArgs) -> anyhow::Result<Box<dyn Device>> {
        anyhow::bail!("this program was built without support for AMD GPUs; build it with `--features hip`")
    }
}

/// A GPU in a process of its own.
#[cfg(any(feature = "cuda", feature = "hip"))]
fn gpu_pool(
    config: impl atoll_device::process::Plan,
    tenant_memory: Option<TenantMemory>,
) -> Result<ExecutorPool, atoll_device::DeviceError> {
    ExecutorPool::new(ExecutorConfig { tenant_memory, ..ExecutorConfig::new(config)? })
}

/// Configuration of a GPU.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "not all fields are looked at"))]
pub(crate) struct GpuArgs {
    /// `None` for all of the memory; likewise for compute units.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) compute_units: Option<u32>,
    pub(crate) mps: Option<u32>,
    /// Launches that a device queue holds; `None` for the device's default.
    pub(crate) queue_capacity: Option<u32>,
    pub(crate) segment: u32,
    /// Memory that is reserved for tenants, if the GPU has a process of its own.
    pub(crate) tenant_memory: Option<TenantMemory>,
    pub(crate) time_limit: Duration,
}
