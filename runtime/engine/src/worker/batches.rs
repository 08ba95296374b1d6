//! Batches: holds submissions until [`atoll_core::batching`] closes a batch, runs the batch as one
//! invocation, and answers each of its requests.
//!
//! If a batch fails, a single request may have caused the failure. So each request runs again
//! alone.

use super::Worker;
use crate::accounts::InvocationOutcome;
use crate::batch::{Batch, Member};
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::FunctionId;
use crate::invocation::Invocation;
use crate::limits::BATCH_MEMORY_DIVISOR;
use crate::request::{InvocationResult, InvocationTiming, OutputTensor, PendingReply};
use crate::retained::RetainedTensor;
use atoll_core::batching::{Action, Event, Group, Request};
use atoll_core::{ClientId, DeviceId, Epoch, Nanos, Outcome, TaskId};
use atoll_trace::EventKind;

/// The outputs of a request, and those of them that stayed on the device, by index.
type Outputs = (Vec<OutputTensor>, Vec<(usize, RetainedTensor)>);

impl Worker {
    /// Tells the batching decisions that a function was loaded.
    pub(super) fn gather_for(&mut self, function: FunctionId) {
        let max_bytes = self.memory.total_bytes() / BATCH_MEMORY_DIVISOR;
        if let Some(batching) = &self.functions[&function].function.batching {
            let spec = batching.spec(max_bytes);
            self.notify_batching(Event::Loaded { function, spec });
        }
    }

    /// Tells the batching decisions that a function was unloaded.
    pub(super) fn gather_no_more(&mut self, function: FunctionId) {
        for id in self.batches.ids_of(function) {
            self.notify_batching(Event::Unloaded(id));
        }
        self.batches.instances.retain(|(of, _), _| *of != function);
    }

    /// Tells the batching decisions that an instance is gone.
    pub(super) fn gather_no_more_of(&mut self, instance: ClientId) {
        for id in self.batches.ids_of_client(instance) {
            self.notify_batching(Event::Unloaded(id));
        }
        self.batches.instances.retain(|(_, client), _| *client != instance);
    }

    /// The id that the batching decisions use for a submission: that of its function, or one of its
    /// own for each instance, because a batch is charged to one client. An error if the instance
    /// does not exist.
    fn gather_id(&mut self, submission: &Submission) -> Result<FunctionId, InvokeError> {
        let function = &submission.chain.stages[0].function;
        let (id, Some(batching)) = (function.id, &function.batching) else { return Ok(function.id) };
        if submission.instance.is_none() {
            return Ok(id);
        }
        let client = submission.client();
        self.check_instance(&client)?;
        let key = (id, self.lanes.client(&client));
        if let Some(known) = self.batches.instances.get(&key) {
            return Ok(*known);
        }
        let (own, max_bytes) = (FunctionId(self.shared.next_id()), self.memory.total_bytes() / BATCH_MEMORY_DIVISOR);
        let spec = batching.spec(max_bytes);
        self.notify_batching(Event::Loaded { function: own, spec });
        self.batches.instances.insert(key, own);
        Ok(own)
    }

    /// Holds a submission until the batching decisions close its batch.
    pub(super) fn gather(&mut self, submission: Submission, reply: PendingReply) {
        let (task, now) = (submission.task(), clock::now());
        let stage = &submission.chain.stages[0];
        let loaded = self.functions.get(&stage.function.id).filter(|loaded| !loaded.is_unloading());
        if loaded.is_none() {
            return reply.send(Err(InvokeError::Unloaded));
        }
        let function = match self.gather_id(&submission) {
            Ok(function) => function,
            Err(error) => {
                submission.chain.stages[0].function.note_rejected();
                return reply.send(Err(error));
            }
        };
        let stage = &submission.chain.stages[0];
        let loaded = self.functions.get_mut(&stage.function.id);
        let (Some(loaded), Some(batching)) = (loaded, &stage.function.batching) else {
            return reply.send(Err(InvokeError::Unloaded));
        };
        loaded.invocations += 1;
        let request = Request {
            task,
            function,
            class: submission.class,
            group: Group { priority: submission.priority, shape: batching.shape(&stage.binding) },
            rows: batching.rows(&stage.binding),
            bytes: stage.binding.layout.bytes,
            deadline: submission.deadline,
        };
        self.batches.waiting.insert(task, (submission, reply, now));
        self.notify_batching(Event::Arrived(request));
    }

    /// Handles the passing of time.
    pub(super) fn tick_batches(&mut self, now: Nanos) {
        if self.batches.next_wakeup().is_some_and(|at| at <= now) {
            self.notify_batching(Event::Tick);
            self.act();
        }
    }

    /// Sends an event to the batching decisions. [`Worker::act`] carries out their actions.
    fn notify_batching(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.batches.decisions.handle(clock::now(), event, &mut actions);
        self.batches.actions.extend(actions);
    }

    /// Carries out the actions of the batching decisions. Returns whether there were any.
    pub(super) fn act_on_batches(&mut self) -> bool {
        let any = !self.batches.actions.is_empty();
        while let Some(action) = self.batches.actions.pop_front() {
            match action {
                Action::Close { requests, rows } => self.close_batch(&requests, rows),
                Action::Expire(task) => self.answer_early(task, InvokeError::DeadlineExceeded),
                Action::Cancel(batch) if self.invocations.contains_key(&batch) => {
                    self.cancel(batch, InvokeError::Cancelled)
                }
                Action::Cancel(_) => {}
            }
        }
        any
    }

    /// Runs requests as one invocation.
    fn close_batch(&mut self, requests: &[TaskId], rows: u64) {
        let (batch, now) = (requests[0], clock::now());
        let mut members = Vec::with_capacity(requests.len());
        for task in requests {
            // The requests of an unloaded function were answered and removed.
            let Some((submission, reply, since)) = self.batches.waiting.remove(task) else { continue };
            let function = submission.chain.stages[0].function.id;
            if let Some(loaded) = self.functions.get_mut(&function) {
                loaded.totals.gather_ns += now.0.saturating_sub(since.0);
            }
            let kind = EventKind::Batched { batch, requests: requests.len() as u32, rows };
            self.recorder.note(now, *task, Some(function), kind);
            members.push((submission, reply));
        }
        if members.len() < 2 || members.len() < requests.len() {
            return self.run_each(batch, members);
        }
        match Batch::merge(batch, members, rows) {
            Ok((submission, members)) => self.submit_batch(submission, members),
            Err((members, error)) => {
                tracing::warn!(%error, rows, "requests cannot be gathered; they run one by one");
                self.run_each(batch, members);
            }
        }
    }

    fn submit_batch(&mut self, submission: Submission, batch: Batch) {
        match self.check_submission(&submission) {
            Ok(spec) => {
                let (task, function) = (submission.task(), submission.chain.stages[0].function.id);
                self.functions.get_mut(&function).expect("present: checked above").batches += 1;
                let invocation = Invocation::new(submission, PendingReply::answered());
                self.invocations.insert(task, Invocation { batch: Some(batch), ..invocation });
                self.notify_memory(atoll_core::memory::Event::Arrived(spec));
            }
            // Each request alone may pass the check, or gets its own error.
            Err(_) => {
                let members = batch.members.into_iter().map(|member| (member.submission, member.reply)).collect();
                self.run_each(submission.task(), members);
            }
        }
    }

    /// Ends a batch that did not begin, and runs its requests one by one. A batch of a single
    /// request keeps its id and ends with the request.
    fn run_each(&mut self, batch: TaskId, members: Vec<(Submission, PendingReply)>) {
        let is_single = matches!(members.as_slice(), [(only, _)] if only.task() == batch);
        for (mut submission, reply) in members {
            submission.gathers = is_single;
            self.uncount(&submission);
            self.submit(submission, reply);
        }
        if !is_single || !self.invocations.contains_key(&batch) {
            self.notify_batching(Event::Ended { batch, ran_ns: None });
        }
    }

    /// Takes back the count of a submission that is about to be submitted, and counted, again.
    fn uncount(&mut self, submission: &Submission) {
        let function = submission.chain.stages[0].function.id;
        self.functions.get_mut(&function).expect("a function outlives its invocations").invocations -= 1;
    }

    /// Tells the batching decisions that a batch, or the only request of one, ended.
    pub(super) fn note_batch_ended(&mut self, invocation: &Invocation, outcome: Outcome) {
        let batch = invocation.submission.task();
        let is_typical = outcome == Outcome::Complete && invocation.epoch == Epoch::default();
        let ran_ns = is_typical.then(|| invocation.times.ran_ns());
        self.notify_batching(Event::Ended { batch, ran_ns });
    }

    /// Answers a request that waits for a batch, or is in a batch of several. If no other request
    /// is left in the batch, the batch is cancelled.
    pub(super) fn answer_early(&mut self, task: TaskId, reason: InvokeError) {
        if let Some((submission, reply, _)) = self.batches.waiting.remove(&task) {
            self.count_end(&submission, &Err(reason.clone()));
            reply.send(Err(reason));
        } else if let Some((id, member)) = self.member(task) {
            (member.has_left, member.submission.gathers) = (true, false);
            let reply = std::mem::replace(&mut member.reply, PendingReply::answered());
            let function = member.stage().function.id;
            self.count_early(function, id, &reason);
            reply.send(Err(reason));
        }
        self.notify_batching(Event::Left(task));
    }

    /// The id of the batch of a request and the request, if it is in a batch of several and has not
    /// left.
    fn member(&mut self, task: TaskId) -> Option<(TaskId, &mut Member)> {
        // Searches the batches, since the batching decisions have forgotten expired requests.
        let is_it = |member: &&mut Member| member.submission.task() == task && !member.has_left;
        self.invocations.iter_mut().find_map(|(id, invocation)| {
            let member = invocation.batch.as_mut()?.members.iter_mut().find(is_it)?;
            Some((*id, member))
        })
    }

    /// Answers all requests of a function that wait for a batch; those of all functions if `None`.
    pub(super) fn answer_waiting(&mut self, function: Option<FunctionId>, reason: &InvokeError) {
        let waiting = match function {
            Some(function) => {
                let ids = self.batches.ids_of(function);
                ids.into_iter().flat_map(|id| self.batches.decisions.waiting_of(id)).collect()
            }
            None => self.batches.decisions.waiting(),
        };
        waiting.into_iter().for_each(|task| self.answer_early(task, reason.clone()));
    }

    /// Answers all requests of an instance that wait for a batch.
    pub(super) fn answer_waiting_of(&mut self, instance: ClientId, reason: &InvokeError) {
        let ids = self.batches.ids_of_client(instance).into_iter();
        let waiting: Vec<TaskId> = ids.flat_map(|id| self.batches.decisions.waiting_of(id)).collect();
        waiting.into_iter().for_each(|task| self.answer_early(task, reason.clone()));
    }

    /// Answers the requests of a batch that ended.
    pub(super) fn finish_batch(&mut self, mut invocation: Invocation, outcome: Outcome, preemptions: u32) {
        let batch = invocation.batch.take().expect("the caller has seen that it is one");
        let answer = match outcome {
            Outcome::Complete => self.read_batch(&mut invocation, &batch),
            _ => Err(self.reason_of(&mut invocation, outcome)),
        };
        let went_wrong = answer.is_err() && matches!(outcome, Outcome::Complete | Outcome::Failed);
        self.bill_batch(&mut invocation, answer.is_ok().then_some(batch.rows), preemptions);
        if went_wrong && self.lost.is_none() && self.closing.is_none() && batch.present().count() > 0 {
            batch.present().for_each(|member| self.uncount(&member.submission));
            drop(self.put_away(invocation));
            return self.run_alone(batch);
        }
        let entered_ns = invocation.times.entered.0;
        let (mut outputs, error) = match answer {
            Ok(outputs) => (outputs, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let size = batch.members.len() as u32;
        for (at, Member { submission, reply, has_left, handed_over_bytes }) in batch.members.into_iter().enumerate() {
            if has_left {
                continue;
            }
            let answer = match &error {
                Some(error) => Err(error.clone()),
                None => Ok(InvocationResult {
                    outputs: std::mem::take(&mut outputs[at].0),
                    retained: std::mem::take(&mut outputs[at].1),
                    handed_over_bytes,
                    timing: invocation.times.timing(submission.submitted, clock::now()),
                    entered_ns,
                    preemptions,
                    device: DeviceId::of_id(submission.id.0),
                    task: Some(TaskId(invocation.submission.id.0)),
                    placed: None,
                    cold_start: invocation.cold_start,
                    load_ns: invocation.load_ns,
                    batch: size,
                    launches: Vec::new(),
                }),
            };
            self.count_end(&submission, &answer);
            reply.send(answer);
        }
        drop(self.put_away(invocation));
    }

    fn read_batch(&mut self, invocation: &mut Invocation, batch: &Batch) -> Result<Vec<Outputs>, InvokeError> {
        let instance = &invocation.instances[0];
        let answer = self.read_checks(&invocation.submission.chain.stages[0], instance);
        let answer = self.check(answer).map_err(|error| super::endings::unreadable(&error));
        if let Some(violation) = answer? {
            return Err(violation);
        }
        let answer = batch.read_outputs(instance, &mut *self.device);
        let made = self.check(answer).map_err(|error| super::endings::unreadable(&error))?;
        invocation.stages[0].usage.read_bytes += made.read_bytes;
        let (owners, parts): (Vec<_>, Vec<_>) =
            made.retained.into_iter().map(|(member, index, part)| ((member, index), part)).unzip();
        let mut outputs: Vec<Outputs> = made.tensors.into_iter().map(|tensors| (tensors, Vec::new())).collect();
        let retained = self.retain(invocation.slots[0], &invocation.submission, parts);
        for ((member, index), tensor) in owners.into_iter().zip(retained) {
            outputs[member].1.push((index, tensor));
        }
        Ok(outputs)
    }

    /// Runs the requests of a failed batch again, each alone. The caller has taken back their
    /// counts as invocations.
    fn run_alone(&mut self, batch: Batch) {
        tracing::info!(
            requests = batch.members.len(),
            rows = batch.rows,
            "a batch failed; its requests run one by one"
        );
        for Member { mut submission, reply, has_left, .. } in batch.members {
            if has_left {
                continue;
            }
            submission.gathers = false;
            self.arrive(submission, reply);
        }
    }

    /// Adds the usage of a batch to the accounts, and the run to the statistics if it succeeded.
    fn bill_batch(&mut self, invocation: &mut Invocation, rows: Option<u64>, preemptions: u32) {
        let function = invocation.submission.chain.stages[0].function.id;
        let timing = invocation.times.timing(invocation.submission.submitted, clock::now());
        let usage = &mut invocation.stages[0].usage;
        usage.preemptions += u64::from(preemptions);
        let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
        loaded.batches -= 1;
        loaded.count_usage(usage);
        if let Some(rows) = rows {
            loaded.totals.note_run(rows, timing);
        }
        *self.accounts.of(loaded.account(invocation.submission.class)) += usage;
    }

    /// Counts the end of a request that waited for or ran in a batch.
    fn count_end(&mut self, submission: &Submission, answer: &Result<InvocationResult, InvokeError>) {
        let timing = answer.as_ref().ok().map(|result| result.timing);
        let (function, class) = (submission.chain.stages[0].function.id, submission.class);
        self.count(function, class, timing, InvocationOutcome::of(answer));
    }

    /// Counts a request that was answered before its batch ended.
    fn count_early(&mut self, function: FunctionId, batch: TaskId, reason: &InvokeError) {
        let class = self.invocation(batch).submission.class;
        self.count(function, class, None, InvocationOutcome::of::<()>(&Err(reason.clone())));
    }

    fn count(
        &mut self,
        function: FunctionId,
        class: atoll_core::Class,
        timing: Option<InvocationTiming>,
        outcome: InvocationOutcome,
    ) {
        let loaded = self.functions.get_mut(&function).expect("a function outlives its invocations");
        loaded.invocations -= 1;
        loaded.count(timing);
        self.accounts.of(loaded.account(class)).invocations[outcome as usize] += 1;
    }
}
