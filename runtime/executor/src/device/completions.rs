//! Completions of an executor. A completion is held until the report of its launch is received. So
//! the engine's thread need not read from the executor's channel.

use super::ExecutorDevice;
use atoll_device::{Completion, Fault, FaultKind, LossCause};
use std::sync::atomic::Ordering::Relaxed;

impl ExecutorDevice {
    /// The next completion whose report, if there is one, is received. Once the executor is gone, a
    /// failed completion of the next launch that was lost with it.
    pub(super) fn take_completion(&mut self) -> Option<Completion> {
        while let Some(completion) = self.engine_side.next_completion() {
            self.count_completed();
            self.executor.activity.billed_ns.fetch_add(completion.busy_ns, Relaxed);
            let sent = self.executor.link.reports();
            if self.held.is_empty() && sent == self.executor.reports_received() {
                return Some(completion);
            }
            self.held.push_back((sent, completion));
        }
        self.executor.activity.idle_rings.store(self.engine_side.idle_rings(), Relaxed);
        if self.engine_side.is_lost() {
            self.executor.end(LossCause::BrokenRings);
        }
        self.next_held().or_else(|| self.abandon().inspect(|_| self.count_completed()))
    }

    fn count_completed(&self) {
        self.executor.activity.in_flight.fetch_sub(1, Relaxed);
        self.executor.activity.completed.fetch_add(1, Relaxed);
    }

    /// The oldest held completion, once the reports that were sent before it are received. If the
    /// executor is gone, no more reports will come, and the completion is returned at once.
    fn next_held(&mut self) -> Option<Completion> {
        let is_gone = self.executor.loss().is_some();
        let received = self.executor.reports_received();
        let (sent, _) = self.held.front()?;
        if !is_gone && *sent > received {
            return None;
        }
        self.held.pop_front().map(|(_, completion)| completion)
    }

    /// A failed completion for a launch that was lost with a dead executor.
    fn abandon(&mut self) -> Option<Completion> {
        let cause = self.executor.loss()?.to_string();
        let (queue, completion) = self.engine_side.abandon()?;
        let was_first = !self.abandoned.contains(&queue);
        if was_first {
            self.abandoned.push(queue);
        }
        self.executor
            .note_lost(completion.launch, &Fault::of_kernel(FaultKind::Lost { cause, may_have_run: was_first }, ""));
        Some(completion)
    }
}
