//! Carries out the scheduler's actions on invocations.

use super::holdings::spec_of;
use super::{InFlight, Worker};
use crate::chain::{Stage, StagePlace};
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::request::PendingReply;
use crate::session::Session;
use atoll_core::memory::Event as MemoryEvent;
use atoll_core::memory::InvocationSpec;
use atoll_core::{ClientId, DeviceOffset, Epoch, Event, LaunchId, QueueId, TaskId, TaskSpec};
use atoll_device::{Device, DeviceError, Fault, FaultKind, LaunchRecord, LaunchReport, SubmitError};
use std::sync::Arc;

impl Worker {
    /// Admits an invocation to memory decisions, or refuses it.
    pub(super) fn submit(&mut self, submission: Submission, reply: PendingReply) {
        let spec = match self.check_submission(&submission) {
            Ok(spec) => spec,
            Err(error) => {
                if !matches!(error, InvokeError::Unloaded) {
                    submission.chain.stages[0].function.note_rejected();
                }
                return reply.send(Err(error));
            }
        };
        for stage in &submission.chain.stages {
            self.functions.get_mut(&stage.function.id).expect("present: checked above").invocations += 1;
        }
        // From now on the memory core knows the flush, so its client need not hold the session: the
        // flush may wait behind one that needs the memory of this session, and would wait forever. A
        // session that is to be suspended on request leaves after the flush.
        let is_asked = |session: &&Arc<Session>| self.holdings.suspended.is_asked(session.id);
        let session = submission.session.as_ref().filter(|session| !is_asked(session));
        let released = session.filter(|session| session.release()).map(|session| session.id);
        self.invocations.insert(submission.task(), Invocation::new(submission, reply));
        self.notify_memory(MemoryEvent::Arrived(spec));
        if let Some(session) = released {
            self.notify_memory(MemoryEvent::Released { session });
        }
    }

    /// Checks that the functions of a submission are loaded and that its memory can ever be granted.
    pub(super) fn check_submission(&self, submission: &Submission) -> Result<InvocationSpec, InvokeError> {
        let is_loaded = |id| self.functions.get(id).is_some_and(|loaded| !loaded.is_unloading());
        if !submission.chain.stages.iter().all(|stage| is_loaded(&stage.function.id)) {
            // The function was withdrawn after the client's thread had found it.
            return Err(InvokeError::Unloaded);
        }
        if submission.instance.is_some() {
            self.check_instance(&submission.client())?;
            self.check_instance_memory(submission)?;
        }
        let mut spec = spec_of(submission);
        if let (Some(own), Some(session)) = (&mut spec.session, &submission.session) {
            let address = session.address();
            own.at = address.and_then(|address| self.device.offset_of(spec.tenant.as_str(), address));
        }
        let checked = self.memory.check(&spec);
        checked.map_err(|refusal| InvokeError::refused(refusal, &spec.tenant)).map(|()| spec)
    }

    /// Passes an invocation to the scheduler.
    pub(super) fn admit(&mut self, task: TaskId, ready: bool) {
        let Submission { class, priority, deadline, due, ref chain, .. } = self.invocation(task).submission;
        let (steps, forks) = (Arc::clone(&chain.steps), chain.forks.clone());
        let first = Arc::clone(&chain.stages[0].function);
        let client = self.client_of(task);
        let lane = self.lanes.bound_lane(client).unwrap_or(first.lane);
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
            due,
            profiles,
            forks,
            ready,
        }));
        self.note_ready(task, ready.then_some(client));
        self.note_preemptions(task, before);
    }

    /// The scheduler's id of the client whose share an invocation uses.
    pub(super) fn client_of(&mut self, task: TaskId) -> ClientId {
        let client = self.invocation(task).submission.client();
        self.lanes.client(&client)
    }

    pub(super) fn invocation(&mut self, task: TaskId) -> &mut Invocation {
        self.invocations.get_mut(&task).expect("the scheduler names only unfinished invocations")
    }

    /// Requests memory for an invocation; its inputs are written once it is granted. Blocks that
    /// were evicted for it are asked to exit first, since both take about as long.
    pub(super) fn prepare(&mut self, task: TaskId) {
        self.interrupt_evicted(task);
        if self.holdings.suspended.returned.remove(&task) {
            // It has memory, and its session keeps it.
            return self.write_inputs_of_resumed(task);
        }
        if self.may_take_memory(task) {
            self.notify_memory(MemoryEvent::Prepare { task });
        }
    }

    /// Writes the inputs of an invocation whose memory is bound.
    pub(super) fn write_all_inputs(&mut self, task: TaskId) {
        let begin = clock::now();
        let mut instances = std::mem::take(&mut self.invocation(task).instances);
        let invocation = self.invocation(task);
        invocation.times.prepare_begin = Some(begin);
        invocation.release_slots();
        let moved = self.move_instances(task, &mut instances).and_then(|()| self.enter_session(task, &mut instances));
        if matches!(moved, Ok(None)) && self.has_contents_of(task) {
            self.invocation(task).instances = instances;
            return self.begin_return(task);
        }
        let answer = moved.and_then(|refused| match refused {
            None => self.write_inputs(task, &mut instances),
            refused => Ok(refused),
        });
        self.invocation(task).instances = instances;
        let answer = self.check(answer);
        if !matches!(answer, Ok(None)) {
            self.leave_session(task);
        }
        match answer {
            Ok(Some(refused)) => self.fail(task, refused),
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

    /// Writes the inputs of an invocation whose session is back on the device.
    fn write_inputs_of_resumed(&mut self, task: TaskId) {
        let mut instances = std::mem::take(&mut self.invocation(task).instances);
        let answer = self.write_inputs(task, &mut instances);
        self.invocation(task).instances = instances;
        match self.check(answer) {
            Ok(Some(refused)) => self.fail(task, refused),
            Ok(None) => {
                let invocation = self.invocation(task);
                (invocation.prepared, invocation.times.prepare_end) = (true, Some(clock::now()));
                self.notify_scheduler(Event::TaskPrepared { task });
            }
            Err(error) => self.fail_on(task, "the inputs cannot be written", &error),
        }
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
            self.interrupt_recalled(task);
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
        submit(&mut *self.device, queue, &record, params)?;
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
        let invocation = self.invocations.get_mut(&task).expect("the scheduler names only unfinished invocations");
        let StagePlace { stage, step: Some(step) } = invocation.submission.chain.locate(step) else { return };
        let Some(launch) = invocation.instances.get(stage).and_then(|instance| instance.launch(step)) else { return };
        let Stage { function, .. } = &invocation.submission.chain.stages[stage];
        let binding = &invocation.instances[stage].binding;
        let code = launch.code.map(|code| binding.code[code as usize]);
        // The kernel of a session belongs to another function, which has one node.
        let other = code.and_then(|code| self.functions.get(&code)).map(|loaded| &loaded.function);
        let (owner, node) = other.map_or((function, launch.node as usize), |other| (other, 0));
        let node = owner.graph().nodes[node].name.escape_debug();
        let kernel = owner.image().kernels[launch.kernel as usize].name.escape_debug();
        let steps = binding.work.len();
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
}

/// Submits a launch for which the queue has room. An error says why the device is lost.
pub(super) fn submit(
    device: &mut dyn Device,
    queue: QueueId,
    record: &LaunchRecord,
    params: &[u8],
) -> Result<(), String> {
    device.submit(queue, record, params).map_err(|error| match error {
        SubmitError::Full => format!("device queue {} refused a launch although it has room", queue.0),
        SubmitError::Lost => device.lost().unwrap_or_else(|| "the device refused a launch".into()),
    })
}
