//! Control groups of processes that are no executors.

use crate::telemetry::{GroupLimit, GroupUse};
use std::fmt;
use std::io;
use std::time::Instant;

/// Makes control groups for processes that the daemon starts for its tenants.
pub trait ProcessGroups: fmt::Debug + Send + Sync {
    /// Creates a group, and moves a process of a tenant into it. The process may use `bytes` of
    /// memory; its share of CPU time, and the limit of that, are those of the tenant's executors.
    ///
    /// # Errors
    /// If the folder of groups is gone, or the kernel refuses the group or a limit.
    fn admit_process(&self, tenant: &str, bytes: u64, pid: u32) -> io::Result<Box<dyn ProcessGroup>>;
}

/// The control group of a process. Dropping it removes the group, which works only after the
/// process has ended.
pub trait ProcessGroup: fmt::Debug + Send + Sync {
    /// Reads the kernel's counts. Returns the limit of memory if the process stays above it, so
    /// that the caller kills the process.
    fn observe(&self, now: Instant) -> Option<GroupLimit>;

    /// The counts as of the last observation.
    fn usage(&self) -> GroupUse;
}
