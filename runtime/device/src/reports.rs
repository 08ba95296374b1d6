//! Reports of finished launches, kept until they are taken.

use crate::report::LaunchReport;
use atoll_core::LaunchId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most reports that are kept. Only launches that fail or print have one, so a reader that
/// takes reports with their completions loses none.
const REPORTS_MAX: usize = 64;

/// Bytes that one launch may print: CUDA's default for its printf buffer.
pub const PRINTED_BYTES_MAX: usize = 1 << 20;

/// The reports, oldest first.
#[derive(Debug, Default)]
pub struct Reports {
    list: Mutex<VecDeque<(LaunchId, LaunchReport)>>,
    count: AtomicUsize,
}

impl Reports {
    /// Keeps a report, unless it is empty. Drops the oldest if there are too many.
    pub fn put(&self, launch: LaunchId, report: LaunchReport) {
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
    pub fn take(&self, launch: LaunchId) -> Option<LaunchReport> {
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

/// Receives reports of launches, each right before the completion of its launch.
pub trait KeepReports: std::fmt::Debug + Send + Sync {
    /// Receives one report, which may be empty.
    fn put(&self, launch: LaunchId, report: LaunchReport);
}

impl KeepReports for Reports {
    fn put(&self, launch: LaunchId, report: LaunchReport) {
        Reports::put(self, launch, report);
    }
}

/// Locks even after a panic: the list is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_kept_until_taken_and_the_oldest_is_dropped() {
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
}
