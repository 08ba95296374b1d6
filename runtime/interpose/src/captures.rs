//! Calls in streams that are captured.

use crate::link::Link;
use crate::shim::Shim;
use crate::work::Work;
use atoll_cuda_api::constants::CU_STREAM_NON_BLOCKING;
use atoll_session::{CaptureMode, CaptureStatus, Client, Code};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    /// Which calls captures may forbid to this thread.
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    /// The number of this thread.
    static THREAD: u64 = {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Relaxed) + 1
    };
}

/// A number of the calling thread; 0 while it ends.
pub(crate) fn thread() -> u64 {
    THREAD.try_with(|thread| *thread).unwrap_or(0)
}

/// Sets which calls captures may forbid to this thread. Returns the mode before.
pub(crate) fn exchange_mode(mode: CaptureMode) -> CaptureMode {
    MODE.try_with(|current| current.replace(mode)).unwrap_or(CaptureMode::Global)
}

impl Shim {
    /// Whether work of a stream is captured.
    ///
    /// # Errors
    /// If the stream does not exist; if its capture is invalid; or for the default stream if streams
    /// that are ordered with it are captured, whose captures become invalid.
    pub(crate) fn is_captured(&mut self, stream: u32) -> Result<bool, Code> {
        self.client.check_stream(stream)?;
        if !self.graphs.is_capturing() {
            return Ok(false);
        }
        if stream == 0 {
            let client = &self.client;
            let is_implied = self.graphs.invalidate_if(|other| is_ordered(client, other));
            return if is_implied { Err(Code::STREAM_CAPTURE_IMPLICIT) } else { Ok(false) };
        }
        match self.graphs.capture_status(stream) {
            CaptureStatus::None => Ok(false),
            CaptureStatus::Active(_) => Ok(true),
            CaptureStatus::Invalidated(_) => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Whether a stream is captured, for calls that only ask: no capture becomes invalid.
    ///
    /// # Errors
    /// If the stream does not exist, or for the default stream if streams that are ordered with it are
    /// captured.
    pub(crate) fn capture_status(&self, stream: u32) -> Result<CaptureStatus, Code> {
        self.client.check_stream(stream)?;
        let captured = self.graphs.captured_streams();
        let is_implied = stream == 0 && captured.into_iter().any(|other| is_ordered(&self.client, other));
        if is_implied { Err(Code::STREAM_CAPTURE_IMPLICIT) } else { Ok(self.graphs.capture_status(stream)) }
    }

    /// Adds work to the capture of a stream.
    pub(crate) fn capture(&mut self, stream: u32, work: Work) -> Result<(), Code> {
        self.graphs.capture(stream, Some(Arc::new(work))).map(drop)
    }

    /// Returns an error for calls that cannot be captured, such as allocations, if a capture forbids
    /// them to this thread. The capture becomes invalid.
    pub(crate) fn forbid_in_capture(&mut self) -> Result<(), Code> {
        if !self.graphs.is_capturing() {
            return Ok(());
        }
        let mode = MODE.try_with(Cell::get).unwrap_or(CaptureMode::Global);
        if self.graphs.forbid(mode, thread()) { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Returns an error if a stream is captured, for calls that wait for it. The capture becomes
    /// invalid.
    pub(crate) fn refuse_captured(&mut self, stream: u32) -> Result<(), Code> {
        if stream == 0 {
            return self.is_captured(stream).map(drop);
        }
        if self.graphs.invalidate(stream) { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Returns an error if any stream is captured, for calls that wait for all. The captures become
    /// invalid.
    pub(crate) fn refuse_all_captured(&mut self) -> Result<(), Code> {
        if self.graphs.invalidate_if(|_| true) { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Returns an error if an event stands for captured work, for calls that ask about it.
    pub(crate) fn refuse_captured_event(&self, event: u32) -> Result<(), Code> {
        if self.graphs.is_captured(event) { Err(Code::CAPTURED_EVENT) } else { Ok(()) }
    }
}

/// Whether the work of a stream is ordered with that of the default stream.
fn is_ordered(client: &Client<Link>, stream: u32) -> bool {
    let facts = client.stream_facts(stream).ok().flatten();
    facts.is_some_and(|(_, flags, _)| flags & CU_STREAM_NON_BLOCKING == 0)
}
