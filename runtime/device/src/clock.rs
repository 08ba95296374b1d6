//! Converts times of a GPU's events to the host's clock.
//!
//! An event only tells the time since another event. So each queue keeps the last event it saw,
//! with its estimated host time. The next event is estimated from the device time between the two,
//! but never later than the moment at which it was seen. The event that is seen with the smallest
//! delay thus corrects all later estimates. The two clocks do not run at exactly the same speed. So
//! the device time between events is lengthened slightly, by more than the clocks can differ:
//! estimates drift towards later times, where the next observation corrects them.

/// Upper limit of the drift: one part in this many.
const DRIFT_DIVISOR: u64 = 10_000;

/// When a launch began and ended, in nanoseconds of the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// The conversion of a queue's event times to host time.
#[derive(Debug)]
pub struct Clock<E> {
    last: E,
    last_ns: u64,
}

impl<E> Clock<E> {
    /// Starts from an event that passed at this host time, in nanoseconds.
    pub fn new(passed: E, at_ns: u64) -> Clock<E> {
        Clock { last: passed, last_ns: at_ns }
    }

    /// The host times of a launch, from its two events, which must have passed. Keeps the second
    /// event and returns the one kept before in its place. `nanos_since(a, b)` is the time from
    /// event b to event a on the device, and `submitted_ns` and `seen_ns` are host times.
    ///
    /// # Errors
    /// Those of `nanos_since`.
    pub fn place<F>(
        &mut self,
        began: &E,
        ended: &mut E,
        [submitted_ns, seen_ns]: [u64; 2],
        nanos_since: impl Fn(&E, &E) -> Result<u64, F>,
    ) -> Result<Span, F> {
        let (since_last, took) = (nanos_since(ended, &self.last)?, nanos_since(ended, began)?);
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

    #[test]
    fn late_observations_are_corrected_and_a_slow_clock_is_followed() {
        // The device's clock is slow by 50 parts per million; ends are seen 20 µs late, every tenth
        // only 5 µs.
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
