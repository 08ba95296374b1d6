//! Domains: those who trust each other. A device may run each in a process of its own, with memory
//! of its own, which can be lost and replaced without the others.

use crate::error::DeviceError;
use crate::telemetry::ExecutorStatistics;
use atoll_core::DeviceOffset;

/// Whether the modules of a domain can be launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// They can.
    Ready,
    /// Not now, but soon: their process is being started or replaced.
    Restarting,
    /// Not for a while: their processes die again and again, the last one for this reason.
    Unavailable(String),
}

/// Keeps domains apart. A device that does not, and so is one process for all, implements nothing
/// of it.
pub trait Domains {
    /// The number to add to an offset in memory to name that of a domain; offsets of constants are
    /// the same for all. It changes when the domain loses its memory: a launch or transfer that
    /// carries the old number is refused then.
    fn domain(&mut self, _name: &str) -> Result<DeviceOffset, DeviceError> {
        Ok(DeviceOffset(0))
    }

    /// Whether a domain's modules can be launched now. The completion descriptor becomes readable
    /// when that changes.
    fn domain_state(&self, _name: &str) -> DomainState {
        DomainState::Ready
    }

    /// Whether all of the device is being replaced, so that nothing can be written to it now. The
    /// completion descriptor becomes readable when that changes.
    fn is_unready(&self) -> bool {
        false
    }

    /// Counts of the device's processes.
    fn executors(&self) -> ExecutorStatistics {
        ExecutorStatistics::default()
    }
}
