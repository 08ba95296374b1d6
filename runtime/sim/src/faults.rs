//! Things that go wrong on demand: each at a rate, each with a generator of its own, so that one
//! does not move the others.

use atoll_core::rng::Rng;
use serde::Serialize;

/// How much later than usual a late completion is told: what a thread waits that lost its CPU to
/// another one.
pub(crate) const LATE_COMPLETION_NS: u64 = 1_000_000;

/// When the scheduler looks again after a wake-up that was lost, if nothing else wakes it.
pub(crate) const LOST_WAKEUP_NS: u64 = 10_000_000;

/// When the device ends a kernel that does not end by itself.
pub(crate) const STUCK_KERNEL_NS: u64 = 100_000_000;

/// A client that dies does so within this time from its call.
pub(crate) const DEATH_NS_MAX: u64 = 10_000_000;

/// How often things go wrong: shares of what could, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of all launches: their end is told a millisecond late.
    pub late_completions: f64,
    /// Of all ends of launches: the scheduler hears nothing until something else wakes it, at the
    /// latest 10 ms later.
    pub lost_wakeups: f64,
    /// Of all calls: within 10 ms their client dies. It is back at once and calls anew.
    pub dead_clients: f64,
    /// Of all launches: their kernel does not end by itself. The device ends it after 100 ms,
    /// unless it can stop running blocks and is asked to.
    pub stuck_kernels: f64,
    /// Of all raised epochs: kernels never read the new value, and run to their end.
    pub failing_resets: f64,
}

/// A fault as users name it.
#[derive(Clone, Copy, Debug)]
pub struct FaultEntry {
    /// Its name.
    pub name: &'static str,
    /// Its rate.
    pub of: fn(&mut Faults) -> &mut f64,
}

/// Every fault.
pub const FAULTS: [FaultEntry; 5] = [
    FaultEntry { name: "late-completions", of: |faults| &mut faults.late_completions },
    FaultEntry { name: "lost-wakeups", of: |faults| &mut faults.lost_wakeups },
    FaultEntry { name: "dead-clients", of: |faults| &mut faults.dead_clients },
    FaultEntry { name: "stuck-kernels", of: |faults| &mut faults.stuck_kernels },
    FaultEntry { name: "failing-resets", of: |faults| &mut faults.failing_resets },
];

/// What went wrong in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Launches whose end was told late.
    pub late_completions: u64,
    /// Ends of launches that woke nobody.
    pub lost_wakeups: u64,
    /// Clients that died with a call.
    pub dead_clients: u64,
    /// Launches whose kernel did not end by itself.
    pub stuck_kernels: u64,
    /// Raised epochs that nobody read.
    pub failing_resets: u64,
}

/// One fault, as it is thrown for.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    share: f64,
    rng: Rng,
    struck: u64,
}

impl Chance {
    /// A fault of this share; `seed` is the run's, `which` tells its faults apart.
    pub(crate) fn new(share: f64, seed: u64, which: u64) -> Chance {
        // Mixed, so that neighbouring seeds have nothing to do with each other.
        Chance {
            share,
            rng: Rng::new(Rng::new(seed.wrapping_mul(FAULTS.len() as u64).wrapping_add(which)).next_u64()),
            struck: 0,
        }
    }

    /// Whether it strikes this time.
    pub(crate) fn strikes(&mut self) -> bool {
        // Nothing is drawn for what never happens.
        let strikes = self.share > 0.0 && (self.rng.next_u64() >> 11) as f64 / ((1_u64 << 53) as f64) < self.share;
        self.struck += u64::from(strikes);
        strikes
    }

    /// Where in a range it strikes.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// How often it did.
    pub(crate) fn struck(&self) -> u64 {
        self.struck
    }
}

/// The faults of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFaults {
    pub(crate) late_completions: Chance,
    pub(crate) stuck_kernels: Chance,
    pub(crate) failing_resets: Chance,
}

impl DeviceFaults {
    pub(crate) fn new(faults: &Faults, seed: u64) -> DeviceFaults {
        DeviceFaults {
            late_completions: Chance::new(faults.late_completions, seed, 0),
            stuck_kernels: Chance::new(faults.stuck_kernels, seed, 1),
            failing_resets: Chance::new(faults.failing_resets, seed, 2),
        }
    }
}

/// The faults of everything around a device.
#[derive(Clone, Debug)]
pub(crate) struct WorldFaults {
    pub(crate) lost_wakeups: Chance,
    pub(crate) dead_clients: Chance,
}

impl WorldFaults {
    pub(crate) fn new(faults: &Faults, seed: u64) -> WorldFaults {
        WorldFaults {
            lost_wakeups: Chance::new(faults.lost_wakeups, seed, 3),
            dead_clients: Chance::new(faults.dead_clients, seed, 4),
        }
    }

    /// What went wrong so far, on the device too.
    pub(crate) fn counts(&self, device: &DeviceFaults) -> FaultCounts {
        FaultCounts {
            late_completions: device.late_completions.struck(),
            lost_wakeups: self.lost_wakeups.struck(),
            dead_clients: self.dead_clients.struck(),
            stuck_kernels: device.stuck_kernels.struck(),
            failing_resets: device.failing_resets.struck(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_as_often_as_it_is_to() {
        let struck = |share: f64| {
            let mut chance = Chance::new(share, 7, 2);
            (0..10_000).filter(|_| chance.strikes()).count() as u64 == chance.struck()
                && chance.struck().abs_diff((share * 1e4) as u64) < 300
        };
        assert!([0.0, 0.01, 0.5, 1.0].into_iter().all(struck));
    }
}
