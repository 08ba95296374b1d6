//! Shutdown: lets admitted invocations run for a while, cancels the others, and ends the thread.

use super::Worker;
use super::shutdown::Closing;
use crate::clock::{self, saturating_nanos};
use crate::error::InvokeError;
use crate::limits;
use atoll_core::Nanos;
use std::time::Duration;

impl Worker {
    pub(super) fn close(&mut self, grace: Duration) {
        let at = |after: Duration| Nanos(clock::now().0.saturating_add(saturating_nanos(after)));
        self.closing = Some(Closing {
            cancel_at: Some(at(grace)),
            give_up_at: at(grace.saturating_add(limits::SHUTDOWN_CANCEL_GRACE)),
        });
        self.loads.clear();
    }

    pub(super) fn is_done(&self) -> bool {
        let Some(closing) = self.closing else { return false };
        let gives_up = clock::now() >= closing.give_up_at;
        if gives_up && !self.launches.is_empty() {
            tracing::error!(
                launches = self.launches.len(),
                "launches are stuck on the device; shutting down without them"
            );
        }
        gives_up || self.invocations.is_empty() && self.parked.is_empty() && self.batches.is_empty()
    }

    /// Cancels what is left when the grace period is over.
    pub(super) fn tick_closing(&mut self, now: Nanos) {
        if let Some(closing) = &mut self.closing
            && closing.cancel_at.is_some_and(|at| at <= now)
        {
            closing.cancel_at = None;
            self.cancel_parked(None, &InvokeError::ShuttingDown);
            self.answer_waiting(None, &InvokeError::ShuttingDown);
            self.cancel_all(&InvokeError::ShuttingDown);
        }
    }
}
