//! Watches a run on a real device, until the end of the window to draw.

use super::plots::around;
use atoll_core::{Class, TaskId};
use atoll_engine::{EngineHandle, FunctionName};
use atoll_trace::{EventKind, Record, Timeline};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Polling interval of records.
const POLL: Duration = Duration::from_millis(20);

/// Maximum number of records to keep.
const RECORDS_MAX: usize = 1 << 20;

/// A running watch.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// Result of a watch.
pub(super) struct Seen {
    pub(super) timeline: Timeline,
    /// Start of the run, in monotonic nanoseconds.
    pub(super) begin_ns: u64,
    /// The window, in nanoseconds since the start.
    pub(super) window: Range<u64>,
}

impl Watch {
    /// Starts watching for the given window, or for the first real-time call that meets best-effort
    /// work.
    pub(super) fn start(handle: EngineHandle, window: Option<Range<u64>>) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, begin_ns) = (over.clone(), now_ns());
        Watch { over, thread: std::thread::spawn(move || watch(&handle, begin_ns, window, &is_over)) }
    }

    /// Stops watching and returns the result; `None` if the thread panicked.
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
    // Launches that are active in the window may have been issued before it.
    let margin_ns = 200_000_000;
    let shown = begin_ns + window.start.saturating_sub(margin_ns)..begin_ns + window.end + margin_ns;
    records.retain(|record| shown.contains(&record.at.0));
    Seen { timeline: Timeline::of(&records, &functions, separate, None), begin_ns, window }
}

/// Finds the first real-time call that meets best-effort work.
#[derive(Default)]
struct Meeting {
    best_effort: HashSet<TaskId>,
}

impl Meeting {
    fn take(&mut self, record: &Record) -> Option<u64> {
        match record.kind {
            EventKind::Arrived { class: Class::BestEffort, .. } => drop(self.best_effort.insert(record.task)),
            EventKind::Arrived { class: Class::RealTime, .. } if !self.best_effort.is_empty() => {
                return Some(record.at.0);
            }
            EventKind::Finished { .. } => drop(self.best_effort.remove(&record.task)),
            _ => {}
        }
        None
    }
}

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
