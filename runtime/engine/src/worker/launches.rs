//! Ends of launches, and the loss of the device.

use super::{InFlight, Worker};
use crate::clock;
use crate::error::InvokeError;
use crate::instance::Instance;
use atoll_core::memory::Event as MemoryEvent;
use atoll_core::{Event, LaunchEnd, TaskId};
use atoll_device::{Completion, DeviceError, LaunchStatus};

impl Worker {
    pub(super) fn launch_ended(&mut self, completion: &Completion) {
        let now = clock::now();
        if completion.status == LaunchStatus::Complete {
            self.launch_ns = completion.ended_ns.saturating_sub(completion.started_ns);
        }
        let launch =
            self.launches.remove(&completion.launch).expect("a device completes what was submitted to it, once");
        let InFlight { task, step, epoch: issued, .. } = launch;
        self.note_drained(completion.launch, now);
        self.note_left(task, completion);
        let may_leave = issued.is_raised_by(self.invocation(task).epoch);
        let mut report = self.device.report(completion.launch).unwrap_or_default();
        let completion = &self.shared_launch_ended(launch, completion, &mut report, may_leave, now);
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
        let hopeless = self.outlasts_its_time(task, step, completion);
        let invocation = self.invocation(task);
        let end = match completion.status {
            LaunchStatus::Complete => LaunchEnd::Complete,
            LaunchStatus::Evicted if hopeless.is_some() => LaunchEnd::Failed,
            LaunchStatus::Evicted if may_leave => LaunchEnd::Evicted,
            LaunchStatus::Evicted => {
                let reason = "a launch left although nobody asked it to: something wrote into its control words";
                invocation.failure.get_or_insert_with(|| InvokeError::Device(reason.into()));
                LaunchEnd::Failed
            }
            LaunchStatus::Failed => LaunchEnd::Failed,
            LaunchStatus::Aborted => LaunchEnd::Aborted,
        };
        report.fault = report.fault.or(hopeless);
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
        self.tell(Event::LaunchEnded { launch: completion.launch, end });
        self.end_doubted();
    }

    /// A launch that failed may be the last sign of a lost device, whose launches all fail. Reads a
    /// word that no launch writes to find out.
    fn probe(&mut self, task: TaskId) {
        let word = self.invocation(task).instances.first().map(Instance::epoch_word);
        if let Some(word) = word {
            let answer = self.device.read(word, &mut [0; 4]);
            // Any other error is none that a read of our own memory can meet, and the launch has failed anyway.
            let _ = self.check(answer);
        }
    }

    /// Passes a device's answer on; if it says that it is lost, believes it.
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
            self.tell(Event::DeviceLost);
        }
    }
}
