//! The end of invocations: reads outputs, answers clients, adds usage to accounts, releases memory.

use super::Worker;
use crate::accounts::InvocationOutcome;
use crate::binding::Output;
use crate::chain::Stage;
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::invocation::Invocation;
use crate::request::{InvocationResult, OutputTensor, PendingReply};
use crate::retained::{Part, RetainedTensor};
use atoll_core::memory::Event as MemoryEvent;
use atoll_core::{DeviceId, Epoch, Event, Outcome, TaskId};
use atoll_device::DeviceError;

/// The reason if a task failed without a reported fault: the device reported an end that the
/// scheduler knows to be impossible.
const IMPOSSIBLE_END: &str = "a launch ended in an impossible way: a kernel of the tenant may have overwritten control \
                          data of the device";

impl Worker {
    /// Answers an invocation and releases its resources.
    pub(super) fn finish(&mut self, task: TaskId, outcome: Outcome, preemptions: u32) {
        self.note_ready(task, None);
        let mut invocation = self.invocations.remove(&task).expect("a task finishes once");
        if invocation.submission.gathers {
            self.note_batch_ended(&invocation, outcome);
        }
        if invocation.batch.is_some() {
            return self.finish_batch(invocation, outcome, preemptions);
        }
        let mut answer = match outcome {
            Outcome::Complete => self.read_outputs(&mut invocation, preemptions),
            _ => Err(self.reason_of(&mut invocation, outcome)),
        };
        if answer.is_ok() && invocation.epoch == Epoch::default() {
            invocation.submission.chain.stages.iter().for_each(|stage| stage.binding.branches.note_run());
        }
        let session = invocation.submission.session.clone();
        if answer.is_err() && self.has_lost_session(session.as_ref(), invocation.lost_executor) {
            answer = Err(InvokeError::SessionLost);
        }
        let is_lost = matches!(answer, Err(InvokeError::SessionLost));
        let went_wrong = answer.is_err() && session.is_none() && matches!(outcome, Outcome::Complete | Outcome::Failed);
        if let Err(cause) = &answer
            && went_wrong
            && self.should_retry(&invocation)
        {
            self.bill(&mut invocation, None, preemptions);
            let may_have_run = invocation.may_have_run;
            let (submission, reply) = self.put_away(invocation);
            return self.retry(submission, reply, may_have_run, cause);
        }
        self.bill(&mut invocation, Some(&answer), preemptions);
        // The client continues while the engine cleans up.
        std::mem::replace(&mut invocation.reply, PendingReply::answered()).send(answer);
        invocation.submission.chain.release_slots();
        drop(self.put_away(invocation));
        if let Some(session) = session.filter(|_| is_lost) {
            self.close_session(session.id);
        }
    }

    /// Why an invocation did not complete.
    pub(super) fn reason_of(&self, invocation: &mut Invocation, outcome: Outcome) -> InvokeError {
        match outcome {
            Outcome::Complete | Outcome::Failed => {
                invocation.failure.take().unwrap_or_else(|| InvokeError::Device(IMPOSSIBLE_END.into()))
            }
            Outcome::Cancelled => invocation.failure.take().unwrap_or(InvokeError::Cancelled),
            Outcome::DeadlineExceeded => InvokeError::DeadlineExceeded,
            Outcome::Refused => InvokeError::ClassRefused(invocation.submission.class),
            Outcome::QueueFull => InvokeError::QueueFull { capacity: atoll_core::limits::HOST_QUEUE_TASKS_MAX },
            Outcome::DeviceLost => InvokeError::DeviceLost(self.lost.clone().unwrap_or_default()),
        }
    }

    /// Adds the usage of an invocation to the accounts. `answer` is `None` if the invocation is
    /// retried.
    fn bill(
        &mut self,
        invocation: &mut Invocation,
        answer: Option<&Result<InvocationResult, InvokeError>>,
        preemptions: u32,
    ) {
        let timing = answer.and_then(|answer| answer.as_ref().ok()).map(|result| result.timing);
        for stage in 0..invocation.stages.len() {
            let Stage { function, binding, .. } = &invocation.submission.chain.stages[stage];
            let loaded = self.functions.get_mut(&function.id).expect("a function outlives its invocations");
            loaded.invocations -= 1;
            let timing = timing.map(|timing| invocation.stage_timing(stage, timing));
            if let (Some(timing), Some(batching)) = (timing, &function.batching) {
                loaded.totals.note_run(batching.rows(binding), timing);
            }
            let usage = &mut invocation.stages[stage].usage;
            // Preemptions are counted for the first stage.
            usage.preemptions += if stage == 0 { u64::from(preemptions) } else { 0 };
            match answer {
                Some(answer) => {
                    usage.invocations[InvocationOutcome::of(answer) as usize] += 1;
                    loaded.count(timing);
                    loaded.count_usage(usage);
                }
                None => usage.retries += 1,
            }
            *self.accounts.of(loaded.account(invocation.submission.class)) += usage;
        }
    }

    /// Releases the device resources of an invocation.
    pub(super) fn put_away(&mut self, invocation: Invocation) -> (Submission, PendingReply) {
        let Invocation { submission, reply, instances, slots, .. } = invocation;
        let functions: Vec<FunctionId> = submission.chain.stages.iter().map(|stage| stage.function.id).collect();
        self.holdings.suspended.returned.remove(&submission.task());
        self.note_retained(&slots);
        self.keep(functions.clone(), slots, instances);
        self.notify_memory(MemoryEvent::Ended { task: TaskId(submission.id.0) });
        self.return_memory(TaskId(submission.id.0));
        functions.into_iter().for_each(|function| self.finish_unload(function));
        self.notify_memory(MemoryEvent::Resume);
        self.forget_instances();
        (submission, reply)
    }

    fn read_outputs(&mut self, invocation: &mut Invocation, preemptions: u32) -> Result<InvocationResult, InvokeError> {
        let (mut outputs, mut retained) = (Vec::new(), Vec::new());
        for stage in 0..invocation.instances.len() {
            self.read_stage(invocation, stage, &mut outputs, &mut retained)?;
        }
        let timing = invocation.times.timing(invocation.submission.submitted, clock::now());
        Ok(InvocationResult {
            outputs,
            retained,
            handed_over_bytes: invocation.handed_over_bytes,
            timing,
            entered_ns: invocation.times.entered.0,
            preemptions,
            device: DeviceId::of_id(invocation.submission.id.0),
            task: Some(TaskId(invocation.submission.id.0)),
            placed: None,
            cold_start: invocation.cold_start,
            load_ns: invocation.load_ns,
            batch: 1,
            launches: std::mem::take(&mut invocation.launches),
        })
    }

    /// Reads the outputs of a stage, except those that only stay on the device.
    fn read_stage(
        &mut self,
        invocation: &mut Invocation,
        stage: usize,
        outputs: &mut Vec<OutputTensor>,
        retained: &mut Vec<(usize, RetainedTensor)>,
    ) -> Result<(), InvokeError> {
        let Invocation { submission, instances, slots, stages, lost_executor, may_have_run, .. } = invocation;
        let (own, instance) = (&submission.chain.stages[stage], &instances[stage]);
        let answer = self.read_checks(own, instance);
        if matches!(answer, Err(DeviceError::DomainLost(_))) {
            (*lost_executor, *may_have_run) = (true, true);
        }
        if let Some(violation) = self.check(answer).map_err(|error| unreadable(&error))? {
            return Err(violation);
        }
        let (mut indices, mut parts) = (Vec::new(), Vec::new());
        for &output in &own.outputs {
            let Output { shape, place } = &instance.binding.outputs[output];
            let retain = own.retain_of(output);
            if let (Some(_), Some(dtype)) = (retain, own.output_dtype(output)) {
                indices.push(outputs.len());
                parts.push(Part { place: *place, dtype, shape: shape.clone() });
            }
            let is_read = retain.is_none_or(|retain| retain.with_bytes);
            let mut bytes = vec![0; if is_read { place.bytes as usize } else { 0 }];
            if is_read {
                let answer = self.device.read(instance.at(place.offset), &mut bytes);
                if matches!(answer, Err(DeviceError::DomainLost(_))) {
                    // The outputs were lost with a process that died after the last launch.
                    (*lost_executor, *may_have_run) = (true, true);
                }
                self.check(answer).map_err(|error| unreadable(&error))?;
                stages[stage].usage.read_bytes += bytes.len() as u64;
            }
            outputs.push(OutputTensor { shape: shape.clone(), bytes });
        }
        retained.extend(indices.into_iter().zip(self.retain(slots[stage], submission, parts)));
        Ok(())
    }

    /// Cancels all invocations.
    pub(super) fn cancel_all(&mut self, reason: &InvokeError) {
        let tasks: Vec<TaskId> = self.invocations.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.cancel(task, reason.clone()));
        self.act();
    }

    pub(super) fn cancel(&mut self, task: TaskId, reason: InvokeError) {
        self.invocation(task).failure.get_or_insert(reason);
        self.note_memory(MemoryEvent::Ending { task });
        self.notify_scheduler(Event::CancelTask { task });
    }
}

pub(super) fn unreadable(error: &DeviceError) -> InvokeError {
    InvokeError::Device(format!("the outputs cannot be read: {error}"))
}
