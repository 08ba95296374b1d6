//! Telemetry: counters and records of a device.

use crate::loss::LossCause;
use crate::record::{ChunkRecord, ComputeUnitUse};
use std::fmt;

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
    /// Processes that were killed because they reached the memory limit of their control group.
    pub out_of_memory: u64,
    /// One entry for each process, and for each domain that is waiting for a new one.
    pub processes: Vec<ExecutorProcess>,
    /// One entry for each domain that ever had a process.
    pub domains: Vec<DomainUse>,
}

/// The use of resources by the processes of a domain since the device was opened, as the operating
/// system accounts for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainUse {
    /// The domain.
    pub domain: String,
    /// CPU time in nanoseconds. Counted even without control groups.
    pub cpu_ns: u64,
    /// The counts of its control groups: limit and current use of the latest group, the highest
    /// peak, and the sums of kills and throttled time. `None` if no process of the domain had a
    /// group.
    pub group: Option<GroupUse>,
}

/// The memory limit of a control group, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The part for device memory.
    pub device_bytes: u64,
    /// The part for all other memory of the process.
    pub overhead_bytes: u64,
}

impl GroupLimit {
    /// The whole limit in bytes.
    pub fn bytes(&self) -> u64 {
        self.device_bytes.saturating_add(self.overhead_bytes)
    }
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (all, device, other) = (mib(self.bytes()), mib(self.device_bytes), mib(self.overhead_bytes));
        write!(f, "memory limit {all} MiB ({device} MiB of device memory, and {other} MiB for the process itself)")
    }
}

/// The counts of the kernel for a control group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    /// The memory limit, if there is one.
    pub limit: Option<GroupLimit>,
    /// Memory in use, in bytes.
    pub current_bytes: u64,
    /// Peak of the memory in use, in bytes.
    pub peak_bytes: u64,
    /// Number of processes that the kernel or the daemon killed at the memory limit.
    pub kills: u64,
    /// Time that the group was throttled by its limit of CPU time, in nanoseconds.
    pub throttled_ns: u64,
}

impl GroupUse {
    /// The counts of this group and a later one of the same domain together.
    #[must_use]
    pub fn plus(&self, later: &GroupUse) -> GroupUse {
        GroupUse {
            limit: later.limit.or(self.limit),
            current_bytes: later.current_bytes,
            peak_bytes: self.peak_bytes.max(later.peak_bytes),
            kills: self.kills.saturating_add(later.kills),
            throttled_ns: self.throttled_ns.saturating_add(later.throttled_ns),
        }
    }
}

/// A process of a domain. Domains have one, except on a GPU where best-effort work has a second one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorProcess {
    /// The domain whose launches it runs.
    pub domain: String,
    /// Process id; `None` while there is no process.
    pub pid: Option<u32>,
    /// How many processes the domain has lost.
    pub losses: u64,
    /// CPU time since the device was opened, as the operating system accounts for it, in
    /// nanoseconds: of the process and its predecessors, or of a second process alone.
    pub cpu_ns: u64,
    /// Why there is no process now.
    pub cause: Option<String>,
    /// Parts of the jail that this machine does not support; known once the process runs.
    pub jail_lacks: Vec<String>,
    /// The kernel's counts for its control group; `None` if it has none.
    pub group: Option<GroupUse>,
}

impl ExecutorStatistics {
    /// Counts a lost process.
    pub fn count(&mut self, cause: &LossCause) {
        let counter = match cause {
            LossCause::ProtocolViolation(_) | LossCause::BrokenRings | LossCause::ForbiddenCall => {
                &mut self.protocol_violations
            }
            LossCause::Hung(_) => &mut self.hung,
            LossCause::OutOfMemory(_) => &mut self.out_of_memory,
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
            LossCause::OutOfMemory(GroupLimit { device_bytes: 64 << 20, overhead_bytes: 288 << 20 }),
        ];
        causes.iter().for_each(|cause| statistics.count(cause));
        assert_eq!((statistics.died, statistics.hung, statistics.protocol_violations), (3, 1, 3));
        assert_eq!(statistics.out_of_memory, 1);
        let told = "was killed: memory limit 352 MiB (64 MiB of device memory, and 288 MiB for the process itself)";
        assert_eq!(causes[7].to_string(), told);
    }
}
