//! The device that is probed, and words in its memory.

use atoll_cuda::{Context, CudaError, DeviceMemory, DevicePtr, Driver, LoadError, OpenError, Stream, TransferError};
use std::sync::Arc;

/// Why a probe did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// A call failed.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// A kernel was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Words were not filled or read.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The device cannot be entered again.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A kernel ran and did something else.
    #[error("the kernel ran and counted wrong")]
    Miscounted,
}

/// Enters a device's context. To be called before the program starts any thread.
pub(crate) fn open(index: u32) -> Result<Arc<Context>, OpenError> {
    // A kernel that is loaded when it is first launched waits for the kernels that run, and the probes
    // have kernels that wait for later ones. SAFETY: no other thread is there to read the
    // environment meanwhile: `main` calls this before it starts any.
    unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
    Driver::load()?.gpu(index)?.enter()
}

/// Words in device memory.
pub(crate) struct DeviceWords {
    memory: DeviceMemory,
    /// For filling and reading.
    stream: Stream,
}

impl DeviceWords {
    /// At least one word, all zero.
    pub(crate) fn new(context: &Arc<Context>, count: usize) -> Result<DeviceWords, ProbeError> {
        let memory = DeviceMemory::new(context, count.max(1) as u64 * 4)?;
        let words = DeviceWords { memory, stream: Stream::new(context, 0)? };
        words.fill(0)?;
        Ok(words)
    }

    /// The address as kernels see it.
    pub(crate) fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// The memory they are in, which begins with the first.
    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Sets all bytes of them.
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
