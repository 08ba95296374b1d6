//! What the engine does about executors: where memory of a function is, who waits for one that is
//! being replaced, and what is tried again.
//!
//! A device may run functions of different tenants in different processes, each of which can be
//! lost and replaced without the others (`atoll-executor`'s pool). An invocation whose executor was
//! lost is tried once more (more often if it had not begun), unless it was cancelled or its own
//! kernel faulted: nothing of it was answered, and its inputs are kept until its end. Invocations
//! of a domain whose executor is being replaced wait here, in front of the scheduler, so that they
//! stand in nobody's way.

use super::Worker;
use super::parked::Parked;
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::instance::Instance;
use crate::invocation::Invocation;
use crate::request::{InvocationId, PendingReply};
use atoll_core::{Nanos, TaskId};
use atoll_device::{DeviceError, DomainState};

/// Times an invocation is tried again after its executor was lost while it may have been running
/// there. More would let one that kills its executors do so for longer.
const RETRIES_MAX: u32 = 1;

impl Worker {
    /// An invocation arrives, for the first time or again.
    pub(super) fn arrive(&mut self, submission: Submission, reply: PendingReply) {
        match self.state_of(&submission) {
            DomainState::Ready => self.submit(submission, reply),
            DomainState::Restarting => self.parked.push(Parked { submission, reply }),
            DomainState::Unavailable(cause) => reply.send(Err(InvokeError::Unavailable(cause))),
        }
    }

    /// What keeps an invocation from running, of all its functions.
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

    /// Lets those go on whose executor is there again, or will not be, or who have waited for too
    /// long.
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

    /// When somebody who waits for an executor has waited for too long.
    pub(super) fn parked_deadline(&self) -> Option<Nanos> {
        self.parked.iter().filter_map(|parked| parked.submission.deadline).min()
    }

    /// Gives up those who wait for an executor: one of them or all.
    pub(super) fn cancel_parked(&mut self, id: Option<InvocationId>, reason: &InvokeError) {
        let is_meant = |parked: &mut Parked| id.is_none_or(|id| parked.submission.id == id);
        self.parked.extract_if(.., is_meant).for_each(|parked| parked.reply.send(Err(reason.clone())));
    }

    /// Sees that instances name the memory that their functions have now.
    pub(super) fn move_instances(&mut self, task: TaskId, instances: &mut [Instance]) -> Result<(), DeviceError> {
        let invocation = &self.invocations[&task];
        for (stage, instance) in invocation.submission.chain.stages.iter().zip(instances) {
            instance.move_to(self.device.domain(stage.function.key.tenant.as_str())?);
        }
        Ok(())
    }

    /// Whether an invocation that went wrong is to be tried again.
    pub(super) fn wants_retry(&self, invocation: &Invocation) -> bool {
        // What never ran is not why, and may wait for as many executors as the device is willing to start.
        let may_go_on = !invocation.may_have_run || invocation.submission.retries < RETRIES_MAX;
        invocation.lost_executor && may_go_on && self.closing.is_none()
    }

    /// Tries an invocation again; nothing of it is on the device any more.
    pub(super) fn retry(&mut self, submission: Submission, reply: PendingReply) {
        self.retries += 1;
        tracing::info!(invocation = submission.id.0, function = %submission.chain.stages[0].function.key, "tried again: a launch of it was lost");
        self.parked.push(Parked { submission, reply });
    }
}
