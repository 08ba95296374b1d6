//! Work that was captured from streams instead of being done, and graphs made of it.

use crate::context::Context;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which calls a capture forbids to whom while it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Calls that could not be captured are refused to all threads.
    Global,
    /// To the thread that began.
    ThreadLocal,
    /// To nobody.
    Relaxed,
}

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream in which it began, and must end.
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
    /// For each stream that joined, how much was captured from it, and how much of that others wait
    /// for.
    joined: HashMap<Handle, (u64, u64)>,
}

/// A place in a capture.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) capture: Arc<Capture>,
    stream: Handle,
    count: u64,
}

/// A graph: captured work, in an order in which it can be done.
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

    /// Adds a piece of work of a stream.
    pub(crate) fn push(&self, stream: Handle, work: Work) {
        let mut content = self.lock();
        content.works.push(work);
        content.joined.entry(stream).or_default().0 += 1;
    }

    /// The place that a stream has come to.
    pub(crate) fn place(self: &Arc<Capture>, stream: Handle) -> Captured {
        let mut content = self.lock();
        let entry = content.joined.entry(stream).or_default();
        Captured { capture: self.clone(), stream, count: entry.0 }
    }

    /// A stream waits for a place in the capture, and so becomes a part of it.
    pub(crate) fn wait(&self, stream: Handle, place: &Captured) {
        let mut content = self.lock();
        // To have joined counts as work that somebody has to wait for.
        content.joined.entry(stream).or_insert((1, 0));
        if stream != place.stream
            && let Some((_, waited)) = content.joined.get_mut(&place.stream)
        {
            *waited = place.count.max(*waited);
        }
    }

    /// A call was made that spoils it.
    pub(crate) fn invalidate(&self) {
        self.is_invalid.store(true, Relaxed);
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid.load(Relaxed)
    }

    /// Whether it forbids calls that could not be captured to the thread that asks.
    pub(crate) fn forbids(&self) -> bool {
        match self.mode {
            Mode::Global => true,
            Mode::ThreadLocal => self.thread == std::thread::current().id(),
            Mode::Relaxed => false,
        }
    }

    /// What was captured.
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
