//! The operations of streams, and the points in streams that events mark.

use crate::space::Space;
use atoll_amd_interp::{Launch, Program};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A point in a stream, and the time at which the stream reached it.
#[derive(Debug, Default)]
pub(crate) struct Marker(OnceLock<Instant>);

impl Marker {
    /// The time at which the stream reached it.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }

    fn reach(&self) {
        let _ = self.0.set(Instant::now());
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    /// The device whose streams may record it.
    pub(crate) device: u32,
    /// Whether it records times.
    pub(crate) keeps_time: bool,
    recorded: Mutex<Option<Arc<Marker>>>,
}

impl Event {
    pub(crate) fn new(device: u32, keeps_time: bool) -> Event {
        Event { device, keeps_time, recorded: Mutex::default() }
    }

    /// The point that it marks. `None` if it was never recorded, which counts as reached.
    pub(crate) fn marker(&self) -> Option<Arc<Marker>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, marker: &Arc<Marker>) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(marker.clone());
    }
}

/// A launch in a stream.
pub(crate) struct LaunchWork {
    pub(crate) program: Arc<Program>,
    pub(crate) kernel: String,
    pub(crate) launch: Launch,
}

/// An operation in a stream.
pub(crate) enum Work {
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Fill {
        to: u64,
        value: u8,
        bytes: u64,
    },
    FillWords {
        to: u64,
        value: u32,
        count: u64,
    },
    Record(Arc<Marker>),
    Wait(Arc<Marker>),
    Launch(Box<LaunchWork>),
    /// A launch that has been passed to the compute units.
    Running,
}

impl Work {
    /// Carries out an operation that needs no compute unit. Returns false if it has to wait.
    pub(crate) fn perform(&self, space: &Space) -> bool {
        match self {
            Work::Copy { to, from, bytes } => space.copy(*to, *from, *bytes),
            Work::Fill { to, value, bytes } => space.fill(*to, *value, *bytes),
            Work::FillWords { to, value, count } => space.fill_words(*to, *value, *count),
            Work::Record(marker) => marker.reach(),
            Work::Wait(marker) => return marker.at().is_some(),
            Work::Launch(_) | Work::Running => return false,
        }
        true
    }
}
