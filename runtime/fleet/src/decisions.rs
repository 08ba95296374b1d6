//! Counts of the decisions of the pool, by reason.

use atoll_core::placement::{RejectReason, Why};

/// How often the pool placed and rejected requests, by reason. All 0 without a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// By index in [`Why::ALL`].
    placed: [u64; Why::ALL.len()],
    /// By [`RejectReason::index`].
    rejected: [u64; RejectReason::LABELS.len()],
}

impl DecisionCounts {
    pub(crate) fn note_placed(&mut self, why: Why) {
        if let Some(at) = Why::ALL.iter().position(|known| *known == why) {
            self.placed[at] += 1;
        }
    }

    pub(crate) fn note_rejected(&mut self, reason: RejectReason) {
        self.rejected[reason.index()] += 1;
    }

    /// Requests that were placed on a device, by the label of the reason.
    pub fn placed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Why::ALL.into_iter().map(Why::label).zip(self.placed)
    }

    /// Requests that were rejected, by the label of the reason.
    pub fn rejected(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RejectReason::LABELS.into_iter().zip(self.rejected)
    }
}
