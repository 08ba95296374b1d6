//! Code on the device: the kernels of a module with their facts.

use crate::driver::Driver;
use atoll_device::{DeviceError, DeviceInfo, ModuleImage};
use atoll_kgraph::KernelFacts;
use std::cell::Cell;
use std::sync::Arc;

/// A loaded module.
#[derive(Debug)]
pub struct Module<D: Driver> {
    kernels: Vec<Kernel<D>>,
}

/// A kernel that can be launched.
#[derive(Debug)]
pub(crate) struct Kernel<D: Driver> {
    pub(crate) facts: KernelFacts,
    pub(crate) handle: D::Kernel,
    /// Dynamic shared memory in bytes that its launches were prepared for.
    allowed_bytes: Cell<u32>,
}

impl<D: Driver> Module<D> {
    /// Loads code for this device.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] with the reason.
    pub fn load(
        context: &Arc<D::Context>,
        info: &DeviceInfo,
        image: ModuleImage<'_>,
    ) -> Result<Module<D>, DeviceError> {
        if !info.targets.iter().any(|target| target == image.target) {
            let runs = info.targets.join(", ");
            return Err(DeviceError::BadModule(format!(
                "the code is for {}, but {} runs {runs}; compile it for one of these",
                image.target, info.name
            )));
        }
        let greedy = image.kernels.iter().find(|kernel| kernel.shared_bytes > info.shared_bytes_max);
        if let Some(KernelFacts { name, shared_bytes, .. }) = greedy {
            let most = info.shared_bytes_max;
            return Err(DeviceError::BadModule(format!(
                "kernel `{name}` needs {shared_bytes} bytes of shared memory, {} has {most}",
                info.name
            )));
        }
        let handles = D::load(context, info, image)?;
        let kernel = |(facts, handle): (&KernelFacts, D::Kernel)| {
            let kernel = Kernel { facts: facts.clone(), handle, allowed_bytes: Cell::new(0) };
            let bad = |error: D::Error| DeviceError::BadModule(format!("kernel `{}`: {error}", facts.name));
            kernel.allow(facts.shared_bytes).map_err(bad)?;
            Ok(kernel)
        };
        Ok(Module { kernels: image.kernels.iter().zip(handles).map(kernel).collect::<Result<_, DeviceError>>()? })
    }

    pub(crate) fn kernel(&self, index: u32) -> Option<&Kernel<D>> {
        self.kernels.get(index as usize)
    }
}

impl<D: Driver> Kernel<D> {
    /// Prepares it for launches with this much dynamic shared memory.
    pub(crate) fn allow(&self, shared_bytes: u32) -> Result<(), D::Error> {
        if shared_bytes > self.allowed_bytes.get() {
            D::allow_shared(&self.handle, shared_bytes)?;
            self.allowed_bytes.set(shared_bytes);
        }
        Ok(())
    }
}
