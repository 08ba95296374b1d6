//! The measurements of intervals, and what follows from several of them.

use super::demand::Needed;
use super::predictor::RATE_MAX;
use crate::ids::Nanos;

/// Late requests within a cool-down that are a reason to add an instance. Fewer may be chance.
const LATE_MIN: u64 = 3;

/// The measurements of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Requests that arrived.
    pub arrivals: u64,
    /// Requests that wait at the end of the interval.
    pub queued: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Requests that ended and took longer than the SLO.
    pub late: u64,
    /// The capacity of instances that are not scaled, in thousandths of a request per second.
    pub base: u64,
    /// The instances that recent requests needed. Not used if a headroom is set.
    pub needed: Option<Needed>,
}

/// Requests that ended recently, counted in two halves of a cool-down. The counts cover between
/// half a cool-down and a whole one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    /// When the second half began.
    since: Nanos,
    /// For each half, the requests that ended and the late ones among them.
    halves: [(u64, u64); 2],
}

impl Recent {
    /// Nothing was counted before this time.
    pub(super) fn since(since: Nanos) -> Recent {
        Recent { since, ..Recent::default() }
    }

    /// Counts the requests of an interval.
    pub(super) fn count(&mut self, now: Nanos, observed: &Observed, cool_down_ns: u64) {
        if now.0.saturating_sub(self.since.0) >= cool_down_ns / 2 {
            *self = Recent { since: now, halves: [self.halves[1], (0, 0)] };
        }
        let (ended, late) = &mut self.halves[1];
        (*ended, *late) = (*ended + observed.ended, *late + observed.late);
    }

    /// Whether more than 1 % of the requests were late, and at least [`LATE_MIN`].
    pub(super) fn is_late(&self) -> bool {
        let [(ended, late), (ended_now, late_now)] = self.halves;
        late + late_now >= LATE_MIN && (late + late_now) * 100 > ended + ended_now
    }
}

/// The rate of `requests` in `elapsed_ns`, in thousandths of a request per second.
pub(super) fn per_second(requests: u64, elapsed_ns: u64) -> u64 {
    let rate = u128::from(requests) * 1_000_000_000_000 / u128::from(elapsed_ns.max(1));
    u64::try_from(rate).unwrap_or(RATE_MAX).min(RATE_MAX)
}
