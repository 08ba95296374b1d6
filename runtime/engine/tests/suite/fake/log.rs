//! What the engine asked the fake device to do, in order.

use super::Controls;
use atoll_core::LaunchId;
use std::sync::Mutex;

/// An operation that the device was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Storing the epoch of an invocation.
    StoreEpoch,
    /// Stopping blocks of an evicted launch.
    Interrupt { launch: LaunchId, blocks: u64 },
    /// Writing to device memory.
    Write { bytes: usize },
    /// Running a launch.
    Submit(LaunchId),
}

#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Op>>);

impl Log {
    pub(super) fn note(&self, op: Op) {
        self.0.lock().expect("no panic").push(op);
    }
}

impl Controls {
    /// The operations so far.
    pub(crate) fn log(&self) -> Vec<Op> {
        self.0.log.0.lock().expect("no panic").clone()
    }
}
