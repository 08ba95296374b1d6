//! A launch's report while the launch is running.

use atoll_device::{Fault, LaunchReport, PRINTED_BYTES_MAX};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The report of a running launch, shared by the compute units that run it.
#[derive(Debug, Default)]
pub(crate) struct Draft(Mutex<LaunchReport>);

impl Draft {
    /// Records that the launch failed. Only the first fault is kept.
    pub(crate) fn fail(&self, fault: Fault) {
        lock(&self.0).fault.get_or_insert(fault);
    }

    /// Appends a text as a whole, or drops it as a whole if it does not fit.
    pub(crate) fn print(&self, text: &str) {
        let mut report = lock(&self.0);
        if report.printed.len() + text.len() <= PRINTED_BYTES_MAX && report.printed_lost_bytes == 0 {
            report.printed.push_str(text);
        } else {
            report.printed_lost_bytes += text.len() as u64;
        }
    }

    /// Takes the finished report.
    pub(crate) fn finish(&self) -> LaunchReport {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Locks even after a panic: a report is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_beyond_the_limit_is_counted_and_ends_the_output() {
        let draft = Draft::default();
        draft.print("a");
        draft.print(&"b".repeat(PRINTED_BYTES_MAX));
        draft.print("c");
        let report = draft.finish();
        assert_eq!((report.printed.as_str(), report.printed_lost_bytes), ("a", PRINTED_BYTES_MAX as u64 + 1));
    }
}
