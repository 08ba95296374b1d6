//! Native code of kernels.

use crate::device::Device;
use atoll_device::ModuleId;
use atoll_kgraph::KernelFacts;
use std::sync::Arc;

/// Native code of a kernel for one block shape; unloaded when dropped.
#[derive(Debug)]
pub(crate) struct Code {
    device: Arc<Device>,
    pub(crate) id: ModuleId,
    pub(crate) facts: KernelFacts,
}

impl Code {
    pub(crate) fn new(device: Arc<Device>, id: ModuleId, facts: KernelFacts) -> Code {
        Code { device, id, facts }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        self.device.unload(self.id);
    }
}
