//! The device under test, and words in its memory.

use atoll_cuda::{Context, CudaError, DeviceMemory, DevicePtr, Driver, LoadError, OpenError, Stream, TransferError};
use std::sync::Arc;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// A kernel could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Memory could not be filled or read.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A kernel ran, but its result is wrong.
    #[error("the kernel ran, but its count is wrong")]
    Miscounted,
}

/// Opens a device's context. Must be called before the program starts any thread.
pub(crate) fn open(index: u32) -> Result<Arc<Context>, OpenError> {
    // A lazily loaded kernel waits at its first launch for all running kernels, but kernels of the
    // probes wait for later launches.
    // SAFETY: no other thread can read the environment: `main` calls this before it starts any.
    unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
    Driver::load()?.gpu(index)?.enter()
}

/// Words in device memory.
pub(crate) struct DeviceWords {
    memory: DeviceMemory,
    /// Stream for filling and reading.
    stream: Stream,
}

impl DeviceWords {
    /// Allocates at least one word, all zero.
    pub(crate) fn new(context: &Arc<Context>, count: usize) -> Result<DeviceWords, ProbeError> {
        let memory = DeviceMemory::new(context, count.max(1) as u64 * 4)?;
        let words = DeviceWords { memory, stream: Stream::new(context, 0)? };
        words.fill(0)?;
        Ok(words)
    }

    /// The device address.
    pub(crate) fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// The memory; the words start at its beginning.
    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Sets all bytes.
    pub(crate) fn fill(&self, byte: u8) -> Result<(), ProbeError> {
        Ok(self.stream.fill(&self.memory, 0, byte, self.memory.bytes())?)
    }

    /// Reads all words.
    pub(crate) fn read(&self) -> Result<Vec<u32>, ProbeError> {
        let mut bytes = vec![0; self.memory.bytes() as usize];
        self.stream.read(&self.memory, 0, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect())
    }
}
