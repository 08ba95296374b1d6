//! Streams: each is a thread that performs its operations in order.

use crate::context::Context;
use crate::device::Place;
use crate::graph::Capture;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Arc<Context>,
    /// Where its launches run.
    pub(crate) place: Place,
    /// Whether it is ordered with the default stream.
    pub(crate) is_blocking: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Number of operations that were added; `done` counts the complete ones.
    taken: u64,
    done: u64,
    /// No more operations will be added; the thread ends after the last one.
    is_closed: bool,
    capture: Option<Arc<Capture>>,
}

impl Stream {
    /// Creates a stream and starts its thread.
    pub(crate) fn start(context: &Arc<Context>, place: Place, is_blocking: bool) -> Result<Arc<Stream>, Status> {
        let stream = Arc::new(Stream {
            handle: Handle::fresh(),
            context: context.clone(),
            place,
            is_blocking,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = stream.clone();
        let thread = std::thread::Builder::new().name("stand-in-stream".to_owned()).spawn(move || worker.work());
        thread.map_err(|_| Status::OperatingSystem)?;
        Ok(stream)
    }

    /// Adds an operation to the stream, or to the capture in progress.
    pub(crate) fn push(self: &Arc<Stream>, work: Work) -> Result<(), Status> {
        self.context.check()?;
        if let Some(capture) = self.capture() {
            if capture.is_invalid() {
                return Err(Status::CaptureInvalidated);
            }
            capture.push(self.handle, work);
            return Ok(());
        }
        for before in self.context.implicitly_before(self)? {
            self.append(before);
        }
        self.append(work);
        Ok(())
    }

    /// Waits until all its operations are complete.
    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        self.refuse_while_capturing()?;
        self.wait(self.taken());
        self.context.check()
    }

    /// Succeeds if all its operations are complete.
    pub(crate) fn query(&self) -> Result<(), Status> {
        self.refuse_while_capturing()?;
        let state = self.lock();
        if state.done == state.taken { Ok(()) } else { Err(Status::NotReady) }
    }

    /// Number of operations that were added, if some are not complete.
    pub(crate) fn unfinished(&self) -> Option<u64> {
        let state = self.lock();
        (state.done < state.taken).then_some(state.taken)
    }

    /// Waits until `count` operations are complete.
    pub(crate) fn wait(&self, count: u64) {
        while !self.wait_for(count, Duration::MAX) {}
    }

    /// Like [`Stream::wait`], for a limited time; false if the operations are not complete by then.
    pub(crate) fn wait_for(&self, count: u64, time: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, time, |state| state.done < count)
            .unwrap_or_else(PoisonError::into_inner);
        state.done >= count
    }

    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Lets the thread end after the last operation.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.lock().capture.clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        self.lock().capture = capture;
    }

    /// Refuses a call that cannot be captured, and invalidates the capture.
    fn refuse_while_capturing(&self) -> Result<(), Status> {
        match self.capture() {
            Some(capture) => {
                capture.invalidate();
                Err(Status::CaptureUnsupported)
            }
            None => Ok(()),
        }
    }

    fn append(&self, work: Work) {
        let mut state = self.lock();
        state.waiting.push_back(work);
        state.taken += 1;
        drop(state);
        self.changed.notify_all();
    }

    fn work(&self) {
        while let Some(work) = self.next() {
            work.run(&self.context, &self.place);
            // Resources of the operation must be freed before other threads see it complete.
            drop(work);
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                return Some(work);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
