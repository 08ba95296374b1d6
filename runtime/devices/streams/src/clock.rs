//! Converts times of events to the host's clock.
//!
//! An event only tells the time since another event. So each queue keeps the last event it saw,
//! with its estimated host time. The next event is estimated from the device time between the two,
//! but never later than the moment at which it was seen. The event that is seen with the smallest
//! delay thus corrects all later estimates. The two clocks do not run at exactly the same speed. So
//! the device time between events is lengthened slightly, by more than the clocks can differ:
//! estimates drift towards later times, where the next observation corrects them.

use crate::driver::Driver;

/// Upper limit of the drift: one part in this many.
const DRIFT_DIVISOR: u64 = 10_000;

/// When a launch began and ended, in host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
}

/// The conversion of a queue's event times to host time.
#[derive(Debug)]
pub(crate) struct Clock<D: Driver> {
    last: D::Event,
    last_ns: u64,
}

impl<D: Driver> Clock<D> {
    /// Starts from an event whose host time is known.
    pub(crate) fn new(passed: D::Event, at_ns: u64) -> Clock<D> {
        Clock { last: passed, last_ns: at_ns }
    }

    /// The host times of a launch, from its two events, which must have passed. Keeps the second
    /// event and returns the one kept before in its place.
    pub(crate) fn place(
        &mut self,
        began: &D::Event,
        ended: &mut D::Event,
        submitted_ns: u64,
        seen_ns: u64,
    ) -> Result<Span, D::Error> {
        let (since_last, took) = (D::nanos_since(ended, &self.last)?, D::nanos_since(ended, began)?);
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
    fn times_are_between_submission_and_observation() {
        assert_eq!(place(1000, 500, 200, 1100, 2000), Span { started_ns: 1300, ended_ns: 1500 });
        assert_eq!(place(1000, 500, 200, 1100, 1400), Span { started_ns: 1200, ended_ns: 1400 });
        assert_eq!(place(1000, 500, 900, 1100, 2000), Span { started_ns: 1100, ended_ns: 1500 });
        assert_eq!(place(1000, 10, 5, 1700, 2000), Span { started_ns: 1700, ended_ns: 1700 });
    }
}
