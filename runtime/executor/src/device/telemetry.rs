//! The use of resources by an executor, as the operating system accounts for it and as the executor
//! reports it.

use super::ExecutorDevice;
use crate::memory::ExecutorMemory;
use atoll_device::{ChunkRecord, ComputeUnitUse, GroupUse, Telemetry};

impl ExecutorDevice {
    /// The time since the executor was created, in nanoseconds.
    fn age_ns(&self) -> u64 {
        u64::try_from(self.executor.age().as_nanos()).unwrap_or(u64::MAX)
    }

    /// CPU time of the process in nanoseconds, as the operating system accounts for it.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.executor.cpu_ns()
    }

    /// The kernel's counts for the executor's control group; `None` if it has none.
    pub(crate) fn group_use(&self) -> Option<GroupUse> {
        self.executor.group_use()
    }
}

impl Telemetry for ExecutorDevice {
    /// The time that the executor reports, but at most the time that was possible, since code that
    /// broke out of its kernel can change the count. `None` for devices with memory of their own,
    /// which do not count.
    fn busy_ns(&self) -> Option<u64> {
        let units = u64::from(self.info.compute_units);
        let possible = self.age_ns().saturating_mul(units);
        matches!(self.memory, ExecutorMemory::Shared(_)).then(|| self.engine_side.link.busy_ns().min(possible))
    }

    /// The use that the executor reports, but at most the use that was possible.
    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        let possible = self.age_ns();
        let bounded = |unit: ComputeUnitUse| ComputeUnitUse { busy_ns: unit.busy_ns.min(possible), ..unit };
        self.engine_side.compute_units().into_iter().map(bounded).collect()
    }

    fn take_chunks(&mut self, max: u64, take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        self.engine_side.take_chunks(max, &mut |chunk| take(None, chunk))
    }
}
