//! Modules: the code that launches run.

use crate::error::DeviceError;

/// Id of a module that a device has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code to load.
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage<'a> {
    /// The domain of the code. On devices with domains, it shares memory and process only with code
    /// of the same domain.
    pub domain: &'a str,
    /// The target for which the code was compiled.
    pub target: &'a str,
    /// An ELF object for host targets; PTX text or machine code for NVIDIA.
    pub code: &'a [u8],
    /// The PTX from which the code was compiled, if available: a GPU newer than the target compiles
    /// it again.
    pub ptx: Option<&'a [u8]>,
    /// The kernels in it; a launch names a kernel by its index.
    pub kernels: &'a [atoll_kgraph::KernelFacts],
}

/// Loads and unloads modules. Every device implements [`Modules::load_module`] and
/// [`Modules::unload_module`].
pub trait Modules {
    /// Loads code. Slow; never called while a request waits for it.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if the code is damaged or for another device,
    /// [`DeviceError::Lost`] if the device is lost.
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError>;

    /// Starts loading code and returns at once; [`Modules::poll_load`] returns the result.
    fn begin_load(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.load_module(image)
    }

    /// The result of [`Modules::begin_load`], returned once; `None` while the load runs. The
    /// completion descriptor becomes readable when it ends.
    fn poll_load(&mut self, _module: ModuleId) -> Option<Result<(), DeviceError>> {
        Some(Ok(()))
    }

    /// Unloads code that no launch in flight uses.
    fn unload_module(&mut self, module: ModuleId);

    /// How many blocks of a kernel fit on a compute unit at once; `None` if the device does not
    /// report it. A compute unit then runs one block at a time.
    fn occupancy(&self, _module: ModuleId, _kernel: u32) -> Option<u32> {
        None
    }
}
