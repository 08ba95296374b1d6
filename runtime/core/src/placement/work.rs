//! The expected work of a device: when its requests in flight will have ended.

use crate::ids::Nanos;

/// The requests of one class in flight on a device, which runs them one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The expected end of the last one; in the past if they take longer than expected.
    until: Nanos,
    /// The expected times of all of them together.
    ns: u64,
    requests: u32,
}

impl Work {
    /// Adds a request with this expected time.
    pub(super) fn begin(&mut self, now: Nanos, ns: u64) {
        self.until = Nanos(self.until.max(now).0.saturating_add(ns));
        self.ns = self.ns.saturating_add(ns);
        self.requests += 1;
    }

    /// Removes a request that was added with this expected time. If it was the first one in flight,
    /// the next one begins now, so that errors of estimates do not add up.
    pub(super) fn end(&mut self, now: Nanos, ns: u64, was_first: bool) {
        self.requests -= 1;
        self.ns = if self.requests == 0 { 0 } else { self.ns.saturating_sub(ns) };
        self.until = match was_first || self.requests == 0 {
            true => Nanos(now.0.saturating_add(self.ns)),
            false => Nanos(self.until.0.saturating_sub(ns)).max(now),
        };
    }

    /// Expected time until all of them have ended.
    pub(super) fn left_ns(&self, now: Nanos) -> u64 {
        if self.requests == 0 { 0 } else { self.until.0.saturating_sub(now.0) }
    }

    /// The expected end of the last one, not before `now`.
    pub(super) fn until(&self, now: Nanos) -> Nanos {
        self.until.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_estimates_do_not_add_up() {
        let mut work = Work::default();
        work.begin(Nanos(0), 100);
        work.begin(Nanos(0), 100);
        let mut now = 0;
        // Under constant load each request takes half of its expected time, then twice as long.
        for took in [50, 200].into_iter().flat_map(|took| [took; 100]) {
            now += took;
            work.end(Nanos(now), 100, true);
            assert_eq!(work.left_ns(Nanos(now)), 100, "at {now}");
            work.begin(Nanos(now), 100);
        }
        work.end(Nanos(now), 100, false);
        assert_eq!(work.left_ns(Nanos(now)), 100, "the first one is still there");
        assert_eq!(work.left_ns(Nanos(now + 150)), 0, "it is late");
        work.end(Nanos(now + 150), 100, true);
        assert_eq!((work.left_ns(Nanos(now)), work.until(Nanos(now + 200))), (0, Nanos(now + 200)));
    }
}
