//! Finds the records of requests in the traces of devices and of the pool.
//!
//! A trace is a ring that is always written. A mark is the ends of all traces at one time. The
//! records of a request come after the last mark before its beginning, so they are read from there.
//! A mark is taken after each message, so devices are not disturbed while no request is traced.
//! After a pause the last mark is old, and the whole ring is read.

use super::record::monotonic_ns;
use crate::limits::{OTLP_EVENTS_MAX, OTLP_INTERVAL, OTLP_MARKS_MAX, OTLP_TRACE_READS_MAX};
use atoll_core::TaskId;
use atoll_engine::DeviceId;
use atoll_fleet::Inference;
use atoll_trace::{EventKind, Raise, Record};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The ends of all traces at one time of the monotonic clock.
struct Mark {
    at_ns: u64,
    /// `None` for a trace that could not be read.
    ends: Vec<Option<u64>>,
}

/// The marks from which traces are read.
#[derive(Default)]
pub(super) struct Follower {
    /// Marks, the oldest first.
    marks: VecDeque<Mark>,
}

impl Follower {
    /// Takes a mark, unless the last one is younger than [`OTLP_INTERVAL`].
    pub(super) fn mark(&mut self, engine: &dyn Inference) {
        let at_ns = monotonic_ns();
        let age_ns = self.marks.back().map(|last| at_ns.saturating_sub(last.at_ns));
        if age_ns.is_some_and(|age_ns| u128::from(age_ns) < OTLP_INTERVAL.as_nanos()) {
            return;
        }
        let ends = traces(engine).map(|at| engine.trace(at, None).map(|batch| batch.next)).collect();
        self.marks.push_back(Mark { at_ns, ends });
        if self.marks.len() > OTLP_MARKS_MAX {
            self.marks.pop_front();
        }
    }

    /// The records of tasks that began at `since_ns` or later. Records are missing if a trace is
    /// written faster than it is read, or if a task began before the oldest mark.
    pub(super) fn find(
        &self,
        engine: &dyn Inference,
        since_ns: u64,
        tasks: &BTreeSet<TaskId>,
    ) -> BTreeMap<TaskId, Vec<Record>> {
        let mut found = BTreeMap::<TaskId, Vec<Record>>::new();
        let mark = self.marks.iter().rev().find(|mark| mark.at_ns <= since_ns).or(self.marks.front());
        let Some(mark) = mark.filter(|_| !tasks.is_empty()) else { return found };
        for (at, end) in traces(engine).zip(&mark.ends) {
            let mut from = *end;
            for _ in 0..OTLP_TRACE_READS_MAX {
                let Some(batch) = from.and_then(|from| engine.trace(at, Some(from))) else { break };
                for record in batch.records {
                    if !tasks.contains(&record.task) {
                        continue;
                    }
                    let records = found.entry(record.task).or_default();
                    if is_told(&record.kind, records.last()) && records.len() < OTLP_EVENTS_MAX {
                        records.push(record);
                    }
                }
                from = batch.more.then_some(batch.next);
            }
        }
        found
    }
}

/// The numbers of the traces of all devices and, after them, of the pool.
fn traces(engine: &dyn Inference) -> impl Iterator<Item = DeviceId> {
    (0..engine.traced().len()).map(|at| DeviceId(u16::try_from(at).unwrap_or(u16::MAX)))
}

/// Whether a record is kept for the spans of its task; `before` is the last one that was kept. Of
/// the launches, only the first after an eviction is kept.
fn is_told(kind: &EventKind, before: Option<&Record>) -> bool {
    match kind {
        EventKind::Ready
        | EventKind::Unready
        | EventKind::Preparing
        | EventKind::Prepared
        | EventKind::Raised { why: Raise::Preempted, .. }
        | EventKind::Padded { .. }
        | EventKind::Aborting { .. }
        | EventKind::Hung { .. }
        | EventKind::Batched { .. }
        | EventKind::Placed { .. } => true,
        EventKind::Issued { .. } => before.is_some_and(|before| matches!(before.kind, EventKind::Raised { .. })),
        _ => false,
    }
}
