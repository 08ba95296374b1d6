//! Carries out the scheduler's actions on invocations.

use super::holdings::spec_of;
use super::{InFlight, Worker};
use crate::accounts::InvocationOutcome;
use crate::binding::Output;
use crate::chain::{Source, Stage, StagePlace};
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::request::{InvocationResult, OutputTensor, PendingReply};
use atoll_core::memory::Event as MemoryEvent;
use atoll_core::{DeviceId, DeviceOffset, Epoch, Event, LaunchId, Outcome, QueueId, TaskId, TaskSpec};
use atoll_device::{DeviceError, Fault, FaultKind, LaunchRecord, LaunchReport, SubmitError};
use std::sync::Arc;

/// The reason if a task failed without a reported fault: the scheduler saw an end that is
/// impossible.
const IMPOSSIBLE_END: &str = "a launch ended in an impossible way: a kernel of the tenant may have overwritten control \
                          data of the device";

impl Worker {
    /// Admits an invocation to memory decisions, or refuses it.
    pub(super) fn submit(&mut self, submission: Submission, reply: PendingReply) {
        let task = TaskId(submission.id.0);
        let functions: Vec<FunctionId> = submission.chain.stages.iter().map(|stage| stage.function.id).collect();
        if !functions.iter().all(|id| self.functions.get(id).is_some_and(|loaded| !loaded.is_unloading())) {
            // The function was withdrawn after the client's thread had found it.
            return reply.send(Err(InvokeError::Unloaded));
        }
        let spec = spec_of(&submission);
        if let Err(refusal) = self.memory.check(&spec) {
            submission.chain.stages[0].function.note_rejected();
            return reply.send(Err(InvokeError::refused(refusal, &spec.tenant)));
        }
        for id in &functions {
            self.functions.get_mut(id).expect("present: checked above").invocations += 1;
        }
        self.invocations.insert(task, Invocation::new(submission, reply));
        self.notify_memory(MemoryEvent::Arrived(spec));
    }

    /// Passes an invocation to the scheduler.
    pub(super) fn admit(&mut self, task: TaskId, ready: bool) {
        let Submission { class, priority, deadline, ref chain, .. } = self.invocation(task).submission;
        let (steps, forks) = (Arc::clone(&chain.steps), chain.forks.clone());
        let first = Arc::clone(&chain.stages[0].function);
        let (lane, client) = (first.lane, self.lanes.client(&first.key.tenant));
        let before = self.actions.len();
        let profiles = self.profiles(task);
        self.notify_scheduler(Event::TaskArrived(TaskSpec {
            task,
            lane,
            client,
            class,
            priority,
            steps,
            deadline,
            profiles,
            forks,
            ready,
        }));
        self.note_preemptions(task, before);
    }

    pub(super) fn invocation(&mut self, task: TaskId) -> &mut Invocation {
        self.invocations.get_mut(&task).expect("the scheduler names only unfinished invocations")
    }

    /// Requests memory for an invocation; its inputs are written once it is granted.
    pub(super) fn prepare(&mut self, task: TaskId) {
        self.notify_memory(MemoryEvent::Prepare { task });
    }

    /// Writes the inputs of an invocation whose memory is bound.
    pub(super) fn write_all_inputs(&mut self, task: TaskId) {
        let begin = clock::now();
        let mut instances = std::mem::take(&mut self.invocation(task).instances);
        let invocation = self.invocation(task);
        invocation.times.prepare_begin = Some(begin);
        invocation.submission.chain.release_slots();
        self.interrupt_evicted(task, &instances);
        let moved = self.move_instances(task, &mut instances).and_then(|()| self.enter_session(task, &mut instances));
        let answer = moved.and_then(|lost| match lost {
            None => self.write_inputs(task, &mut instances).map(|()| None),
            lost => Ok(lost),
        });
        self.invocation(task).instances = instances;
        match self.check(answer) {
            Ok(Some(lost)) => self.fail(task, lost),
            Ok(None) => {
                self.begin_session(task);
                let invocation = self.invocation(task);
                (invocation.prepared, invocation.times.prepare_end) = (true, Some(clock::now()));
                self.note_memory(MemoryEvent::Prepared { task });
                self.notify_scheduler(Event::TaskPrepared { task });
            }
            Err(error) => self.fail_on(task, "the inputs cannot be written", &error),
        }
    }

    fn write_inputs(&mut self, task: TaskId, instances: &mut [Instance]) -> Result<(), DeviceError> {
        for (stage, instance) in instances.iter_mut().enumerate() {
            for input in 0..instance.binding.inputs.len() {
                let source = &mut self.invocation(task).submission.chain.stages[stage].inputs[input];
                let Source::Bytes(bytes) = source else { continue };
                let bytes = std::mem::take(bytes);
                let answer = self.device.write(instance.at(instance.binding.inputs[input].offset), &bytes);
                let invocation = self.invocation(task);
                invocation.stages[stage].usage.written_bytes += bytes.len() as u64;
                // Kept for a retry.
                invocation.submission.chain.stages[stage].inputs[input] = Source::Bytes(bytes);
                answer?;
            }
            let control = instance.binding.layout.control;
            self.device.fill(instance.at(control.offset), 0, control.bytes)?;
            self.device.watch_epoch(instance.epoch_word());
            instance.begin();
        }
        Ok(())
    }

    /// Fails a task because of a device error.
    pub(super) fn fail_on(&mut self, task: TaskId, what: &str, error: &DeviceError) {
        if matches!(error, DeviceError::DomainLost(_)) {
            let invocation = self.invocation(task);
            // An invocation that is not prepared has not run any launch.
            (invocation.lost_executor, invocation.may_have_run) = (true, invocation.prepared);
        }
        self.fail(task, InvokeError::Device(format!("{what}: {error}")));
    }

    /// Fails a task whose preparation or host step failed.
    pub(super) fn fail(&mut self, task: TaskId, reason: InvokeError) {
        self.invocation(task).failure = Some(reason);
        self.note_memory(MemoryEvent::Ending { task });
        self.notify_scheduler(Event::TaskFailed { task });
    }

    pub(super) fn raise_epoch(&mut self, task: TaskId, epoch: Epoch) {
        self.invocation(task).epoch = epoch;
        if self.lost.is_none() {
            let words: Vec<DeviceOffset> = self.invocation(task).instances.iter().map(Instance::epoch_word).collect();
            words.into_iter().for_each(|word| self.device.store_epoch(word, epoch));
        }
    }

    pub(super) fn issue(&mut self, launch: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        if self.lost.is_some() {
            return;
        }
        if let Err(reason) = self.try_issue(launch, task, step, queue, epoch) {
            self.lose_device(reason);
        }
    }

    /// Submits a launch. An error means that the device violates its contract, or is lost.
    fn try_issue(
        &mut self,
        launch: LaunchId,
        task: TaskId,
        step: u32,
        queue: QueueId,
        epoch: Epoch,
    ) -> Result<(), String> {
        self.clear_evicted_word(task, step)?;
        let (stage, within) = self.launch_place(task, step);
        let followed = self.is_followed(task, queue);
        let instance = &mut self.invocations.get_mut(&task).expect("present: checked above").instances[stage];
        let (record, params) = instance.record(within, launch, epoch).expect("only launches are issued");
        let record = LaunchRecord { followed: u32::from(followed), ..record };
        taken(self.device.submit(queue, &record, params), queue)?;
        self.launches.insert(launch, InFlight { task, step, queue, epoch });
        Ok(())
    }

    /// The stage of a launch, and its step index in the stage.
    fn launch_place(&mut self, task: TaskId, step: u32) -> (usize, u32) {
        let StagePlace { stage, step } = self.invocation(task).submission.chain.locate(step);
        (stage, step.expect("only launches are issued"))
    }

    /// Clears a step's evicted word, if an earlier launch of it exited early.
    pub(super) fn clear_evicted_word(&mut self, task: TaskId, step: u32) -> Result<(), String> {
        let (stage, within) = self.launch_place(task, step);
        if let Some(word) = self.invocation(task).instances[stage].take_evicted_word(within) {
            match self.device.write(word, &0_u32.to_le_bytes()) {
                // The submit is then refused as well, which ends only this invocation.
                Ok(()) | Err(DeviceError::DomainLost(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Aborts a launch whose invocation is over.
    pub(super) fn abort(&mut self, launch: LaunchId, queue: QueueId) {
        if self.lost.is_none() {
            self.device.abort(queue, launch);
        }
    }

    /// Handles a launch that the device did not abort in time.
    pub(super) fn hung(&mut self, launch: LaunchId) {
        let Some(&InFlight { task, step, .. }) = self.launches.get(&launch) else { return };
        let chain = &self.invocation(task).submission.chain;
        let function = &chain.stages[chain.locate(step).stage].function.key;
        let seconds = atoll_core::limits::HANG_NS / 1_000_000_000;
        let reason = format!("a launch of function {function} did not end within {seconds} s of its abort");
        if !self.device.kill(launch, &reason) {
            self.lose_device(reason);
        }
    }

    /// Logs the text that a kernel printed.
    pub(super) fn show_printed(&mut self, task: TaskId, step: u32, report: &LaunchReport) {
        let chain = &self.invocation(task).submission.chain;
        let function = &chain.stages[chain.locate(step).stage].function.key;
        let (text, lost_bytes) = (report.printed.trim_end(), report.printed_lost_bytes);
        tracing::info!(target: "atoll::print", %function, task_id = task.0, step, lost_bytes, "{text}");
    }

    /// Records which kernel failed and why, for the reply.
    pub(super) fn note_failed_launch(&mut self, task: TaskId, step: u32, fault: Option<&Fault>) {
        let device = self.shared.device.name.clone();
        let invocation = self.invocation(task);
        let StagePlace { stage, step: Some(step) } = invocation.submission.chain.locate(step) else { return };
        let Some(launch) = invocation.instances.get(stage).and_then(|instance| instance.launch(step)) else { return };
        let Stage { function, .. } = &invocation.submission.chain.stages[stage];
        let node = function.graph().nodes[launch.node as usize].name.escape_debug();
        let kernel = function.image().kernels[launch.kernel as usize].name.escape_debug();
        let steps = invocation.instances[stage].binding.work.len();
        let happened = fault.map_or_else(|| format!("kernel '{kernel}' failed"), ToString::to_string);
        let mut reason = format!("{happened} (node '{node}', step {} of {steps}, on {device})", step + 1);
        if fault.is_some_and(|fault| matches!(fault.kind, FaultKind::BadAddress { .. })) {
            reason += &format!(
                "; to find the thread and the buffer, run the bundle's PTX alone: atoll kernel run --entry {kernel} \
                 --check"
            );
        }
        tracing::warn!(function = %function.key, task_id = task.0, %reason);
        // The first failure is the cause of later ones.
        invocation.failure.get_or_insert(InvokeError::Device(reason));
    }

    /// Answers an invocation and releases its resources.
    pub(super) fn finish(&mut self, task: TaskId, outcome: Outcome, preemptions: u32) {
        let mut invocation = self.invocations.remove(&task).expect("a task finishes once");
        let mut answer = match outcome {
            Outcome::Complete => self.read_outputs(&mut invocation, preemptions),
            Outcome::Failed => {
                Err(invocation.failure.take().unwrap_or_else(|| InvokeError::Device(IMPOSSIBLE_END.into())))
            }
            Outcome::Cancelled => Err(invocation.failure.take().unwrap_or(InvokeError::Cancelled)),
            Outcome::DeadlineExceeded => Err(InvokeError::DeadlineExceeded),
            Outcome::Refused => Err(InvokeError::ClassRefused(invocation.submission.class)),
            Outcome::QueueFull => Err(InvokeError::QueueFull { capacity: atoll_core::limits::HOST_QUEUE_TASKS_MAX }),
            Outcome::DeviceLost => {
                Err(InvokeError::Device(format!("the device is lost: {}", self.lost.as_deref().unwrap_or_default())))
            }
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
        if went_wrong && self.should_retry(&invocation) {
            self.bill(&mut invocation, None, preemptions);
            let may_have_run = invocation.may_have_run;
            let (mut submission, reply) = self.put_away(invocation);
            submission.retries += u32::from(may_have_run);
            return self.retry(submission, reply);
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

    /// Adds the usage of an invocation to the accounts; without an answer it will be retried.
    fn bill(
        &mut self,
        invocation: &mut Invocation,
        answer: Option<&Result<InvocationResult, InvokeError>>,
        preemptions: u32,
    ) {
        let timing = answer.and_then(|answer| answer.as_ref().ok()).map(|result| result.timing);
        for stage in 0..invocation.stages.len() {
            let function = invocation.submission.chain.stages[stage].function.id;
            let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
            loaded.invocations -= 1;
            let timing = timing.map(|timing| invocation.stage_timing(stage, timing));
            let usage = &mut invocation.stages[stage].usage;
            // Preemptions are counted for the first stage.
            usage.preemptions += if stage == 0 { u64::from(preemptions) } else { 0 };
            match answer {
                Some(answer) => {
                    usage.invocations[InvocationOutcome::of(answer) as usize] += 1;
                    loaded.count(timing, usage);
                }
                None => usage.retries += 1,
            }
            *self.accounts.of(loaded.account(invocation.submission.class)) += usage;
        }
    }

    /// Releases the device resources of an invocation.
    fn put_away(&mut self, invocation: Invocation) -> (Submission, PendingReply) {
        let Invocation { submission, reply, instances, slots, .. } = invocation;
        let functions: Vec<FunctionId> = submission.chain.stages.iter().map(|stage| stage.function.id).collect();
        self.keep(functions.clone(), slots, instances);
        self.notify_memory(MemoryEvent::Ended { task: TaskId(submission.id.0) });
        functions.into_iter().for_each(|function| self.finish_unload(function));
        self.notify_memory(MemoryEvent::Resume);
        (submission, reply)
    }

    fn read_outputs(&mut self, invocation: &mut Invocation, preemptions: u32) -> Result<InvocationResult, InvokeError> {
        let mut outputs = Vec::new();
        let Invocation { submission, instances, stages, lost_executor, may_have_run, .. } = invocation;
        for ((stage, instance), record) in submission.chain.stages.iter().zip(&*instances).zip(stages) {
            let answer = self.read_checks(stage, instance);
            if matches!(answer, Err(DeviceError::DomainLost(_))) {
                (*lost_executor, *may_have_run) = (true, true);
            }
            if let Some(violation) = self.check(answer).map_err(|error| unreadable(&error))? {
                return Err(violation);
            }
            for &output in &stage.outputs {
                let Output { shape, place } = &instance.binding.outputs[output];
                let mut bytes = vec![0; place.bytes as usize];
                let answer = self.device.read(instance.at(place.offset), &mut bytes);
                if matches!(answer, Err(DeviceError::DomainLost(_))) {
                    // The outputs were lost with a process that died after the last launch.
                    (*lost_executor, *may_have_run) = (true, true);
                }
                self.check(answer).map_err(|error| unreadable(&error))?;
                record.usage.read_bytes += bytes.len() as u64;
                outputs.push(OutputTensor { shape: shape.clone(), bytes });
            }
        }
        let timing = invocation.times.timing(invocation.submission.submitted, clock::now());
        Ok(InvocationResult {
            outputs,
            timing,
            entered_ns: invocation.times.entered.0,
            preemptions,
            device: DeviceId::of_id(invocation.submission.id.0),
            cold_start: invocation.cold_start,
            launches: std::mem::take(&mut invocation.launches),
        })
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

fn unreadable(error: &DeviceError) -> InvokeError {
    InvokeError::Device(format!("the outputs cannot be read: {error}"))
}

/// The reason why the device is lost if it refuses a launch for which it has room.
pub(super) fn taken(answer: Result<(), SubmitError>, queue: QueueId) -> Result<(), String> {
    answer.map_err(|error| match error {
        SubmitError::Full => format!("device queue {} refused a launch although it has room", queue.0),
        SubmitError::Lost => "the device refused a launch".into(),
    })
}
