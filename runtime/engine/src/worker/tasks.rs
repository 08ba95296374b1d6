//! Invocations: what the scheduler's actions do to them.

use super::Worker;
use crate::binding::{Site, Work};
use crate::clock;
use crate::error::InvokeError;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::limits::COPY_CHUNK_BYTES;
use crate::request::{InvocationResult, OutputTensor};
use atoll_core::{Action, DeviceOffset, Epoch, Event, LaunchId, Outcome, QueueId, TaskId, TaskSpec};
use atoll_device::{DeviceError, Fault, FaultKind, LaunchReport, SubmitError};
use std::sync::Arc;

impl Worker {
    /// An invocation arrives.
    pub(super) fn submit(&mut self, invocation: Invocation) {
        let submission = &invocation.submission;
        let task = TaskId(submission.id.0);
        let Some(loaded) = self.functions.get_mut(&submission.function.id).filter(|loaded| !loaded.is_unloading()) else {
            // It was found just before it was withdrawn.
            return invocation.reply.send(Err(InvokeError::Unloaded));
        };
        loaded.invocations += 1;
        let spec = TaskSpec { task, class: submission.class, steps: Arc::clone(&submission.binding.steps), deadline: submission.deadline };
        let is_real_time = invocation.is_real_time();
        self.invocations.insert(task, invocation);
        let before = self.actions.len();
        self.tell(Event::TaskArrived(spec));
        if is_real_time {
            let preempts = self.actions.range(before..).any(|action| matches!(action, Action::RaiseEpoch { .. }));
            self.invocation(task).preempted_others = preempts;
        }
    }

    pub(super) fn invocation(&mut self, task: TaskId) -> &mut Invocation {
        self.invocations.get_mut(&task).expect("the scheduler names invocations that are not finished")
    }

    fn instance(&mut self, task: TaskId) -> &mut Instance {
        self.invocation(task).instance.as_mut().expect("the task was prepared")
    }

    /// Binds memory, now or when some is given back, and writes the inputs.
    pub(super) fn prepare(&mut self, task: TaskId) {
        let invocation = self.invocation(task);
        invocation.times.prepare_begin = Some(clock::now());
        invocation.submission.slot = None;
        let (function, binding) = (invocation.submission.function.id, Arc::clone(&invocation.submission.binding));
        let Some(mut instance) = self.obtain(function, &binding) else { return self.short_of_memory(task) };
        let answer = self.write_inputs(task, &mut instance);
        self.invocation(task).instance = Some(instance);
        match self.check(answer) {
            Ok(()) => {
                self.invocation(task).times.prepare_end = Some(clock::now());
                self.tell(Event::TaskPrepared { task });
            }
            Err(error) => self.fail(task, InvokeError::Device(format!("the inputs cannot be written: {error}"))),
        }
    }

    fn write_inputs(&mut self, task: TaskId, instance: &mut Instance) -> Result<(), DeviceError> {
        let inputs = std::mem::take(&mut self.invocation(task).submission.inputs);
        let layout = &instance.binding.layout;
        for (bytes, place) in inputs.iter().zip(&instance.binding.inputs) {
            self.device.write(instance.at(place.offset), bytes)?;
        }
        self.device.fill(instance.at(layout.control.offset), 0, layout.control.bytes)?;
        instance.begin();
        Ok(())
    }

    /// Ends a task whose preparation or host step went wrong.
    pub(super) fn fail(&mut self, task: TaskId, reason: InvokeError) {
        self.invocation(task).failure = Some(reason);
        self.tell(Event::TaskFailed { task });
    }

    pub(super) fn raise_epoch(&mut self, task: TaskId, epoch: Epoch) {
        if self.lost.is_none() {
            let word = self.instance(task).epoch_word();
            self.device.store_epoch(word, epoch);
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

    /// An error here means that the device does not keep its contract, or is lost.
    fn try_issue(&mut self, launch: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) -> Result<(), String> {
        let instance = self.invocations.get_mut(&task).and_then(|invocation| invocation.instance.as_mut()).expect("the task was prepared");
        if let Some(word) = instance.take_evicted_word(step) {
            self.device.write(word, &0_u32.to_le_bytes()).map_err(|error| error.to_string())?;
        }
        let (record, params) = instance.record(step, launch, epoch).expect("only launches are issued");
        match self.device.submit(queue, &record, params) {
            Ok(()) => {
                self.launches.insert(launch, (task, step));
                Ok(())
            }
            Err(SubmitError::Full) => Err(format!("device queue {} refused a launch although it has room", queue.0)),
            Err(SubmitError::Lost) => Err("the device refused a launch".into()),
        }
    }

    /// Copies between two buffers, through host memory.
    pub(super) fn run_host_step(&mut self, task: TaskId, step: u32) {
        if self.lost.is_some() {
            return;
        }
        let instance = self.instance(task);
        let Work::Copy { from, to, bytes } = instance.binding.work[step as usize] else { unreachable!("a host step is a copy") };
        let [from, to] = [from, to].map(|site: Site| instance.resolve(site));
        let answer = self.copy(from, to, bytes);
        match self.check(answer) {
            Ok(()) => self.tell(Event::HostStepDone { task }),
            Err(error) => self.fail(task, InvokeError::Device(format!("a copy failed: {error}"))),
        }
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let mut buffer = vec![0; bytes.min(COPY_CHUNK_BYTES as u64) as usize];
        let mut done = 0;
        while done < bytes {
            let chunk = &mut buffer[..(bytes - done).min(COPY_CHUNK_BYTES as u64) as usize];
            self.device.read(DeviceOffset(from.0 + done), chunk)?;
            self.device.write(DeviceOffset(to.0 + done), chunk)?;
            done += chunk.len() as u64;
        }
        Ok(())
    }

    /// Shows what a kernel printed, for who looks at logs.
    pub(super) fn show_printed(&mut self, task: TaskId, step: u32, report: &LaunchReport) {
        let function = &self.invocation(task).submission.function.key;
        let (text, lost_bytes) = (report.printed.trim_end(), report.printed_lost_bytes);
        tracing::info!(target: "atoll::print", %function, task_id = task.0, step, lost_bytes, "{text}");
    }

    /// Remembers which kernel failed and why, for the answer.
    pub(super) fn note_failed_launch(&mut self, task: TaskId, step: u32, fault: Option<&Fault>) {
        let device = self.shared.device.name.clone();
        let invocation = self.invocation(task);
        let submission = &invocation.submission;
        let Some(launch) = invocation.instance.as_ref().and_then(|instance| instance.launch(step)) else { return };
        let node = &submission.function.graph().nodes[launch.node as usize].name;
        let kernel = &submission.function.image().kernels[launch.kernel as usize].name;
        let steps = submission.binding.work.len();
        let happened = fault.map_or_else(|| format!("kernel '{kernel}' failed"), ToString::to_string);
        let mut reason = format!("{happened} (node '{node}', step {} of {steps}, on {device})", step + 1);
        if fault.is_some_and(|fault| matches!(fault.kind, FaultKind::BadAddress { .. })) {
            reason +=
                &format!("; to find the thread and the buffer, run the bundle's PTX alone: atoll kernel run --entry {kernel} --check");
        }
        tracing::warn!(function = %submission.function.key, task_id = task.0, %reason);
        // The first failure is the cause of what fails behind it.
        invocation.failure.get_or_insert(InvokeError::Device(reason));
    }

    /// Answers an invocation and gives its memory back.
    pub(super) fn finish(&mut self, task: TaskId, outcome: Outcome, preemptions: u32) {
        let mut invocation = self.invocations.remove(&task).expect("a task finishes once");
        self.short_of_memory.retain(|&waiting| waiting != task);
        let answer = match outcome {
            Outcome::Complete => self.read_outputs(&invocation, preemptions),
            Outcome::Failed | Outcome::Cancelled => Err(invocation.failure.take().unwrap_or(InvokeError::Cancelled)),
            Outcome::DeadlineExceeded => Err(InvokeError::DeadlineExceeded),
            Outcome::QueueFull => Err(InvokeError::QueueFull { capacity: atoll_core::limits::HOST_QUEUE_TASKS_MAX }),
            Outcome::DeviceLost => Err(InvokeError::Device(format!("the device is lost: {}", self.lost.as_deref().unwrap_or_default()))),
        };
        let function = invocation.submission.function.id;
        let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
        loaded.invocations -= 1;
        loaded.count(&answer, u64::from(preemptions), invocation.evicted_launches);
        // The client goes on while we tidy up.
        invocation.reply.send(answer);
        drop(invocation.submission.slot.take());
        if let Some(instance) = invocation.instance.take() {
            self.release(function, instance);
        }
        self.finish_unload(function);
        self.prepare_waiting();
    }

    fn read_outputs(&mut self, invocation: &Invocation, preemptions: u32) -> Result<InvocationResult, InvokeError> {
        let instance = invocation.instance.as_ref().expect("a complete task was prepared");
        let mut outputs = Vec::with_capacity(instance.binding.outputs.len());
        for output in &instance.binding.outputs {
            let mut bytes = vec![0; output.place.bytes as usize];
            let answer = self.device.read(instance.at(output.place.offset), &mut bytes);
            self.check(answer).map_err(|error| InvokeError::Device(format!("the outputs cannot be read: {error}")))?;
            outputs.push(OutputTensor { shape: output.shape.clone(), bytes });
        }
        let timing = invocation.times.timing(invocation.submission.submitted, clock::now());
        Ok(InvocationResult { outputs, timing, preemptions })
    }

    /// Cancels every invocation for a reason of our own.
    pub(super) fn cancel_all(&mut self, reason: &InvokeError) {
        let tasks: Vec<TaskId> = self.invocations.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.cancel(task, reason.clone()));
        self.act();
    }

    pub(super) fn cancel(&mut self, task: TaskId, reason: InvokeError) {
        self.invocation(task).failure.get_or_insert(reason);
        self.tell(Event::CancelTask { task });
    }
}
