//! The state of a shutdown.

use atoll_core::Nanos;

/// A shutdown in progress.
#[derive(Clone, Copy)]
pub(super) struct Closing {
    /// When the remaining invocations are cancelled; `None` once they are.
    pub(super) cancel_at: Option<Nanos>,
    /// When the thread ends even if launches are in flight.
    pub(super) give_up_at: Nanos,
}
