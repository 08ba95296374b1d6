//! Measures the device time that a client with a share received in each window. Without I/O: times
//! are passed in.

use crate::histogram::Histogram;
use std::collections::VecDeque;

/// Windows of a period: a second, with windows of 40 ms.
pub(crate) const PERIOD_WINDOWS: usize = 25;

/// Largest number of open windows. If a client reports nothing for longer, its measurement begins
/// anew.
const OPEN_WINDOWS_MAX: u64 = 4096;

/// The device time that a client is promised in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) request_ns: u64,
    pub(crate) limit_ns: u64,
}

/// The device time that a client received. A window is closed once all launches that began in it
/// have ended.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    window_ns: u64,
    /// Number of the oldest open window; the window at time 0 has number 0.
    first: u64,
    open: VecDeque<Window>,
    /// The last closed windows, the oldest first.
    recent: VecDeque<Window>,
    /// Invocations of the client that are ready and have not ended.
    ready: u32,
    pub(crate) windows: u64,
    pub(crate) error_max: f64,
    pub(crate) overshoot: Histogram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    received_ns: u64,
    /// Whether the client had work during the whole window.
    is_busy: bool,
}

impl Meter {
    /// Begins to measure a client that has `ready` ready invocations.
    pub(crate) fn new(now_ns: u64, window_ns: u64, ready: u32) -> Meter {
        let first = now_ns / window_ns;
        Meter {
            window_ns,
            first,
            open: VecDeque::from([Window { received_ns: 0, is_busy: false }]),
            recent: VecDeque::new(),
            ready,
            windows: 0,
            error_max: 0.0,
            overshoot: Histogram::default(),
        }
    }

    /// The share changed: the measurement begins anew.
    pub(crate) fn change_share(&mut self, now_ns: u64) {
        self.open_until(now_ns);
        self.recent.clear();
        (self.windows, self.error_max, self.overshoot) = (0, 0.0, Histogram::default());
        self.open.iter_mut().for_each(|window| window.is_busy = false);
    }

    /// An invocation became ready.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.open_until(now_ns);
        self.ready += 1;
    }

    /// A ready invocation ended, or is no longer ready.
    pub(crate) fn end(&mut self, now_ns: u64) {
        self.open_until(now_ns);
        self.ready = self.ready.saturating_sub(1);
        if self.ready == 0
            && let Some(current) = self.open.back_mut()
        {
            current.is_busy = false;
        }
    }

    /// A launch kept the device busy during this time. Time in closed windows counts in the oldest
    /// open one.
    pub(crate) fn received(&mut self, from_ns: u64, to_ns: u64) {
        self.open_until(to_ns);
        let mut from = from_ns;
        while from < to_ns {
            let number = from / self.window_ns;
            let end = to_ns.min((number + 1) * self.window_ns);
            let at = number.saturating_sub(self.first) as usize;
            if let Some(window) = self.open.get_mut(at) {
                window.received_ns += end - from;
            }
            from = end;
        }
    }

    /// Closes the windows that ended by `to_ns`. All launches that are still in flight must have
    /// begun after it.
    pub(crate) fn close_until(&mut self, to_ns: u64, promise: Promise) {
        self.open_until(to_ns);
        while self.open.len() > 1 && (self.first + 1).saturating_mul(self.window_ns) <= to_ns {
            let window = self.open.pop_front().expect("one window stays open");
            self.first += 1;
            self.close(window, promise);
        }
    }

    fn close(&mut self, window: Window, promise: Promise) {
        self.windows += 1;
        if window.received_ns > 0 {
            self.overshoot.record(window.received_ns.saturating_sub(promise.limit_ns));
        }
        if self.recent.len() == PERIOD_WINDOWS {
            self.recent.pop_front();
        }
        self.recent.push_back(window);
        if self.recent.len() < PERIOD_WINDOWS || self.recent.iter().any(|window| !window.is_busy) {
            return;
        }
        let (received, windows) = (self.recent_ns(), PERIOD_WINDOWS as u64);
        let short = (promise.request_ns * windows).saturating_sub(received);
        let over = received.saturating_sub(promise.limit_ns * windows);
        self.error_max = self.error_max.max(short.max(over) as f64 / (windows * self.window_ns) as f64);
    }

    /// The fraction of the last period that the client received; of the time since the measurement
    /// began, if that is shorter.
    pub(crate) fn received_ratio(&self) -> f64 {
        self.recent_ns() as f64 / (self.recent.len().max(1) as u64 * self.window_ns) as f64
    }

    fn recent_ns(&self) -> u64 {
        self.recent.iter().map(|window| window.received_ns).sum()
    }

    /// Opens the windows up to the one that contains `to_ns`.
    fn open_until(&mut self, to_ns: u64) {
        let number = to_ns / self.window_ns;
        let is_busy = self.ready > 0;
        if number > self.first + OPEN_WINDOWS_MAX {
            self.open.clear();
            self.recent.clear();
            (self.first, self.windows) = (number, self.windows + number - self.first);
        }
        while self.first + self.open.len() as u64 <= number {
            self.open.push_back(Window { received_ns: 0, is_busy });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: u64 = 1_000;
    const PROMISE: Promise = Promise { request_ns: 100, limit_ns: 200 };

    /// A meter after `windows` windows, each with this busy time.
    fn after(windows: u64, busy_ns: u64, ready: u32) -> Meter {
        let mut meter = Meter::new(0, W, ready);
        for window in 0..windows {
            meter.received(window * W, window * W + busy_ns);
            meter.close_until((window + 1) * W, PROMISE);
        }
        meter
    }

    #[test]
    fn errors_are_distances_from_request_and_limit_over_a_period() {
        for (busy_ns, error) in [(100, 0.0), (150, 0.0), (200, 0.0), (90, 0.01), (230, 0.03)] {
            let meter = after(60, busy_ns, 1);
            assert!((meter.error_max - error).abs() < 1e-9, "{busy_ns}: {}", meter.error_max);
            assert!((meter.received_ratio() - busy_ns as f64 / W as f64).abs() < 1e-9);
            assert_eq!((meter.windows, meter.overshoot.count()), (60, 60));
            assert_eq!(meter.overshoot.max_ns(), busy_ns.saturating_sub(200));
        }
    }

    #[test]
    fn a_client_without_work_is_owed_nothing() {
        assert_eq!(after(60, 10, 0).error_max, 0.0);
        let mut meter = after(30, 100, 1);
        meter.end(30 * W + 1);
        meter.begin(30 * W + 2);
        for window in 30..54 {
            meter.close_until((window + 1) * W, PROMISE);
        }
        assert_eq!(meter.error_max, 0.0, "the period has a window in which the client had nothing to do");
        for window in 54..60 {
            meter.close_until((window + 1) * W, PROMISE);
        }
        assert!((meter.error_max - 0.1).abs() < 1e-9, "{}", meter.error_max);
    }

    #[test]
    fn a_long_launch_counts_in_each_of_its_windows() {
        let mut meter = Meter::new(500, W, 1);
        meter.received(700, 3_300);
        meter.close_until(700, PROMISE);
        assert_eq!(meter.windows, 0, "a launch that ends later may have begun in this window");
        meter.close_until(3_300, PROMISE);
        let received: Vec<u64> = meter.recent.iter().map(|window| window.received_ns).collect();
        assert_eq!(received, [300, 1_000, 1_000]);
        meter.received(2_900, 3_400);
        assert_eq!(meter.open[0].received_ns, 300 + 500, "what lies in a closed window counts in the oldest open one");
    }

    #[test]
    fn resized_shares_and_long_pauses_begin_anew() {
        let mut meter = after(60, 0, 1);
        assert!(meter.error_max > 0.0);
        meter.change_share(60 * W);
        for window in 60..84 {
            meter.close_until((window + 1) * W, PROMISE);
        }
        assert_eq!(meter.error_max, 0.0);
        meter.end(84 * W);
        meter.begin(u64::MAX / 2);
        assert!(meter.open.len() == 1 && meter.recent.is_empty(), "memory stays bounded");
    }
}
