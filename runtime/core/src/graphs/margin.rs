//! The part of each deadline that the admission of a graph keeps free, learnt from late requests.
//!
//! Plans use near-longest times of stages, and a stage may still take longer. The margin grows with
//! each late request and shrinks with each one in time, so that in the long run one of
//! [`REQUESTS_PER_LATE`] admitted requests is late at most.

use crate::ids::Nanos;

/// A share of 1, in millionths.
const WHOLE: u64 = 1_000_000;

/// What a late request adds to the margin, in millionths of a deadline.
const LATE_STEP: u32 = 20_000;

/// Of so many requests, one may be late.
const REQUESTS_PER_LATE: u32 = 200;

/// The largest margin, in millionths of a deadline. It bounds how many requests a graph rejects
/// whose requests are late for a reason that no margin mends.
const MARGIN_MAX: u32 = 500_000;

/// The margin of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Margin {
    millionths: u32,
}

impl Margin {
    /// Notes the end of an admitted request.
    pub fn note(&mut self, is_late: bool) {
        self.millionths = match is_late {
            true => (self.millionths + LATE_STEP).min(MARGIN_MAX),
            false => self.millionths.saturating_sub(LATE_STEP / REQUESTS_PER_LATE),
        };
    }

    /// The part of each deadline that is kept free, from 0 to 0.5.
    pub fn part(self) -> f64 {
        f64::from(self.millionths) / WHOLE as f64
    }

    /// The time that a request with this time to its deadline is planned with.
    pub fn planned(self, time: Nanos) -> Nanos {
        let free = u128::from(time.0) * u128::from(self.millionths) / u128::from(WHOLE);
        // At most half of a u64.
        Nanos(time.0 - free as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_with_late_requests_and_shrinks_with_others() {
        let mut margin = Margin::default();
        margin.note(false);
        assert_eq!(margin.planned(Nanos(u64::MAX)), Nanos(u64::MAX));
        margin.note(true);
        assert_eq!((margin.part(), margin.planned(Nanos(1_000))), (0.02, Nanos(980)));
        (0..REQUESTS_PER_LATE).for_each(|_| margin.note(false));
        assert_eq!(margin, Margin::default());
        (0..100).for_each(|_| margin.note(true));
        assert_eq!(margin.planned(Nanos(u64::MAX)), Nanos(u64::MAX / 2 + 1));
    }

    #[test]
    fn late_requests_become_rare() {
        // A request takes 50 to 100. Without a margin, 70 are left when it begins, so most requests
        // would be late; the margin adds its part of a deadline of 100.
        let (mut margin, mut state, mut late) = (Margin::default(), 1_u32, 0);
        for _ in 0..100_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let takes = 50 + u64::from(state >> 16) * 50 / 0xFFFF;
            let is_late = takes > 70 + (margin.part() * 100.0) as u64;
            late += u32::from(is_late);
            margin.note(is_late);
        }
        assert!(late > 0 && late * REQUESTS_PER_LATE <= 110_000, "{late} of 100,000");
    }
}
