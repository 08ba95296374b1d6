//! Kernels on an NVIDIA GPU, loaded as PTX.

use crate::block::parameter_bytes;
use crate::device::{Compiled, DeviceBench, Machine, device_bytes};
use crate::error::BenchError;
use crate::launch::Kernel;
use atoll_device::{Device, DeviceInfo};
use atoll_device_cuda::{CudaConfig, CudaDevice};
use atoll_target_nvidia::lowest_text;

/// An NVIDIA GPU.
#[derive(Debug)]
pub struct CudaMachine(CudaDevice);

/// A GPU for single kernels.
pub type CudaBench = DeviceBench<CudaMachine>;

impl CudaBench {
    /// Starts a GPU with memory for `buffers_bytes` of buffers.
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

    const CAPTURES_OUTPUT: bool = false;

    /// The driver compiles the PTX and adds its declared shared memory. Lowers the PTX version,
    /// since compilers write the newest one they know, which older drivers refuse.
    fn compile(&self, kernel: &Kernel<'_>, _block: [u32; 3]) -> Result<Compiled, BenchError> {
        let function = kernel.module.function(kernel.entry);
        let function =
            function.ok_or_else(|| BenchError::Launch(format!("the module has no kernel `{}`", kernel.entry)))?;
        // A GPU accepts all PTX that is not too new for it, so the text is labelled with the GPU's
        // own target.
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
