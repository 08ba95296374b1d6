//! Metrics that the server itself counts. All others come from the engines.

use super::codes::CODES;
use crate::identity::Refusals;
use crate::otlp::Counts;
use crate::places::ClosedCounts;
use atoll_engine::{Class, DeviceId, InvocationResult, InvokeError};
use axum::http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tonic::Code;

/// Outcome of a request that was submitted to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// The request was invalid.
    Invalid,
    /// The queue was full, memory or a quota was exhausted, or the class or session was refused.
    Refused,
    DeadlineExceeded,
    /// The client disconnected, the function was unloaded, or the server stopped.
    Cancelled,
    Failed,
}

impl Outcome {
    pub(crate) const ALL: [Outcome; 6] = [
        Outcome::Success,
        Outcome::Invalid,
        Outcome::Refused,
        Outcome::DeadlineExceeded,
        Outcome::Cancelled,
        Outcome::Failed,
    ];

    pub(crate) fn of(result: &Result<InvocationResult, InvokeError>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(InvokeError::BadInput(_) | InvokeError::NoSession) => Outcome::Invalid,
            Err(
                InvokeError::QueueFull { .. }
                | InvokeError::ClassRefused(_)
                | InvokeError::OutOfMemory { .. }
                | InvokeError::OverQuota { .. }
                | InvokeError::OverInstanceMemory { .. }
                | InvokeError::SessionBusy
                | InvokeError::TooManySessions { .. },
            ) => Outcome::Refused,
            Err(InvokeError::DeadlineExceeded) => Outcome::DeadlineExceeded,
            Err(
                InvokeError::Cancelled
                | InvokeError::Unloaded
                | InvokeError::UnknownFunction
                | InvokeError::UnknownInstance(_)
                | InvokeError::InstanceRemoved(_)
                | InvokeError::ShuttingDown,
            ) => Outcome::Cancelled,
            Err(
                InvokeError::Device(_)
                | InvokeError::DeviceLost(_)
                | InvokeError::ExecutorLost(_)
                | InvokeError::Unavailable(_)
                | InvokeError::SessionLost,
            ) => Outcome::Failed,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::Invalid => "invalid",
            Outcome::Refused => "refused",
            Outcome::DeadlineExceeded => "deadline_exceeded",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
        }
    }
}

pub(crate) const CLASSES: [Class; 2] = [Class::RealTime, Class::BestEffort];

pub(crate) fn class_label(class: Class) -> &'static str {
    match class {
        Class::RealTime => "real_time",
        Class::BestEffort => "best_effort",
    }
}

/// The server's counters.
pub(crate) struct Recorder {
    /// Indexed by [`DeviceId`].
    devices: Vec<DeviceRecorder>,
    /// Answers by the first digit of the status, 1 to 5.
    responses: [AtomicU64; 5],
    /// Answers over gRPC by the number of their code.
    grpc: [AtomicU64; CODES.len()],
    /// Open connections on all ports.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Connections on all ports that were closed for inactivity or to make room, by reason.
    pub(crate) closed: Arc<ClosedCounts>,
    /// Requests that were refused for lack of credentials or rights.
    pub(crate) refusals: Refusals,
    /// Lines of the access log that were not written.
    pub(crate) access_log_dropped: Arc<AtomicU64>,
    /// Spans that were sent to the collector or dropped.
    pub(crate) otlp: Arc<Counts>,
}

/// Request counters of the models on one device.
#[derive(Default)]
pub(crate) struct DeviceRecorder {
    classes: [ClassRecorder; CLASSES.len()],
}

#[derive(Default)]
struct ClassRecorder {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    durations: Durations,
}

impl Recorder {
    /// Counters for `devices` devices.
    pub(crate) fn new(devices: usize) -> Recorder {
        Recorder {
            devices: std::iter::repeat_with(DeviceRecorder::default).take(devices).collect(),
            responses: Default::default(),
            grpc: Default::default(),
            connections: Arc::default(),
            closed: Arc::default(),
            refusals: Refusals::default(),
            access_log_dropped: Arc::default(),
            otlp: Arc::default(),
        }
    }

    pub(crate) fn note_request(&self, device: DeviceId, class: Class, outcome: Outcome, duration: Duration) {
        let class = self.device(device).class(class);
        class.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        if outcome == Outcome::Success {
            class.durations.note(duration);
        }
    }

    pub(crate) fn note_response(&self, status: StatusCode) {
        let digit = usize::from(status.as_u16() / 100).clamp(1, 5);
        self.responses[digit - 1].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_grpc(&self, code: Code) {
        self.grpc[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers over gRPC by code.
    pub(crate) fn grpc(&self) -> impl Iterator<Item = (Code, u64)> {
        CODES.iter().map(|code| (*code, self.grpc[*code as usize].load(Ordering::Relaxed)))
    }

    /// The counters of one device.
    pub(crate) fn device(&self, device: DeviceId) -> &DeviceRecorder {
        &self.devices[usize::from(device.0)]
    }

    /// Number of answers with a status of `digit` hundred.
    pub(crate) fn responses(&self, digit: usize) -> u64 {
        self.responses[digit - 1].load(Ordering::Relaxed)
    }
}

impl DeviceRecorder {
    pub(crate) fn requests(&self, class: Class, outcome: Outcome) -> u64 {
        self.class(class).outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn durations(&self, class: Class) -> &Durations {
        &self.class(class).durations
    }

    fn class(&self, class: Class) -> &ClassRecorder {
        match class {
            Class::RealTime => &self.classes[0],
            Class::BestEffort => &self.classes[1],
        }
    }
}

/// Upper bounds of the duration buckets, in nanoseconds: from a request on an idle machine to a
/// large model on a busy one.
pub(crate) const BUCKETS_NS: [u64; 16] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

/// A histogram of durations that threads update without locks.
#[derive(Default)]
pub(crate) struct Durations {
    /// Counts per bucket, not cumulative; the last bucket is unbounded.
    buckets: [AtomicU64; BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Durations {
    fn note(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[BUCKETS_NS.partition_point(|bound| *bound < ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Cumulative counts for each bound, followed by the total count.
    pub(crate) fn cumulative(&self) -> Vec<u64> {
        let mut sum = 0;
        let mut add = |bucket: &AtomicU64| {
            sum += bucket.load(Ordering::Relaxed);
            sum
        };
        self.buckets.iter().map(&mut add).collect()
    }

    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_the_right_bucket() {
        let durations = Durations::default();
        for ns in [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001] {
            durations.note(Duration::from_nanos(ns));
        }
        let cumulative = durations.cumulative();
        assert_eq!(cumulative[..3], [2, 3, 3]);
        assert_eq!(cumulative[BUCKETS_NS.len() - 1..], [4, 5]);
        assert!(BUCKETS_NS.is_sorted());
    }
}
