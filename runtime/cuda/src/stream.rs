//! Streams, and events in them.

use crate::context::Context;
use crate::error::{CudaError, status};
use crate::functions::Functions;
use crate::memory::{DeviceMemory, HostMemory, HostWords, TransferError};
use crate::partition::Partition;
use atoll_cuda_api::constants::CU_STREAM_NON_BLOCKING;
use atoll_cuda_api::types::{CUevent, CUstream, DriverHandle};
use std::ffi::c_int;
use std::sync::Arc;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    pub(crate) handle: CUstream,
    /// The partition that it runs on, if any; dropped after the stream.
    _partition: Option<Arc<Partition>>,
}

impl Stream {
    /// A non-blocking stream; a lower number is a higher priority.
    pub fn new(context: &Arc<Context>, priority: i32) -> Result<Stream, CudaError> {
        let mut handle = CUstream::NULL;
        let create = |f: &Functions| {
            // SAFETY: writes one handle to the given address.
            unsafe { (f.stream_create)(&mut handle, CU_STREAM_NON_BLOCKING, priority as c_int) }
        };
        context.call("cuStreamCreateWithPriority", create)?;
        Ok(Stream { context: context.clone(), handle, _partition: None })
    }

    /// A stream with the driver's flags: 0 orders it with the default stream.
    pub fn with_flags(context: &Arc<Context>, flags: u32, priority: i32) -> Result<Stream, CudaError> {
        let mut handle = CUstream::NULL;
        let create = |f: &Functions| {
            // SAFETY: writes one handle to the given address; the driver refuses unknown flags.
            unsafe { (f.stream_create)(&mut handle, flags, priority as c_int) }
        };
        context.call("cuStreamCreateWithPriority", create)?;
        Ok(Stream { context: context.clone(), handle, _partition: None })
    }

    /// The default stream of a context, which is not destroyed.
    pub fn default_of(context: &Arc<Context>) -> Stream {
        Stream { context: context.clone(), handle: CUstream::NULL, _partition: None }
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream is alive.
        match self.context.call("cuStreamQuery", |f| unsafe { (f.stream_query)(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.code == status::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes later work wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both are alive; an event that was never recorded has passed.
        self.context.call("cuStreamWaitEvent", |f| unsafe { (f.stream_wait)(self.handle, event.handle, 0) })
    }

    /// A stream that runs on the compute units of a partition.
    pub fn in_partition(partition: &Arc<Partition>, priority: i32) -> Result<Stream, CudaError> {
        let context = &partition.context;
        let mut handle = CUstream::NULL;
        let create = |f: &Functions| match f.green_stream {
            // SAFETY: the partition is alive; writes one handle to the given address.
            Some(create) => unsafe { create(&mut handle, partition.handle, CU_STREAM_NON_BLOCKING, priority as c_int) },
            None => status::NOT_SUPPORTED,
        };
        context.call("cuGreenCtxStreamCreate", create)?;
        Ok(Stream { context: context.clone(), handle, _partition: Some(partition.clone()) })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for all work in the stream.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is alive.
        self.context.call("cuStreamSynchronize", |f| unsafe { (f.stream_sync)(self.handle) })
    }

    /// Copies bytes into device memory, and waits for the copy.
    pub fn write(&self, to: &DeviceMemory, at: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let address = to.range(at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside the memory; the bytes are borrowed until the stream has been
        // waited for.
        let begun = self.context.call("cuMemcpyHtoDAsync", |f| unsafe {
            (f.copy_to_device)(address, bytes.as_ptr().cast(), bytes.len(), self.handle)
        });
        Ok(self.settled(begun)?)
    }

    /// Copies bytes out of device memory, and waits for the copy.
    pub fn read(&self, from: &DeviceMemory, at: u64, bytes: &mut [u8]) -> Result<(), TransferError> {
        let address = from.range(at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside the memory; the bytes are borrowed until the stream has been
        // waited for.
        let begun = self.context.call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(bytes.as_mut_ptr().cast(), address, bytes.len(), self.handle)
        });
        Ok(self.settled(begun)?)
    }

    /// Copies from registered memory into device memory, and waits for the copy.
    pub fn write_from(
        &self,
        to: &DeviceMemory,
        at: u64,
        from: &HostMemory,
        from_at: u64,
        bytes: u64,
    ) -> Result<(), TransferError> {
        let (address, source) = (to.range(at, bytes)?, from.range(from_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside their memory, which lives until the stream has been waited
        // for.
        let begun = self
            .context
            .call("cuMemcpyHtoDAsync", |f| unsafe { (f.copy_to_device)(address, source, bytes as usize, self.handle) });
        Ok(self.settled(begun)?)
    }

    /// Copies from device memory into registered memory, and waits for the copy.
    pub fn read_into(
        &self,
        from: &DeviceMemory,
        at: u64,
        to: &HostMemory,
        to_at: u64,
        bytes: u64,
    ) -> Result<(), TransferError> {
        let (address, destination) = (from.range(at, bytes)?, to.range(to_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside their memory, which lives until the stream has been waited
        // for.
        let begun = self.context.call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(destination, address, bytes as usize, self.handle)
        });
        Ok(self.settled(begun)?)
    }

    /// Copies within device memory, and waits for the copy.
    pub fn copy(&self, memory: &DeviceMemory, from: u64, to: u64, bytes: u64) -> Result<(), TransferError> {
        let (source, destination) = (memory.range(from, bytes)?, memory.range(to, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside the memory.
        let begun = self.context.call("cuMemcpyDtoDAsync", |f| unsafe {
            (f.copy_on_device)(destination, source, bytes as usize, self.handle)
        });
        Ok(self.settled(begun)?)
    }

    /// Sets bytes of device memory, and waits for completion.
    pub fn fill(&self, memory: &DeviceMemory, at: u64, value: u8, bytes: u64) -> Result<(), TransferError> {
        let address = memory.range(at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside the memory.
        let begun = self
            .context
            .call("cuMemsetD8Async", |f| unsafe { (f.fill_bytes)(address, value, bytes as usize, self.handle) });
        Ok(self.settled(begun)?)
    }

    /// Writes a word by a stream memory operation, which needs no compute unit. Does not wait.
    pub fn write_word(&self, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), TransferError> {
        let address = memory.range(at, 4)?;
        // SAFETY: the word is inside the memory; flags 0 order the write after earlier work in the
        // stream.
        Ok(self.context.call("cuStreamWriteValue32", |f| unsafe { (f.write_value)(self.handle, address, value, 0) })?)
    }

    /// Sets a word by a fill. Does not wait.
    pub fn fill_word(&self, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), TransferError> {
        let address = memory.range(at, 4)?;
        // SAFETY: the word is inside the memory.
        Ok(self.context.call("cuMemsetD32Async", |f| unsafe { (f.fill_words)(address, value, 1, self.handle) })?)
    }

    /// Copies a word of host memory to device memory. Does not wait: the host word is read before
    /// the stream has been waited for, and must live until then.
    pub fn copy_word(
        &self,
        memory: &DeviceMemory,
        at: u64,
        from: &HostWords,
        index: usize,
    ) -> Result<(), TransferError> {
        let (address, word) = (memory.range(at, 4)?, from.word(index).as_ptr());
        // SAFETY: the word on the device is inside the memory; the host word is pinned, and freeing
        // pinned memory waits for work that uses it.
        Ok(self
            .context
            .call("cuMemcpyHtoDAsync", |f| unsafe { (f.copy_to_device)(address, word.cast(), 4, self.handle) })?)
    }

    /// Waits even if the transfer could not be started: earlier work may use the same memory.
    fn settled(&self, begun: Result<(), CudaError>) -> Result<(), CudaError> {
        let ended = self.synchronize();
        begun.and(ended)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.handle == CUstream::NULL {
            return;
        }
        // SAFETY: the handle is ours and not used again; work in the stream still completes.
        self.context.release(|f| unsafe { (f.stream_destroy)(self.handle) });
    }
}

/// A timed event.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

impl Event {
    /// An event that has not been recorded.
    pub fn new(context: &Arc<Context>) -> Result<Event, CudaError> {
        Event::with_flags(context, 0)
    }

    /// Creates an event with the driver's flags.
    pub fn with_flags(context: &Arc<Context>, flags: u32) -> Result<Event, CudaError> {
        let mut handle = CUevent::NULL;
        // SAFETY: writes one handle to the given address; the driver refuses unknown flags.
        context.call("cuEventCreate", |f| unsafe { (f.event_create)(&mut handle, flags) })?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Waits until all work before the event has completed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event is alive.
        self.context.call("cuEventSynchronize", |f| unsafe { (f.event_sync)(self.handle) })
    }

    /// Records the event in a stream.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        self.context.call("cuEventRecord", |f| unsafe { (f.event_record)(self.handle, stream.handle) })
    }

    /// Whether all work before the event has completed.
    pub fn is_passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match self.context.call("cuEventQuery", |f| unsafe { (f.event_query)(self.handle) }) {
            Ok(()) => Ok(true),
            Err(error) if error.code == status::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Nanoseconds from an earlier event to this one; 0 if the order is reversed. Both must have
    /// passed. The driver's resolution is 0.5 µs.
    pub fn nanos_since(&self, earlier: &Event) -> Result<u64, CudaError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: writes one float to the given address; both events are alive.
        self.context.call("cuEventElapsedTime", |f| unsafe {
            (f.event_elapsed)(&mut milliseconds, earlier.handle, self.handle)
        })?;
        // The conversion saturates.
        Ok((f64::from(milliseconds) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again.
        self.context.release(|f| unsafe { (f.event_destroy)(self.handle) });
    }
}
