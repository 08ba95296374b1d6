//! A report in the making.

use atoll_device::{Fault, LaunchReport, PRINTED_BYTES_MAX};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    fn what_does_not_fit_is_counted_and_nothing_comes_after_it() {
        let draft = Draft::default();
        draft.print("a");
        draft.print(&"b".repeat(PRINTED_BYTES_MAX));
        draft.print("c");
        let report = draft.finish();
        assert_eq!((report.printed.as_str(), report.printed_lost_bytes), ("a", PRINTED_BYTES_MAX as u64 + 1));
    }
}
