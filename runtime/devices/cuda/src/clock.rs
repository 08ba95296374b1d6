//! Times of events on the host's clock.
//!
//! An event only says how long it was after another one. So each queue keeps the last event it saw,
//! with the time it is taken for. The next one is that much later, and never later than
//! now, when it was seen to have passed: the smallest delay of seeing one corrects all that were
//! seen later. As the two clocks do not run at quite the same speed, what is estimated is let drift
//! towards later times, by more than clocks differ.

use atoll_cuda::{CudaError, Event};

/// How much later an event may be than the device's clock says, as one part in so many.
const DRIFT_DIVISOR: u64 = 10_000;

/// When a launch began and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
}

/// The host's time of a device's events.
#[derive(Debug)]
pub(super) struct Clock {
    last: Event,
    last_ns: u64,
}

impl Clock {
    /// From an event that has passed at a known time.
    pub(super) fn new(passed: Event, at_ns: u64) -> Clock {
        Clock { last: passed, last_ns: at_ns }
    }

    /// Where a launch lies whose events have passed. The second event is kept, and the one kept
    /// before is given back in its place.
    pub(super) fn place(
        &mut self,
        began: &Event,
        ended: &mut Event,
        submitted_ns: u64,
        seen_ns: u64,
    ) -> Result<Span, CudaError> {
        let (since_last, took) = (ended.nanos_since(&self.last)?, ended.nanos_since(began)?);
        let span = place(self.last_ns, since_last, took, submitted_ns, seen_ns);
        std::mem::swap(&mut self.last, ended);
        self.last_ns = span.ended_ns;
        Ok(span)
    }
}

fn place(last_ns: u64, since_last: u64, took: u64, submitted_ns: u64, seen_ns: u64) -> Span {
    let by_device = last_ns.saturating_add(since_last).saturating_add(since_last / DRIFT_DIVISOR);
    let ended_ns = by_device.clamp(submitted_ns.min(seen_ns), seen_ns);
    Span { started_ns: ended_ns.saturating_sub(took).clamp(submitted_ns.min(ended_ns), ended_ns), ended_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_before_it_was_submitted_or_ends_after_it_was_seen() {
        assert_eq!(place(1000, 500, 200, 1100, 2000), Span { started_ns: 1300, ended_ns: 1500 });
        assert_eq!(place(1000, 500, 200, 1100, 1400), Span { started_ns: 1200, ended_ns: 1400 });
        assert_eq!(place(1000, 500, 900, 1100, 2000), Span { started_ns: 1100, ended_ns: 1500 });
        assert_eq!(place(1000, 10, 5, 1700, 2000), Span { started_ns: 1700, ended_ns: 1700 });
    }

    #[test]
    fn a_late_sight_is_forgotten_and_a_slow_clock_is_followed() {
        // The device's clock is slow by 50 parts in a million; ends are seen 20 µs late, once in ten times
        // 5 µs.
        let (mut last, mut worst) = (5_000_000_u64, 0);
        for launch in 1..=2000_u64 {
            let truth = 1_000_000 + launch * 1_000_000;
            let seen = truth + if launch % 10 == 0 { 5_000 } else { 20_000 };
            last = place(last, 999_950, 100, 0, seen).ended_ns;
            if launch > 100 {
                worst = worst.max(last.abs_diff(truth));
            }
        }
        assert!(worst <= 6_000, "{worst} ns");
    }
}
