//! Modules: code that launches run.

use crate::error::DeviceError;

/// Index of a loaded module of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code to load.
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage<'a> {
    /// Who trusts the code: it shares memory and fate with that of the same domain only, on devices
    /// that keep domains apart.
    pub domain: &'a str,
    /// The target the code is for.
    pub target: &'a str,
    /// An ELF object for host targets; PTX text or machine code for NVIDIA.
    pub code: &'a [u8],
    /// The PTX that the code was made from, where it is at hand: what a newer GPU than the code is
    /// for takes.
    pub ptx: Option<&'a [u8]>,
    /// The kernels in it; a launch names one by index.
    pub kernels: &'a [atoll_kgraph::KernelFacts],
}

/// Loads and unloads modules. Required: [`Modules::load_module`] and [`Modules::unload_module`].
pub trait Modules {
    /// Loads code. Slow; never called between a request and its answer.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if the code is not for this device or damaged,
    /// [`DeviceError::Lost`] if the device is gone.
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError>;

    /// Begins to load code, without waiting for it: [`Modules::poll_load`] says when it is there.
    fn begin_load(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.load_module(image)
    }

    /// The outcome of [`Modules::begin_load`], once; `None` while it goes on. The completion
    /// descriptor becomes readable when it ends.
    fn poll_load(&mut self, _module: ModuleId) -> Option<Result<(), DeviceError>> {
        Some(Ok(()))
    }

    /// Unloads code that no launch in flight uses.
    fn unload_module(&mut self, module: ModuleId);

    /// Blocks of a kernel that a compute unit holds at once, on devices that can say it. Elsewhere
    /// a compute unit runs one at a time.
    fn occupancy(&self, _module: ModuleId, _kernel: u32) -> Option<u32> {
        None
    }
}
