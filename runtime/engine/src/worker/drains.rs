//! Latency of evictions: the time until evicted launches are off the device.

use super::Worker;
use crate::binding::Work;
use crate::clock;
use atoll_core::{Action, Epoch, LaunchId, Nanos, TaskId};
use atoll_device::{Completion, LaunchStatus};

impl Worker {
    /// Records which tasks a real-time invocation evicts, from the actions that followed its
    /// arrival.
    pub(super) fn note_preemptions(&mut self, task: TaskId, before: usize) {
        if self.invocation(task).is_real_time() {
            let raised = |action: &Action| {
                if let Action::RaiseEpoch { task, epoch } = action { Some((*task, *epoch)) } else { None }
            };
            let raised: Vec<(TaskId, Epoch)> =
                self.actions.range(before.min(self.actions.len())..).filter_map(raised).collect();
            let (evicted, now): (Vec<TaskId>, Nanos) = (raised.iter().map(|(task, _)| *task).collect(), clock::now());
            for (task, epoch) in raised {
                self.invocation(task).evicted_for_others = Some((epoch, now));
            }
            self.invocation(task).preempted_others = !evicted.is_empty();
            let submitted = self.invocation(task).submission.submitted;
            let leaving: Vec<LaunchId> = self
                .launches
                .iter()
                .filter(|(_, launch)| evicted.contains(&launch.task))
                .map(|(launch, _)| *launch)
                .collect();
            if !leaving.is_empty() {
                self.drains.push((submitted, leaving));
            }
        }
    }

    /// Records the time, by the device's clock, until a launch was off the device, if its task was
    /// evicted in favour of another task and its epoch was not raised again since.
    pub(super) fn note_eviction_latency(&mut self, task: TaskId, completion: &Completion) {
        let invocation = self.invocation(task);
        let since = invocation.evicted_for_others.filter(|(epoch, _)| *epoch == invocation.epoch).map(|(_, at)| at);
        let Some(since) = since.filter(|_| completion.status == LaunchStatus::Evicted) else { return };
        let took_ns = completion.ended_ns.saturating_sub(since.0);
        if completion.reexecuted_blocks > 0 {
            self.interrupt_latency.record(took_ns);
        } else if completion.busy_ns == 0 {
            self.flag_latency.record(took_ns);
        }
    }

    /// Records that a launch is off the device, for which real-time invocations may have waited.
    pub(super) fn note_drained(&mut self, ended: LaunchId, now: Nanos) {
        let Worker { drains, drain_latency, .. } = self;
        drains.retain_mut(|(since, leaving)| {
            leaving.retain(|launch| *launch != ended);
            if leaving.is_empty() {
                drain_latency.record(now.0.saturating_sub(since.0));
            }
            !leaving.is_empty()
        });
    }

    /// Interrupts launches that were evicted for a task: as many blocks as the task's first launch
    /// has. These exit while the task's memory is bound and its inputs are written, so its first
    /// blocks find idle compute units.
    pub(super) fn interrupt_evicted(&mut self, task: TaskId) {
        let invocation = self.invocation(task);
        if !invocation.preempted_others {
            return;
        }
        let submitted = invocation.submission.submitted;
        let mut work = invocation.submission.chain.stages[0].binding.work.iter();
        let first = work.find_map(|work| if let Work::Launch(launch) = work { Some(launch.grid) } else { None });
        let Some(grid) = first else { return };
        let blocks = grid.iter().fold(1, |blocks, extent| u64::saturating_mul(blocks, u64::from(*extent)));
        for (_, leaving) in self.drains.iter().filter(|(since, _)| *since == submitted) {
            for launch in leaving {
                if let Some(in_flight) = self.launches.get(launch) {
                    self.device.interrupt(in_flight.queue, *launch, blocks);
                }
            }
        }
    }
}
