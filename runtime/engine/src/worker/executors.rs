//! Executors: the memory of functions, invocations that wait for an executor to be replaced, and
//! retries.
//!
//! A device may run functions of different tenants in different processes, each of which can be
//! lost and replaced without the others (the pool of `atoll-executor`). An invocation whose
//! executor was lost is retried once (more often if it had not started), unless it was cancelled or
//! its own kernel faulted. A retry is possible since the client has no answer yet and the inputs
//! are kept until the invocation ends. Invocations of a domain whose executor is being replaced are
//! parked here, before they reach the scheduler, so that they do not block others.
//!
//! An invocation that another device can run is neither retried nor parked: it is answered at once,
//! and the caller submits it there.

use super::Worker;
use super::parked::Parked;
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::request::{InvocationId, PendingReply};
use atoll_core::{DeviceOffset, Nanos, TaskId};
use atoll_device::{DeviceError, DomainState};

/// Retries of an invocation whose executor was lost while the invocation may have been running
/// there. More retries would let an invocation that kills its executors do so more often.
const RETRIES_MAX: u32 = 1;

impl Worker {
    /// Handles an invocation that arrives, for the first time or as a retry.
    pub(super) fn arrive(&mut self, submission: Submission, reply: PendingReply) {
        match self.state_of(&submission) {
            DomainState::Ready if submission.gathers => self.gather(submission, reply),
            DomainState::Ready => self.submit(submission, reply),
            DomainState::Restarting if submission.may_move => {
                reply.send(Err(InvokeError::Unavailable("its executor is being replaced".into())));
            }
            DomainState::Restarting => self.parked.push(Parked { submission, reply }),
            DomainState::Unavailable(cause) => reply.send(Err(InvokeError::Unavailable(cause))),
        }
    }

    /// The combined state of the domains of an invocation's functions.
    fn state_of(&self, submission: &Submission) -> DomainState {
        let mut state = DomainState::Ready;
        for stage in &submission.chain.stages {
            match self.device.domain_state(stage.function.key.tenant.as_str()) {
                DomainState::Ready => {}
                DomainState::Restarting => state = DomainState::Restarting,
                unavailable @ DomainState::Unavailable(_) => return unavailable,
            }
        }
        state
    }

    /// Continues parked invocations whose executor is ready again or unavailable, and ends those
    /// past their deadline.
    pub(super) fn serve_parked(&mut self) {
        let now = clock::now();
        for Parked { submission, reply } in std::mem::take(&mut self.parked) {
            if submission.deadline.is_some_and(|at| at <= now) {
                reply.send(Err(InvokeError::DeadlineExceeded));
            } else {
                self.arrive(submission, reply);
            }
        }
        self.act();
    }

    /// The earliest deadline of a parked invocation.
    pub(super) fn parked_deadline(&self) -> Option<Nanos> {
        self.parked.iter().filter_map(|parked| parked.submission.deadline).min()
    }

    /// Cancels one parked invocation, or all.
    pub(super) fn cancel_parked(&mut self, id: Option<InvocationId>, reason: &InvokeError) {
        let is_meant = |parked: &mut Parked| id.is_none_or(|id| parked.submission.id == id);
        self.parked.extract_if(.., is_meant).for_each(|parked| parked.reply.send(Err(reason.clone())));
    }

    /// Updates the base of instances to the current memory of their domains.
    pub(super) fn move_instances(&mut self, task: TaskId, instances: &mut [Instance]) -> Result<(), DeviceError> {
        let invocation = &self.invocations[&task];
        for (stage, instance) in invocation.submission.chain.stages.iter().zip(instances) {
            let tenant = stage.function.key.tenant.as_str();
            let base = self.device.domain(tenant)?;
            if !instance.is_at(base) {
                let start = self.device.memory_start(tenant)?;
                let mask = self.device.memory_mask(tenant);
                let all = || self.device.info().memory_range(DeviceOffset(0)).mask();
                instance.move_to(base, start, mask.unwrap_or_else(all));
            }
        }
        Ok(())
    }

    /// Whether an invocation that failed is retried.
    pub(super) fn should_retry(&self, invocation: &Invocation) -> bool {
        // An invocation that never ran did not cause the loss; it may wait for any number of
        // executors.
        let may_go_on = !invocation.may_have_run || invocation.submission.retries < RETRIES_MAX;
        invocation.lost_executor && may_go_on && self.closing.is_none()
    }

    /// Parks an invocation for a retry, or answers it if another device can run it. None of its
    /// launches is on the device.
    pub(super) fn retry(
        &mut self,
        mut submission: Submission,
        reply: PendingReply,
        may_have_run: bool,
        cause: &InvokeError,
    ) {
        if submission.may_move {
            let error = if may_have_run { InvokeError::ExecutorLost } else { InvokeError::Unavailable };
            return reply.send(Err(error(cause.to_string())));
        }
        submission.retries += u32::from(may_have_run);
        self.retries += 1;
        tracing::info!(
            invocation = submission.id.0,
            function = %submission.chain.stages[0].function.key,
            "retrying: a launch of it was lost"
        );
        self.parked.push(Parked { submission, reply });
    }
}
