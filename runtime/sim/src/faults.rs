//! Fault injection: each kind of fault has a rate and a random generator of its own, so that
//! changing one rate does not change when the other faults happen.

use atoll_core::rng::Rng;
use serde::Serialize;

/// The additional latency of a late completion: how long a thread waits after it lost its CPU to
/// another one.
pub(crate) const LATE_COMPLETION_NS: u64 = 1_000_000;

/// The longest time until the scheduler looks for completions after a lost wake-up.
pub(crate) const LOST_WAKEUP_NS: u64 = 10_000_000;

/// When the device ends a kernel that never ends by itself.
pub(crate) const STUCK_KERNEL_NS: u64 = 100_000_000;

/// A client that dies does so within this time after its call.
pub(crate) const DEATH_NS_MAX: u64 = 10_000_000;

/// Fault rates, as probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Per launch: its completion is reported a millisecond late.
    pub late_completions: f64,
    /// Per completion: it does not wake the scheduler, which notices it at its next wake-up, at
    /// most 10 ms later.
    pub lost_wakeups: f64,
    /// Per call: the client dies within 10 ms. It restarts at once and calls again.
    pub dead_clients: f64,
    /// Per launch: the kernel never ends by itself. The device ends it after 100 ms, unless the
    /// device can stop running blocks and is asked to.
    pub stuck_kernels: f64,
    /// Per raised epoch: kernels never see the new value, and run to their end.
    pub failing_resets: f64,
}

/// A kind of fault with its name in command lines.
#[derive(Clone, Copy, Debug)]
pub struct FaultEntry {
    /// Its name.
    pub name: &'static str,
    /// Its rate.
    pub of: fn(&mut Faults) -> &mut f64,
}

/// All kinds of faults.
pub const FAULTS: [FaultEntry; 5] = [
    FaultEntry { name: "late-completions", of: |faults| &mut faults.late_completions },
    FaultEntry { name: "lost-wakeups", of: |faults| &mut faults.lost_wakeups },
    FaultEntry { name: "dead-clients", of: |faults| &mut faults.dead_clients },
    FaultEntry { name: "stuck-kernels", of: |faults| &mut faults.stuck_kernels },
    FaultEntry { name: "failing-resets", of: |faults| &mut faults.failing_resets },
];

/// The faults injected in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Launches whose completion was reported late.
    pub late_completions: u64,
    /// Completions that did not wake the scheduler.
    pub lost_wakeups: u64,
    /// Clients that died during a call.
    pub dead_clients: u64,
    /// Launches whose kernel did not end by itself.
    pub stuck_kernels: u64,
    /// Raised epochs that kernels did not see.
    pub failing_resets: u64,
}

/// One kind of fault with its random generator.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    share: f64,
    rng: Rng,
    count: u64,
}

impl Chance {
    /// A fault with this probability. `seed` is the seed of the run, `which` the number of the
    /// kind.
    pub(crate) fn new(share: f64, seed: u64, which: u64) -> Chance {
        // Mixed, so that neighbouring seeds are unrelated.
        Chance {
            share,
            rng: Rng::new(Rng::new(seed.wrapping_mul(FAULTS.len() as u64).wrapping_add(which)).next_u64()),
            count: 0,
        }
    }

    /// Whether the fault happens this time.
    pub(crate) fn happens(&mut self) -> bool {
        // A probability of 0 draws no random number.
        let happens = self.share > 0.0 && (self.rng.next_u64() >> 11) as f64 / ((1_u64 << 53) as f64) < self.share;
        self.count += u64::from(happens);
        happens
    }

    /// A random number below a bound, for example the time at which the fault happens.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// How often the fault happened.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

/// The faults of the device.
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

/// The faults outside of the device.
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

    /// All faults injected so far, including those of the device.
    pub(crate) fn counts(&self, device: &DeviceFaults) -> FaultCounts {
        FaultCounts {
            late_completions: device.late_completions.count(),
            lost_wakeups: self.lost_wakeups.count(),
            dead_clients: self.dead_clients.count(),
            stuck_kernels: device.stuck_kernels.count(),
            failing_resets: device.failing_resets.count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_happens_at_its_rate() {
        let count = |share: f64| {
            let mut chance = Chance::new(share, 7, 2);
            (0..10_000).filter(|_| chance.happens()).count() as u64 == chance.count()
                && chance.count().abs_diff((share * 1e4) as u64) < 300
        };
        assert!([0.0, 0.01, 0.5, 1.0].into_iter().all(count));
    }
}
