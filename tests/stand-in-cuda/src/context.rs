//! Contexts.

use crate::device::{Device, Place};
use crate::fault_state::FaultState;
use crate::graph::Capture;
use crate::memory::{Kind, Memory};
use crate::status::Status;
use crate::stream::Stream;
use crate::table::Handle;
use crate::work::Work;
use atoll_kgraph::DiskCache;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How long to wait for aborted work before aborting again: a launch may just have started.
const END_AGAIN: Duration = Duration::from_millis(5);

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: Arc<Device>,
    pub(crate) is_primary: bool,
    pub(crate) fault_state: FaultState,
    /// The memory of the process.
    memory: &'static Memory,
    /// The cache of native code, if there is one.
    pub(crate) code_cache: Option<Arc<DiskCache>>,
    default_stream: Mutex<Option<Arc<Stream>>>,
    /// All streams with unfinished work, including those that the program destroyed.
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Context {
    pub(crate) fn new(
        memory: &'static Memory,
        code_cache: Option<Arc<DiskCache>>,
        device: Arc<Device>,
        handle: Handle,
        is_primary: bool,
    ) -> Context {
        let fault_state = FaultState::new(handle);
        Context {
            handle,
            device,
            is_primary,
            fault_state,
            memory,
            code_cache,
            default_stream: Mutex::default(),
            streams: Mutex::default(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory
    }

    /// Allocates memory that belongs to the context.
    pub(crate) fn take_memory(&self, bytes: u64, align: u64, kind: Kind) -> Result<u64, Status> {
        self.memory().take(bytes, align, kind, (self.handle, self.device.ordinal))
    }

    /// The error that every call returns after a fault.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.fault_state.check()
    }

    /// Whether the context has faulted or was destroyed, so that no work runs any more.
    pub(crate) fn is_over(&self) -> bool {
        self.check().is_err()
    }

    /// Records a fault: no other work of the context runs from now on.
    pub(crate) fn fail(&self, status: Status) {
        if self.fault_state.fail(status) {
            self.device.abort(self.handle);
        }
    }

    /// The default stream, with handle 0.
    pub(crate) fn default_stream(self: &Arc<Context>) -> Result<Arc<Stream>, Status> {
        let mut stream = self.default_stream.lock().unwrap_or_else(PoisonError::into_inner);
        match &*stream {
            Some(stream) => Ok(stream.clone()),
            None => Ok(stream.insert(self.start_stream(Place { priority: 0, part: None }, true)?).clone()),
        }
    }

    /// Operations that a stream implicitly waits for: blocking streams are ordered with the default
    /// stream.
    pub(crate) fn implicitly_before(&self, stream: &Stream) -> Result<Vec<Work>, Status> {
        if !stream.is_blocking {
            return Ok(Vec::new());
        }
        let default = self.default_stream.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(default) = default else { return Ok(Vec::new()) };
        let others = if default.handle == stream.handle {
            self.streams(|other| other.is_blocking)
        } else {
            vec![default.clone()]
        };
        if default.handle == stream.handle && others.iter().any(|other| other.capture().is_some()) {
            return Err(Status::CaptureImplicit);
        }
        Ok(others.into_iter().filter_map(|stream| Some(Work::Behind { count: stream.unfinished()?, stream })).collect())
    }

    /// Waits for all work in its streams.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        self.refuse_while_capturing()?;
        for stream in self.streams(|_| true) {
            stream.wait(stream.taken());
        }
        self.check()
    }

    /// Refuses a call that cannot be captured and could disturb a capture in progress.
    pub(crate) fn refuse_while_capturing(&self) -> Result<(), Status> {
        let captures: Vec<Arc<Capture>> = self.streams(|_| true).iter().filter_map(|stream| stream.capture()).collect();
        let forbidding: Vec<_> = captures.iter().filter(|capture| capture.forbids()).collect();
        forbidding.iter().for_each(|capture| capture.invalidate());
        if forbidding.is_empty() { Ok(()) } else { Err(Status::CaptureUnsupported) }
    }

    /// Ends all running work; nothing runs in the context any more.
    pub(crate) fn end(&self) {
        self.fault_state.end();
        for stream in self.streams(|_| true) {
            stream.set_capture(None);
            self.device.abort(self.handle);
            while !stream.wait_for(stream.taken(), END_AGAIN) {
                self.device.abort(self.handle);
            }
            stream.close();
        }
        self.default_stream.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Creates a stream.
    pub(crate) fn start_stream(self: &Arc<Context>, place: Place, is_blocking: bool) -> Result<Arc<Stream>, Status> {
        let stream = Stream::start(self, place, is_blocking)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// Streams of this context that satisfy a predicate.
    pub(crate) fn streams(&self, is_meant: impl Fn(&Stream) -> bool) -> Vec<Arc<Stream>> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter_map(Weak::upgrade).filter(|stream| is_meant(stream)).collect()
    }
}
