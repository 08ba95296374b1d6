//! Telemetry: counters and records of a device.

use crate::loss::LossCause;
use crate::record::{ChunkRecord, ComputeUnitUse};

/// Reports the use of compute units. A device that does not count uses the defaults.
pub trait Telemetry {
    /// Time that compute units ran blocks since the device started, summed over compute units, in
    /// nanoseconds; an upper bound of all billed time. `None` if the device does not count.
    fn busy_ns(&self) -> Option<u64> {
        None
    }

    /// The use of each compute unit since the device started; empty if the device does not count.
    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        Vec::new()
    }

    /// Takes the chunks that compute units ran since the last call: at most `max` per compute unit,
    /// oldest first for each. On devices with domains, each chunk comes with the domain of its
    /// compute unit; a domain's chunks come from its own process and are not verified. Returns how
    /// many chunks were overwritten before they were taken. Devices without chunks return 0.
    fn take_chunks(&mut self, _max: u64, _take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        0
    }
}

/// Counts of executor processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatistics {
    /// Processes that run now.
    pub alive: u64,
    /// Processes started so far.
    pub started: u64,
    /// Processes that died.
    pub died: u64,
    /// Processes that were killed because they did not answer in time.
    pub hung: u64,
    /// Processes that broke the protocol of shared memory or of the channel, or made a forbidden
    /// system call.
    pub protocol_violations: u64,
    /// One entry for each domain that has a process or is waiting for a new one.
    pub processes: Vec<ExecutorProcess>,
}

/// The process of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorProcess {
    /// The domain whose launches it runs.
    pub domain: String,
    /// Process id; `None` while there is no process.
    pub pid: Option<u32>,
    /// How many processes the domain has lost.
    pub losses: u64,
    /// CPU time that the processes of the domain used since the device was opened, as the system
    /// accounts for it, in nanoseconds.
    pub cpu_ns: u64,
    /// Why there is no process now.
    pub cause: Option<String>,
    /// Parts of the jail that this machine does not support; known once the process runs.
    pub jail_lacks: Vec<String>,
}

impl ExecutorStatistics {
    /// Counts a lost process.
    pub fn count(&mut self, cause: &LossCause) {
        let counter = match cause {
            LossCause::ProtocolViolation(_) | LossCause::BrokenRings | LossCause::ForbiddenCall => {
                &mut self.protocol_violations
            }
            LossCause::Hung(_) => &mut self.hung,
            LossCause::Died(_) | LossCause::GaveUp(_) | LossCause::Ended(_) => &mut self.died,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_by_cause() {
        let mut statistics = ExecutorStatistics::default();
        // Text that a program sends does not change the counter.
        let misleading = || "broke the protocol: SIGSYS and was killed".to_owned();
        let causes = [
            LossCause::Died(misleading()),
            LossCause::GaveUp(misleading()),
            LossCause::Ended(misleading()),
            LossCause::Hung("showed no sign of life for 2s".to_owned()),
            LossCause::ProtocolViolation("it sent descriptors".to_owned()),
            LossCause::BrokenRings,
            LossCause::ForbiddenCall,
        ];
        causes.iter().for_each(|cause| statistics.count(cause));
        assert_eq!((statistics.died, statistics.hung, statistics.protocol_violations), (3, 1, 3));
    }
}
