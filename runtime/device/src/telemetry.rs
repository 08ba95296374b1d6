//! Telemetry: what a device counts and records while it runs.

use crate::loss::LossCause;
use crate::record::{ChunkRecord, ComputeUnitUse};

/// Tells what compute units did. A device that does not count implements nothing of it.
pub trait Telemetry {
    /// Nanoseconds that compute units have run blocks since the device started, summed over the
    /// compute units, by their own count; an upper bound of every bill. `None` where the device
    /// does not count.
    fn busy_ns(&self) -> Option<u64> {
        None
    }

    /// The use of each compute unit since the device started, by its own count; nothing where the
    /// device does not count.
    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        Vec::new()
    }

    /// Takes the chunks that compute units ran since this was called last, at most `max` of each,
    /// oldest first for each, with the domain whose compute unit it was on devices that keep
    /// domains apart. Such a domain may say what it likes about itself. The answer is how many
    /// chunks were overwritten before they were taken. Nothing on devices that cannot tell.
    fn take_chunks(&mut self, _max: u64, _take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        0
    }
}

/// Counts of the processes that run launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorStatistics {
    /// Those that run now.
    pub alive: u64,
    /// Those that were ever started.
    pub started: u64,
    /// Those that died.
    pub died: u64,
    /// Those that showed no sign of life or did not answer, and were killed.
    pub hung: u64,
    /// Those that broke the rules of shared memory or of the channel, or made a system call that
    /// they may not.
    pub protocol_violations: u64,
    /// For each domain that has one, or is to have one again.
    pub processes: Vec<ExecutorProcess>,
}

/// The process of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorProcess {
    /// Whose launches it runs.
    pub domain: String,
    /// Its number; `None` while there is none.
    pub pid: Option<u32>,
    /// How often the domain lost one.
    pub losses: u64,
    /// Why there is none.
    pub cause: Option<String>,
    /// What its jail lacks on this machine, once it runs.
    pub jail_lacks: Vec<String>,
}

impl ExecutorStatistics {
    /// Counts a process that was lost.
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
    fn losses_are_counted_by_their_cause() {
        let mut statistics = ExecutorStatistics::default();
        // Text that a program sends never changes how it is counted.
        let misleading = || "broke the rules: SIGSYS and was killed".to_owned();
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
