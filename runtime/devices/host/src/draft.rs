//! A launch's report while the launch is running.

use atoll_device::{Fault, LaunchReport};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The report of a running launch, shared by the compute units that run it.
#[derive(Debug, Default)]
pub(crate) struct Draft(Mutex<LaunchReport>);

impl Draft {
    /// Records that the launch failed. The first fault is kept, but one without a line makes room
    /// for one of the same kind that has a line: a block that had no time left to start says less
    /// than one that was stopped while it ran.
    pub(crate) fn fail(&self, fault: Fault) {
        let mut report = lock(&self.0);
        let says_more = |kept: &Fault| kept.kind == fault.kind && kept.line.is_none() && fault.line.is_some();
        if report.fault.as_ref().is_none_or(says_more) {
            report.fault = Some(fault);
        }
    }

    /// [`LaunchReport::print`]
    pub(crate) fn print(&self, text: &str) {
        lock(&self.0).print(text);
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
    use atoll_device::{FaultKind, PRINTED_BYTES_MAX};

    fn kept(faults: &[(FaultKind, Option<u32>)]) -> Option<(FaultKind, Option<u32>)> {
        let draft = Draft::default();
        for (kind, line) in faults {
            draft.fail(Fault { line: *line, ..Fault::of_kernel(kind.clone(), "k") });
        }
        draft.finish().fault.map(|fault| (fault.kind, fault.line))
    }

    #[test]
    fn the_first_fault_is_kept_unless_a_later_one_of_its_kind_knows_the_line() {
        let late = || FaultKind::TimeLimit { limit_ns: 1 };
        assert_eq!(kept(&[(late(), None), (late(), Some(3)), (late(), Some(4))]), Some((late(), Some(3))));
        assert_eq!(kept(&[(late(), None), (FaultKind::Trap, Some(3))]), Some((late(), None)));
        assert_eq!(kept(&[(FaultKind::Trap, Some(3)), (late(), None)]), Some((FaultKind::Trap, Some(3))));
    }

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
