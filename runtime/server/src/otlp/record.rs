//! The record of a finished request, from which its spans are made.

use atoll_core::TaskId;
use atoll_engine::{Class, DeviceId, InvocationTiming};
use rustix::time::{ClockId, clock_gettime};

/// A finished request. All times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) protocol: &'static str,
    pub(super) model: String,
    pub(super) version: String,
    pub(super) tenant: String,
    pub(super) request_id: String,
    pub(super) class: Option<Class>,
    /// Start and end, since 1970.
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Added to a time of the monotonic clock, gives the time since 1970.
    pub(super) clock_offset_ns: u64,
    pub(super) ran: Option<Ran>,
    pub(super) error: Option<Failure>,
}

/// How a request ran on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) timing: InvocationTiming,
    pub(super) device: DeviceId,
    /// Its ids in the traces of the device and of the pool.
    pub(super) task: Option<TaskId>,
    pub(super) placed: Option<TaskId>,
    pub(super) preemptions: u32,
    pub(super) cold_start: bool,
    pub(super) batch: u32,
    /// When the result arrived, by the monotonic clock.
    pub(super) replied_ns: u64,
}

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

impl Finished {
    /// The number of its spans.
    pub(super) fn spans(&self) -> usize {
        if self.ran.is_some_and(|ran| ran.has_phases()) { 6 } else { 1 }
    }
}

impl Ran {
    /// Whether it ran on a device. False if it was answered from the response cache.
    pub(super) fn has_phases(&self) -> bool {
        self.timing != InvocationTiming::default()
    }
}

/// The time of the monotonic clock, which trace records use.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
