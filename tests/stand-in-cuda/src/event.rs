//! Events.

use crate::context::Context;
use crate::graph::Captured;
use crate::marker::Marker;
use crate::status::Status;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What an event refers to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Recorded {
    /// It was never recorded, which counts as complete.
    #[default]
    Never,
    /// A point in a stream.
    Marker(Arc<Marker>),
    /// A point in a capture.
    Captured(Captured),
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    /// Whether it records times.
    pub(crate) keeps_time: bool,
    recorded: Mutex<Recorded>,
}

impl Event {
    pub(crate) fn new(context: Arc<Context>, keeps_time: bool) -> Event {
        Event { context, keeps_time, recorded: Mutex::default() }
    }

    pub(crate) fn set(&self, recorded: Recorded) {
        *lock(&self.recorded) = recorded;
    }

    pub(crate) fn recorded(&self) -> Recorded {
        lock(&self.recorded).clone()
    }

    /// Succeeds if all work before the event is complete.
    pub(crate) fn query(&self) -> Result<(), Status> {
        match self.recorded() {
            Recorded::Never => Ok(()),
            Recorded::Marker(marker) => marker.at().map(drop).ok_or(Status::NotReady),
            Recorded::Captured(_) => Err(Status::CapturedEvent),
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), Status> {
        match self.recorded() {
            Recorded::Never => Ok(()),
            Recorded::Marker(marker) => {
                marker.wait();
                Ok(())
            }
            Recorded::Captured(_) => Err(Status::CapturedEvent),
        }
    }

    /// Milliseconds from this event to a later one.
    pub(crate) fn elapsed_ms(&self, end: &Event) -> Result<f32, Status> {
        let (begin, end) = (self.time()?, end.time()?);
        let sign = if end >= begin { 1.0 } else { -1.0 };
        let between = end.max(begin).duration_since(end.min(begin));
        Ok((between.as_secs_f64() * 1e3 * sign) as f32)
    }

    fn time(&self) -> Result<Instant, Status> {
        match self.recorded() {
            Recorded::Marker(marker) if self.keeps_time => marker.at().ok_or(Status::NotReady),
            _ => Err(Status::InvalidHandle),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
