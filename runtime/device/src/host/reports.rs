//! Reports of launches that ended, until somebody takes them.

use crate::report::{Fault, LaunchReport};
use atoll_core::LaunchId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reports that are kept. A launch that neither fails nor prints has none, so whoever takes reports at all comes in time.
const REPORTS_MAX: usize = 64;

/// Text that one launch may print; as much as CUDA keeps by default.
const PRINTED_BYTES_MAX: usize = 1 << 20;

/// The reports, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    list: Mutex<VecDeque<(LaunchId, LaunchReport)>>,
    count: AtomicUsize,
}

impl Reports {
    /// Keeps a report, unless there is nothing in it.
    pub(crate) fn put(&self, launch: LaunchId, report: LaunchReport) {
        if report == LaunchReport::default() {
            return;
        }
        let mut list = lock(&self.list);
        if list.len() >= REPORTS_MAX {
            list.pop_front();
        }
        list.push_back((launch, report));
        self.count.store(list.len(), Relaxed);
    }

    /// Takes the report of a launch.
    pub(crate) fn take(&self, launch: LaunchId) -> Option<LaunchReport> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut list = lock(&self.list);
        let index = list.iter().position(|(id, _)| *id == launch)?;
        let found = list.remove(index);
        self.count.store(list.len(), Relaxed);
        found.map(|(_, report)| report)
    }
}

/// Takes reports of launches, right before their completions.
pub(crate) trait KeepReports: std::fmt::Debug + Send + Sync {
    /// Takes one, which may say nothing.
    fn put(&self, launch: LaunchId, report: LaunchReport);
}

impl KeepReports for Reports {
    fn put(&self, launch: LaunchId, report: LaunchReport) {
        Reports::put(self, launch, report);
    }
}

/// A report in the making, shared by the compute units that run the launch.
#[derive(Debug, Default)]
pub(crate) struct Draft(Mutex<LaunchReport>);

impl Draft {
    /// The launch failed. Of several reasons the first is the one to tell.
    pub(crate) fn fail(&self, fault: Fault) {
        lock(&self.0).fault.get_or_insert(fault);
    }

    /// Appends a text in one piece, or nothing of it where it does not fit.
    pub(crate) fn print(&self, text: &str) {
        let mut report = lock(&self.0);
        if report.printed.len() + text.len() <= PRINTED_BYTES_MAX && report.printed_lost_bytes == 0 {
            report.printed.push_str(text);
        } else {
            report.printed_lost_bytes += text.len() as u64;
        }
    }

    /// What it came to.
    pub(crate) fn finish(&self) -> LaunchReport {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// A report is whole between any two statements that could panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_kept_until_they_are_taken_or_too_many() {
        let reports = Reports::default();
        let printed = |text: &str| LaunchReport { printed: text.into(), ..LaunchReport::default() };
        reports.put(LaunchId(1), LaunchReport::default());
        assert_eq!(reports.take(LaunchId(1)), None);
        for id in 0..REPORTS_MAX as u64 + 1 {
            reports.put(LaunchId(id), printed("x"));
        }
        assert_eq!(reports.take(LaunchId(0)), None);
        assert_eq!(reports.take(LaunchId(1)), Some(printed("x")));
        assert_eq!(reports.take(LaunchId(1)), None);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nothing_comes_after_it() {
        let draft = Draft::default();
        draft.print("a");
        draft.print(&"b".repeat(PRINTED_BYTES_MAX));
        draft.print("c");
        let report = draft.finish();
        assert_eq!((report.printed.as_str(), report.printed_lost_bytes), ("a", PRINTED_BYTES_MAX as u64 + 1));
    }
}
