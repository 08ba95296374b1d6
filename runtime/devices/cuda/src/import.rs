//! Device memory of other processes, by handles of CUDA IPC.

use crate::error::GpuError;
use atoll_cuda::{Context, DeviceMemory, Stream};
use atoll_device::{DeviceError, ImportId, Importer, MemoryHandle};
use std::collections::HashMap;
use std::sync::Arc;

/// Opens the memory in the device's context, and copies in a stream of its own.
#[derive(Debug)]
pub(crate) struct CudaImporter {
    context: Arc<Context>,
    stream: Stream,
    open: HashMap<ImportId, DeviceMemory>,
}

impl CudaImporter {
    pub(crate) fn new(context: &Arc<Context>) -> Result<CudaImporter, GpuError> {
        // The lowest priority. Copies do not wait for kernels in other streams.
        let stream = Stream::new(context, 0)?;
        Ok(CudaImporter { context: context.clone(), stream, open: HashMap::new() })
    }

    fn memory(&self, id: ImportId) -> Result<&DeviceMemory, DeviceError> {
        self.open.get(&id).ok_or_else(|| DeviceError::Driver(format!("import {} is not open", id.0)))
    }
}

impl Importer for CudaImporter {
    fn open(&mut self, id: ImportId, handle: &MemoryHandle) -> Result<u64, DeviceError> {
        if let Some(memory) = self.open.get(&id) {
            return Ok(memory.bytes());
        }
        let memory = DeviceMemory::import(&self.context, handle.0).map_err(GpuError::from)?;
        let bytes = memory.bytes();
        self.open.insert(id, memory);
        Ok(bytes)
    }

    fn read(&mut self, id: ImportId, at: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        Ok(self.stream.read(self.memory(id)?, at, to).map_err(GpuError::from)?)
    }

    fn write(&mut self, id: ImportId, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        Ok(self.stream.write(self.memory(id)?, at, from).map_err(GpuError::from)?)
    }

    fn close(&mut self, id: ImportId) {
        self.open.remove(&id);
    }
}
