//! Handles the ends of launches and the loss of the device.

use super::Worker;
use super::in_flight::InFlight;
use crate::clock;
use crate::error::InvokeError;
use crate::instance::Instance;
use atoll_core::memory::Event as MemoryEvent;
use atoll_core::{Action, Event, LaunchEnd, QueueId, TaskId};
use atoll_device::{Completion, DeviceError, LaunchStatus};

impl Worker {
    pub(super) fn launch_ended(&mut self, completion: &Completion) {
        let now = clock::now();
        if completion.status == LaunchStatus::Complete {
            self.launch_ns = completion.ended_ns.saturating_sub(completion.started_ns);
        }
        let launch = self.launches.remove(&completion.launch).expect("a device completes each submitted launch once");
        let InFlight { task, step, epoch: issued, .. } = launch;
        self.note_drained(completion.launch, now);
        self.note_eviction_latency(task, completion);
        let may_be_evicted = issued.is_raised_by(self.invocation(task).epoch);
        let mut report = self.device.report(completion.launch).unwrap_or_default();
        let is_shared = self.padding.shared.contains_key(&completion.launch);
        let completion = &self.shared_launch_ended(launch, completion, &mut report, may_be_evicted, now);
        let invocation = self.invocations.get_mut(&task).expect("an invocation outlives its launches");
        let place = invocation.submission.chain.locate(step);
        let busy_ns_max = u64::from(self.shared.device.compute_units)
            .saturating_mul(now.0.saturating_sub(invocation.submission.submitted.0));
        self.reexecuted_blocks = self.reexecuted_blocks.saturating_add(completion.reexecuted_blocks);
        self.discarded_ns = self.discarded_ns.saturating_add(completion.discarded_ns.min(busy_ns_max));
        let started = invocation.note_launch(place, completion, busy_ns_max, now);
        if invocation.is_real_time()
            && let Some(started) = started
        {
            let latency_ns = started.0.saturating_sub(invocation.submission.submitted.0);
            self.rt_start_latency.record(latency_ns);
            if invocation.preempted_others {
                self.preemption_latency.record(latency_ns);
            }
        }
        invocation.measure(place, completion);
        let time_limit_fault = self.exceeds_time_limit(task, step, completion);
        let invocation = self.invocation(task);
        let end = match completion.status {
            LaunchStatus::Complete => LaunchEnd::Complete,
            LaunchStatus::Evicted if time_limit_fault.is_some() => LaunchEnd::Failed,
            LaunchStatus::Evicted if may_be_evicted => LaunchEnd::Evicted,
            LaunchStatus::Evicted => {
                let reason = "a launch exited early although it was not evicted: its control words were overwritten";
                invocation.failure.get_or_insert_with(|| InvokeError::Device(reason.into()));
                LaunchEnd::Failed
            }
            LaunchStatus::Failed => LaunchEnd::Failed,
            LaunchStatus::Aborted => LaunchEnd::Aborted,
        };
        report.fault = report.fault.or(time_limit_fault);
        if !report.printed.is_empty() {
            self.show_printed(task, step, &report);
        }
        let invocation = self.invocation(task);
        match end {
            LaunchEnd::Complete | LaunchEnd::Aborted => {}
            LaunchEnd::Evicted => {
                if let Some(step) = place.step {
                    invocation.instances[place.stage].note_evicted(step);
                }
            }
            LaunchEnd::Failed => {
                invocation.note_loss(report.fault.as_ref());
                self.note_failed_launch(task, step, report.fault.as_ref());
                self.probe(task);
            }
        }
        self.record_end(completion, launch, end, now);
        self.note_busy(completion, launch, now);
        self.notify_scheduler(Event::LaunchEnded { launch: completion.launch, end });
        if is_shared {
            self.note_padded(now);
        }
        self.cancel_uncertain();
    }

    /// Whether the next action issues the following launch of this real-time task into the same
    /// queue.
    pub(super) fn is_followed(&mut self, task: TaskId, queue: QueueId) -> bool {
        let is_next = |action: &Action| match *action {
            Action::Issue { task: next, queue: at, .. } => next == task && at == queue,
            _ => false,
        };
        self.actions.front().is_some_and(is_next) && self.invocation(task).is_real_time()
    }

    /// Checks whether the device is lost after a launch failed, by reading a word that no launch
    /// writes. On a lost device all launches fail.
    fn probe(&mut self, task: TaskId) {
        let word = self.invocation(task).instances.first().map(Instance::epoch_word);
        if let Some(word) = word {
            let answer = self.device.read(word, &mut [0; 4]);
            // A read of the engine's own memory has no other error, and the launch has failed
            // anyway.
            let _ = self.check(answer);
        }
    }

    /// Passes on a device's result; marks the device as lost if the result says so.
    pub(super) fn check<T>(&mut self, answer: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(DeviceError::Lost(reason)) = &answer {
            self.lose_device(reason.clone());
        }
        answer
    }

    pub(super) fn lose_device(&mut self, reason: String) {
        if self.lost.is_none() {
            tracing::error!(device = %self.shared.device.name, %reason, "the device is lost");
            self.lost = Some(reason);
            self.shared.note_lost();
            self.launches.clear();
            self.drains.clear();
            self.note_memory(MemoryEvent::DeviceLost);
            self.notify_scheduler(Event::DeviceLost);
        }
    }
}
