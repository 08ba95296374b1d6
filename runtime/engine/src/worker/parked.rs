//! Invocations that are not passed to the scheduler yet.

use crate::event::Submission;
use crate::request::PendingReply;

/// An invocation that waits for an executor.
pub(super) struct Parked {
    pub(super) submission: Submission,
    pub(super) reply: PendingReply,
}
