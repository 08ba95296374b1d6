//! How the engine's thread waits for something to do.

use super::Worker;
use crate::clock;
use crate::limits;
use atoll_core::Nanos;

impl Worker {
    /// Whether to spin instead of sleeping: launches are in flight, and the thread has a core to
    /// itself or the last launch was very short.
    pub(super) fn spins(&self, idle_since: Nanos) -> bool {
        let spin_ns = match self.cores.spins {
            true => limits::SPIN_NS,
            false if self.launch_ns < limits::SHORT_SPIN_NS => limits::SHORT_SPIN_NS,
            false => return false,
        };
        !self.launches.is_empty() && clock::now().0 < idle_since.0 + spin_ns
    }

    /// Sleeps until there is something to do.
    pub(super) fn wait(&mut self) {
        let closing = self.closing.map(|closing| closing.cancel_at.unwrap_or(closing.give_up_at));
        let (parked, batches) = (self.parked_deadline(), self.batches.next_wakeup());
        let deadlines = [self.scheduler.next_wakeup(), closing, parked, self.memory.next_wakeup(), batches];
        let timeout_ns = deadlines.into_iter().flatten().min().map(|at| at.0.saturating_sub(clock::now().0));
        // The completions of a lost device are not read, so they must not wake the thread.
        let completions = self.lost.is_none().then(|| self.device.completion_fd());
        self.shared.doorbell.wait(completions, timeout_ns);
    }
}
