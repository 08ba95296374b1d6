//! Kernels on the host device, as native code.

use crate::device::{Compiled, DeviceBench, Machine, device_bytes};
use crate::error::BenchError;
use crate::launch::Kernel;
use atoll_device::{Device, DeviceInfo};
use atoll_device_host::{CheckedBuffer, HostConfig, HostDevice};
use atoll_kgraph::DiskCache;
use atoll_target_host::{CpuLevel, KernelShape, Options};
use std::sync::Arc;
use std::time::Duration;

/// What a host device for single kernels is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Compute units; 0 is one per CPU.
    pub compute_units: u32,
    /// Bytes of buffers it holds, see [`HostBench::bytes_for`].
    pub memory_bytes: u64,
    /// How long a launch may run.
    pub time_limit: Duration,
    /// Bound every access to the buffers of the launch, and name thread and address of one that
    /// lies outside. Slow.
    pub check: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            compute_units: 0,
            memory_bytes: 64 << 20,
            time_limit: HostConfig::default().time_limit,
            check: false,
        }
    }
}

/// This machine's cores.
#[derive(Debug)]
pub struct HostMachine {
    device: HostDevice,
    level: CpuLevel,
    check: bool,
    cache: Option<Arc<DiskCache>>,
}

/// A host device for single kernels.
pub type HostBench = DeviceBench<HostMachine>;

impl HostBench {
    /// Starts a device.
    pub fn start(options: HostOptions) -> Result<HostBench, BenchError> {
        let default = HostConfig::default();
        let compute_units = if options.compute_units == 0 { default.compute_units } else { options.compute_units };
        let memory_bytes = device_bytes(options.memory_bytes);
        let config = HostConfig {
            compute_units,
            memory_bytes,
            queues: 1,
            paired_queues: false,
            time_limit: options.time_limit,
            ..default
        };
        let level = CpuLevel::of_this_machine().ok_or(BenchError::NoNativeCode)?;
        let machine = HostMachine { device: HostDevice::start(config)?, level, check: options.check, cache: None };
        Ok(DeviceBench::on(machine, options.memory_bytes))
    }

    /// Keeps and looks for code of kernels there.
    pub fn with_cache(mut self, cache: Option<Arc<DiskCache>>) -> HostBench {
        self.machine.cache = cache;
        self
    }
}

impl Machine for HostMachine {
    type Device = HostDevice;

    fn device(&mut self) -> &mut HostDevice {
        &mut self.device
    }

    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn compile(&self, kernel: &Kernel<'_>, block: [u32; 3]) -> Result<Compiled, BenchError> {
        let shape = KernelShape { name: kernel.entry.into(), block };
        let options = Options { check: self.check, cache: self.cache.clone(), ..Options::default() };
        let object = atoll_target_host::compile(kernel.module, std::slice::from_ref(&shape), self.level, &options)?;
        let native = &object.kernels[0];
        Ok(Compiled {
            target: self.level.target_name().to_owned(),
            params_bytes: native.params_bytes,
            shared_bytes: native.shared_static_bytes.next_multiple_of(16),
            scratch_bytes: native.scratch_bytes,
            code: object.elf,
        })
    }

    fn check_buffers(&mut self, buffers: &dyn Fn() -> Vec<CheckedBuffer>) -> Result<(), BenchError> {
        if self.check {
            self.device.set_checked_buffers(&buffers())?;
        }
        Ok(())
    }
}
