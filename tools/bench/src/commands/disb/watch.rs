//! Watches a run on a real device until the window is over that is to be drawn.

use super::plots::around;
use atoll_core::{Class, TaskId};
use atoll_engine::{EngineHandle, FunctionName};
use atoll_trace::{Record, Timeline, What};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often records are read.
const POLL: Duration = Duration::from_millis(20);

/// Records that are kept, if nothing worth drawing happens.
const RECORDS_MAX: usize = 1 << 20;

/// A watch under way.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What was seen.
pub(super) struct Seen {
    pub(super) timeline: Timeline,
    /// When the run began, monotonic nanoseconds.
    pub(super) begin_ns: u64,
    /// From when to when, since then.
    pub(super) window: Range<u64>,
}

impl Watch {
    /// Begins now, for a window or for the moments around the first real-time call that meets
    /// best-effort work.
    pub(super) fn start(handle: EngineHandle, window: Option<Range<u64>>) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, begin_ns) = (over.clone(), now_ns());
        Watch { over, thread: std::thread::spawn(move || watch(&handle, begin_ns, window, &is_over)) }
    }

    /// What was seen until now; `None` if the watch failed.
    pub(super) fn end(self) -> Option<Seen> {
        self.over.store(true, Relaxed);
        self.thread.join().ok()
    }
}

fn watch(handle: &EngineHandle, begin_ns: u64, mut window: Option<Range<u64>>, is_over: &AtomicBool) -> Seen {
    let (mut records, mut functions, mut separate): (Vec<Record>, BTreeMap<u64, FunctionName>, bool) =
        Default::default();
    let (mut next, mut meeting) = (handle.trace(None).map(|batch| batch.next), Meeting::default());
    while let Some(batch) = handle.trace(next) {
        (next, separate) = (Some(batch.next), batch.separate);
        functions.extend(batch.functions.iter().map(|(number, function)| (*number, FunctionName::clone(function))));
        let found = batch.records.iter().find_map(|record| meeting.take(record));
        window = window.or_else(|| found.map(|at_ns| around(at_ns.saturating_sub(begin_ns))));
        records.extend(batch.records);
        let is_past = window.as_ref().is_some_and(|window| now_ns() > begin_ns + window.end);
        if !batch.more && (is_past || is_over.load(Relaxed)) || records.len() >= RECORDS_MAX {
            break;
        }
        if !batch.more {
            std::thread::sleep(POLL);
        }
    }
    let window = window.unwrap_or_else(|| around(0));
    // Launches that reach into the window may have been issued some time before it.
    let margin_ns = 200_000_000;
    let shown = begin_ns + window.start.saturating_sub(margin_ns)..begin_ns + window.end + margin_ns;
    records.retain(|record| shown.contains(&record.at.0));
    Seen { timeline: Timeline::of(&records, &functions, separate), begin_ns, window }
}

/// Finds the first real-time call that meets best-effort work.
#[derive(Default)]
struct Meeting {
    patient: HashSet<TaskId>,
}

impl Meeting {
    fn take(&mut self, record: &Record) -> Option<u64> {
        match record.what {
            What::Arrived { class: Class::BestEffort, .. } => drop(self.patient.insert(record.task)),
            What::Arrived { class: Class::RealTime, .. } if !self.patient.is_empty() => return Some(record.at.0),
            What::Finished { .. } => drop(self.patient.remove(&record.task)),
            _ => {}
        }
        None
    }
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
