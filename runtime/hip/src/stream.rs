//! Streams, and events in them.

use crate::context::Context;
use crate::error::{HipError, status};
use crate::functions::Functions;
use crate::memory::{DeviceMemory, HostMemory};
use crate::units::UnitMask;
use atoll_hip_api::constants::STREAM_NON_BLOCKING;
use atoll_hip_api::types::{HipHandle, c_int, hipEvent_t, hipStream_t};
use std::sync::Arc;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    pub(crate) handle: hipStream_t,
}

impl Stream {
    /// Creates a non-blocking stream. A lower number is a higher priority.
    pub fn new(context: &Arc<Context>, priority: i32) -> Result<Stream, HipError> {
        let mut handle = hipStream_t::NULL;
        let create = |f: &Functions| {
            // SAFETY: writes one handle to the given address.
            unsafe { (f.stream_create)(&mut handle, STREAM_NON_BLOCKING, priority as c_int) }
        };
        context.call("hipStreamCreateWithPriority", create)?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// Creates a stream whose blocks run only on some compute units. It has the default priority,
    /// since the library has no call that sets both.
    pub fn on_units(context: &Arc<Context>, mask: &UnitMask) -> Result<Stream, HipError> {
        let mut handle = hipStream_t::NULL;
        let create = |f: &Functions| match f.masked_stream {
            // SAFETY: reads as many words as it is given; writes one handle to the given address.
            Some(create) => unsafe { create(&mut handle, mask.words().len() as u32, mask.words().as_ptr()) },
            None => status::NOT_SUPPORTED,
        };
        context.call("hipExtStreamCreateWithCUMask", create)?;
        Ok(Stream { context: context.clone(), handle })
    }

    /// The compute units that its blocks run on, of the first `units` of the device.
    pub fn units(&self, units: u32) -> Result<UnitMask, HipError> {
        let mut words = vec![0; units.div_ceil(32) as usize];
        let get = |f: &Functions| match f.stream_mask {
            // SAFETY: the stream is alive; writes as many words as it is given.
            Some(get) => unsafe { get(self.handle, words.len() as u32, words.as_mut_ptr()) },
            None => status::NOT_SUPPORTED,
        };
        self.context.call("hipExtStreamGetCUMask", get)?;
        Ok(UnitMask::of_words(words))
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> Result<bool, HipError> {
        // SAFETY: the stream is alive.
        done(self.context.call("hipStreamQuery", |f| unsafe { (f.stream_query)(self.handle) }))
    }

    /// Makes later work wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), HipError> {
        // SAFETY: both are alive; an event that was never recorded has passed.
        self.context.call("hipStreamWaitEvent", |f| unsafe { (f.stream_wait)(self.handle, event.handle, 0) })
    }

    /// Waits for all work in the stream.
    pub fn synchronize(&self) -> Result<(), HipError> {
        // SAFETY: the stream is alive.
        self.context.call("hipStreamSynchronize", |f| unsafe { (f.stream_sync)(self.handle) })
    }

    /// Copies bytes into device memory, and waits for the copy.
    pub fn write(&self, to: &DeviceMemory, at: u64, bytes: &[u8]) -> Result<(), HipError> {
        let address = to.range("hipMemcpyHtoDAsync", at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside the memory; the bytes are only read, and borrowed until the
        // stream has been waited for.
        let begun = self.context.call("hipMemcpyHtoDAsync", |f| unsafe {
            (f.copy_to_device)(address, bytes.as_ptr().cast_mut().cast(), bytes.len(), self.handle)
        });
        self.settled(begun)
    }

    /// Copies bytes out of device memory, and waits for the copy.
    pub fn read(&self, from: &DeviceMemory, at: u64, bytes: &mut [u8]) -> Result<(), HipError> {
        let address = from.range("hipMemcpyDtoHAsync", at, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside the memory; the bytes are borrowed until the stream has been
        // waited for.
        let begun = self.context.call("hipMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(bytes.as_mut_ptr().cast(), address, bytes.len(), self.handle)
        });
        self.settled(begun)
    }

    /// Copies from registered memory into device memory, and waits for the copy.
    pub fn write_from(
        &self,
        to: &DeviceMemory,
        at: u64,
        from: &HostMemory,
        from_at: u64,
        bytes: u64,
    ) -> Result<(), HipError> {
        const CALL: &str = "hipMemcpyHtoDAsync";
        let (address, source) = (to.range(CALL, at, bytes)?, from.range(CALL, from_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        let copy = |f: &Functions| {
            // SAFETY: both ranges are inside their memory, which lives until the stream has been
            // waited for.
            unsafe { (f.copy_to_device)(address, source, bytes as usize, self.handle) }
        };
        self.settled(self.context.call(CALL, copy))
    }

    /// Copies from device memory into registered memory, and waits for the copy.
    pub fn read_into(
        &self,
        from: &DeviceMemory,
        at: u64,
        to: &HostMemory,
        to_at: u64,
        bytes: u64,
    ) -> Result<(), HipError> {
        const CALL: &str = "hipMemcpyDtoHAsync";
        let (address, destination) = (from.range(CALL, at, bytes)?, to.range(CALL, to_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        let copy = |f: &Functions| {
            // SAFETY: both ranges are inside their memory, which lives until the stream has been
            // waited for.
            unsafe { (f.copy_to_host)(destination, address, bytes as usize, self.handle) }
        };
        self.settled(self.context.call(CALL, copy))
    }

    /// Copies within device memory, and waits for the copy.
    pub fn copy(&self, memory: &DeviceMemory, from: u64, to: u64, bytes: u64) -> Result<(), HipError> {
        const CALL: &str = "hipMemcpyDtoDAsync";
        let (source, destination) = (memory.range(CALL, from, bytes)?, memory.range(CALL, to, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside the memory.
        let copy = |f: &Functions| unsafe { (f.copy_on_device)(destination, source, bytes as usize, self.handle) };
        self.settled(self.context.call(CALL, copy))
    }

    /// Sets bytes of device memory, and waits for completion.
    pub fn fill(&self, memory: &DeviceMemory, at: u64, value: u8, bytes: u64) -> Result<(), HipError> {
        const CALL: &str = "hipMemsetD8Async";
        let address = memory.range(CALL, at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside the memory.
        let fill = |f: &Functions| unsafe { (f.fill_bytes)(address, value, bytes as usize, self.handle) };
        self.settled(self.context.call(CALL, fill))
    }

    /// Writes a word by a stream memory operation, which needs no compute unit. Does not wait.
    pub fn write_word(&self, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), HipError> {
        const CALL: &str = "hipStreamWriteValue32";
        let address = memory.range(CALL, at, 4)?;
        self.context.call(CALL, |f| match f.write_value {
            // SAFETY: the word is inside the memory; flags are reserved.
            Some(write) => unsafe { write(self.handle, address, value, 0) },
            None => status::NOT_SUPPORTED,
        })
    }

    /// Sets a word by a fill. Does not wait.
    pub fn fill_word(&self, memory: &DeviceMemory, at: u64, value: u32) -> Result<(), HipError> {
        const CALL: &str = "hipMemsetD32Async";
        let address = memory.range(CALL, at, 4)?;
        // SAFETY: the word is inside the memory.
        self.context.call(CALL, |f| unsafe { (f.fill_words)(address, value as c_int, 1, self.handle) })
    }

    /// Waits even if the transfer could not be started: earlier work may use the same memory.
    fn settled(&self, begun: Result<(), HipError>) -> Result<(), HipError> {
        let ended = self.synchronize();
        begun.and(ended)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and not used again; work in the stream still completes.
        self.context.release(|f| unsafe { (f.stream_destroy)(self.handle) });
    }
}

/// A timed event.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    handle: hipEvent_t,
}

impl Event {
    /// An event that has not been recorded.
    pub fn new(context: &Arc<Context>) -> Result<Event, HipError> {
        let mut handle = hipEvent_t::NULL;
        // SAFETY: writes one handle to the given address.
        context.call("hipEventCreateWithFlags", |f| unsafe { (f.event_create)(&mut handle, 0) })?;
        Ok(Event { context: context.clone(), handle })
    }

    /// Waits until all work before the event has completed.
    pub fn synchronize(&self) -> Result<(), HipError> {
        // SAFETY: the event is alive.
        self.context.call("hipEventSynchronize", |f| unsafe { (f.event_sync)(self.handle) })
    }

    /// Records the event in a stream.
    pub fn record(&self, stream: &Stream) -> Result<(), HipError> {
        // SAFETY: both are alive.
        self.context.call("hipEventRecord", |f| unsafe { (f.event_record)(self.handle, stream.handle) })
    }

    /// Whether all work before the event has completed.
    pub fn is_passed(&self) -> Result<bool, HipError> {
        // SAFETY: the event is alive.
        done(self.context.call("hipEventQuery", |f| unsafe { (f.event_query)(self.handle) }))
    }

    /// Nanoseconds from an earlier event to this one; 0 if the order is reversed. Both must be
    /// complete.
    pub fn nanos_since(&self, earlier: &Event) -> Result<u64, HipError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: writes one float to the given address; both events are alive.
        self.context.call("hipEventElapsedTime", |f| unsafe {
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

/// The answer of a query: `hipErrorNotReady` is no error.
fn done(answer: Result<(), HipError>) -> Result<bool, HipError> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code == status::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}
