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

/// Configuration of a host device for single kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Number of compute units; 0 for one per CPU.
    pub compute_units: u32,
    /// Bytes of buffers; see [`HostBench::bytes_for`].
    pub memory_bytes: u64,
    /// Time limit of a launch.
    pub time_limit: Duration,
    /// Checks every access against the buffers of the launch, and reports thread and address of a
    /// violation. Slow.
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

/// The host device.
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

    /// Sets the cache of kernel code.
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
