//! Kernels on an NVIDIA GPU, as the text they are.

use crate::block::parameter_bytes;
use crate::device::{Compiled, DeviceBench, Machine, device_bytes};
use crate::error::BenchError;
use crate::launch::Kernel;
use atoll_device::{Device, DeviceInfo};
use atoll_device_cuda::{CudaConfig, CudaDevice};
use atoll_target_nvidia::lowest_text;

/// A GPU.
#[derive(Debug)]
pub struct CudaMachine(CudaDevice);

/// A GPU for single kernels.
pub type CudaBench = DeviceBench<CudaMachine>;

impl CudaBench {
    /// Starts a GPU with room for so many bytes of buffers.
    pub fn start(config: CudaConfig, buffers_bytes: u64) -> Result<CudaBench, BenchError> {
        let config = CudaConfig { memory_bytes: Some(device_bytes(buffers_bytes)), queues: 1, ..config };
        Ok(DeviceBench::on(CudaMachine(CudaDevice::start(&config)?), buffers_bytes))
    }
}

impl Machine for CudaMachine {
    type Device = CudaDevice;

    fn device(&mut self) -> &mut CudaDevice {
        &mut self.0
    }

    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    const HEARS: bool = false;

    /// The driver compiles the text, and adds the shared memory that it declares. Compilers write
    /// the newest version they know, which older drivers would not take.
    fn compile(&self, kernel: &Kernel<'_>, _block: [u32; 3]) -> Result<Compiled, BenchError> {
        let function = kernel.module.function(kernel.entry);
        let function = function.ok_or_else(|| BenchError::Launch(format!("there is no kernel `{}`", kernel.entry)))?;
        // Every GPU that the text is not too new for is said to run its own target.
        let target = self.info().targets.first().cloned().unwrap_or_default();
        let params_bytes = u32::try_from(parameter_bytes(function)).unwrap_or(u32::MAX);
        Ok(Compiled {
            target,
            code: lowest_text(kernel.module).into_bytes(),
            params_bytes,
            shared_bytes: 0,
            scratch_bytes: 0,
        })
    }
}
