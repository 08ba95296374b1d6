//! Invocations that another device can run as well.

use super::EngineHandle;
use crate::clock;
use crate::event::Submission;
use crate::request::{ChainRequest, InvocationId, PendingReply, Reply};

impl EngineHandle {
    /// As [`EngineHandle::submit_chain`], for an invocation that another device can run as well. If
    /// its executor is lost, it is answered at once with
    /// [`InvokeError::ExecutorLost`](crate::InvokeError::ExecutorLost). If it has not run, or
    /// arrives while the executor is being replaced, the answer is
    /// [`InvokeError::Unavailable`](crate::InvokeError::Unavailable). Other invocations wait for the
    /// next executor in these cases.
    pub fn submit_movable(&self, mut request: ChainRequest, reply: Reply) -> InvocationId {
        let reply = match self.with_codes(&mut request, None, reply) {
            Ok(reply) => PendingReply::new(reply),
            Err(id) => return id,
        };
        let id = InvocationId(self.shared.next_id());
        match self.admit(id, request, None, clock::now()) {
            Ok(submission) => self.pass_on(Submission { may_move: true, ..submission }, reply),
            Err(error) => reply.send(Err(error)),
        }
        id
    }
}
