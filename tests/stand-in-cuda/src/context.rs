//! Contexts, and what a fault does to them.

use crate::device::{Device, Place};
use crate::graph::Capture;
use crate::life::Life;
use crate::memory::{Kind, Memory};
use crate::status::Status;
use crate::stream::Stream;
use crate::table::Handle;
use crate::work::Work;
use atoll_kgraph::DiskCache;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How long to wait for work that was ended before it is told again: a launch may just have been
/// beginning.
const END_AGAIN: Duration = Duration::from_millis(5);

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) device: Arc<Device>,
    pub(crate) is_primary: bool,
    pub(crate) life: Life,
    /// That of the process.
    memory: &'static Memory,
    /// Where native code of kernels is kept.
    pub(crate) code_cache: Option<Arc<DiskCache>>,
    default_stream: Mutex<Option<Arc<Stream>>>,
    /// All streams that have something to do, those included that the program destroyed.
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
        let life = Life::new(handle);
        Context {
            handle,
            device,
            is_primary,
            life,
            memory,
            code_cache,
            default_stream: Mutex::default(),
            streams: Mutex::default(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory
    }

    /// Takes memory that belongs to the context.
    pub(crate) fn take_memory(&self, bytes: u64, align: u64, kind: Kind) -> Result<u64, Status> {
        self.memory().take(bytes, align, kind, (self.handle, self.device.ordinal))
    }

    /// The error that every call gets since a kernel went wrong.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.life.check()
    }

    /// Whether its work is not done any more.
    pub(crate) fn is_over(&self) -> bool {
        self.check().is_err()
    }

    /// A kernel went wrong: nothing else of the context runs or will run.
    pub(crate) fn fail(&self, status: Status) {
        if self.life.fail(status) {
            self.device.abort(self.handle);
        }
    }

    /// The default stream: the one of number 0.
    pub(crate) fn default_stream(self: &Arc<Context>) -> Result<Arc<Stream>, Status> {
        let mut stream = self.default_stream.lock().unwrap_or_else(PoisonError::into_inner);
        match &*stream {
            Some(stream) => Ok(stream.clone()),
            None => Ok(stream.insert(self.start_stream(Place { priority: 0, part: None }, true)?).clone()),
        }
    }

    /// What a piece of work has to wait for beside what stands in its own stream: blocking streams
    /// and the default one keep order.
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

    /// Waits for all that is in its streams.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        self.refuse_while_capturing()?;
        for stream in self.streams(|_| true) {
            stream.wait(stream.taken());
        }
        self.check()
    }

    /// Refuses what cannot be captured, and could disturb a capture that goes on.
    pub(crate) fn refuse_while_capturing(&self) -> Result<(), Status> {
        let captures: Vec<Arc<Capture>> = self.streams(|_| true).iter().filter_map(|stream| stream.capture()).collect();
        let forbidding: Vec<_> = captures.iter().filter(|capture| capture.forbids()).collect();
        forbidding.iter().for_each(|capture| capture.invalidate());
        if forbidding.is_empty() { Ok(()) } else { Err(Status::CaptureUnsupported) }
    }

    /// Ends all that runs; nothing is done in it any more.
    pub(crate) fn end(&self) {
        self.life.end();
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

    /// Makes a stream.
    pub(crate) fn start_stream(self: &Arc<Context>, place: Place, is_blocking: bool) -> Result<Arc<Stream>, Status> {
        let stream = Stream::start(self, place, is_blocking)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// Streams of this context.
    pub(crate) fn streams(&self, is_meant: impl Fn(&Stream) -> bool) -> Vec<Arc<Stream>> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter_map(Weak::upgrade).filter(|stream| is_meant(stream)).collect()
    }
}
