//! Captures, and graphs made of captured work.

use crate::context::Context;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which calls a capture forbids, and in which threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Forbids calls that cannot be captured, in all threads.
    Global,
    /// Forbids the same calls, only in the thread that began the capture.
    ThreadLocal,
    /// Forbids nothing.
    Relaxed,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream in which it began and must end.
    pub(crate) origin: Handle,
    pub(crate) mode: Mode,
    pub(crate) id: u64,
    thread: std::thread::ThreadId,
    is_invalid: AtomicBool,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    works: Vec<Work>,
    /// For each stream that joined: how much work was captured from it, and how much of it other
    /// streams wait for.
    joined: HashMap<Handle, (u64, u64)>,
}

/// A point in a capture.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) capture: Arc<Capture>,
    stream: Handle,
    count: u64,
}

/// A graph: captured work, in an order that satisfies its dependencies.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) context: Arc<Context>,
    pub(crate) works: Arc<[Work]>,
}

impl Capture {
    pub(crate) fn new(origin: Handle, mode: Mode) -> Arc<Capture> {
        let (thread, id) = (std::thread::current().id(), Handle::fresh().0);
        Arc::new(Capture { origin, mode, id, thread, is_invalid: AtomicBool::new(false), content: Mutex::default() })
    }

    /// Adds an operation of a stream.
    pub(crate) fn push(&self, stream: Handle, work: Work) {
        let mut content = self.lock();
        content.works.push(work);
        content.joined.entry(stream).or_default().0 += 1;
    }

    /// The point that a stream has reached.
    pub(crate) fn place(self: &Arc<Capture>, stream: Handle) -> Captured {
        let mut content = self.lock();
        let entry = content.joined.entry(stream).or_default();
        Captured { capture: self.clone(), stream, count: entry.0 }
    }

    /// Makes a stream wait for a point in the capture. The stream thereby joins the capture.
    pub(crate) fn wait(&self, stream: Handle, place: &Captured) {
        let mut content = self.lock();
        // Joining counts as work for which another stream has to wait.
        content.joined.entry(stream).or_insert((1, 0));
        if stream != place.stream
            && let Some((_, waited)) = content.joined.get_mut(&place.stream)
        {
            *waited = place.count.max(*waited);
        }
    }

    /// Invalidates the capture because of a forbidden call.
    pub(crate) fn invalidate(&self) {
        self.is_invalid.store(true, Relaxed);
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid.load(Relaxed)
    }

    /// Whether it forbids calls that cannot be captured to the calling thread.
    pub(crate) fn forbids(&self) -> bool {
        match self.mode {
            Mode::Global => true,
            Mode::ThreadLocal => self.thread == std::thread::current().id(),
            Mode::Relaxed => false,
        }
    }

    /// The captured work.
    pub(crate) fn finish(&self) -> Result<Arc<[Work]>, Status> {
        let mut content = self.lock();
        let is_joined = |(stream, (count, waited)): (&Handle, &(u64, u64))| *stream == self.origin || count == waited;
        match (self.is_invalid(), content.joined.iter().all(is_joined)) {
            (true, _) => Err(Status::CaptureInvalidated),
            (_, false) => Err(Status::CaptureUnjoined),
            _ => Ok(std::mem::take(&mut content.works).into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
