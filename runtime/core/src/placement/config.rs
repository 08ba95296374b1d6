//! Options of a pool.

use super::policies::PlacementEntry;
use crate::ids::Nanos;

/// Configuration of a [`Pool`](super::Pool).
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// The policy.
    pub policy: &'static PlacementEntry,
    /// Largest number of waiting requests; more are rejected.
    pub waiting_max: usize,
    /// How often a request is dispatched at most.
    pub attempts_max: u32,
    /// Options of the policies.
    pub options: PoolOptions,
}

impl PoolConfig {
    /// A policy with the default options.
    pub fn new(policy: &'static PlacementEntry) -> PoolConfig {
        PoolConfig { policy, waiting_max: 1 << 20, attempts_max: 3, options: PoolOptions::default() }
    }
}

/// Options of the policies, which are named in parentheses. Each policy reads its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Seed of random decisions (`mlfqs`).
    pub seed: u64,
    /// Which future requests are considered in decisions (`srtf`, `mlfqs`).
    pub visibility: Visibility,
    /// How a bucket is drawn (`mlfqs`).
    pub buckets: BucketWeights,
    /// When a group takes a device from another (`exclusive`).
    pub steal: Steal,
    /// How much waiting time counts (`cost`).
    pub ageing: Ageing,
}

/// Which requests a policy sees. Only simulations know future requests; the caller announces them
/// with arrivals in the future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Requests that have arrived.
    #[default]
    Online,
    /// Also requests that arrive within this time.
    LookAhead(Nanos),
    /// All requests from the start.
    Preloaded,
}

/// How often `mlfqs` serves each bucket of requests of equal expected duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketWeights {
    /// All equally often.
    #[default]
    Uniform,
    /// In proportion to the inverse of the duration.
    InverseDuration,
}

/// When `exclusive` moves an idle device from one group to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steal {
    /// What is compared.
    pub measure: StealMeasure,
    /// A device moves if the taker's measure is more than this percentage of the donor's.
    pub percent: u32,
    /// A moved device stays with its new group for at least this time.
    pub hysteresis: Nanos,
}

impl Default for Steal {
    /// The rule of the thesis (§6.1), without hysteresis.
    fn default() -> Steal {
        Steal { measure: StealMeasure::Depth, percent: 150, hysteresis: Nanos(0) }
    }
}

/// The measure of a group's need that [`Steal`] compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StealMeasure {
    /// Devices are never moved.
    Never,
    /// Requests waiting.
    #[default]
    Depth,
    /// Arrival rate × expected service time, per device of the group.
    Rate,
}

/// How much waiting time counts for `cost`: a request becomes more urgent while it waits. A request
/// with a cost of `c` ns is overtaken by cheaper ones only if they arrive within
/// `c × 1000 / per_mille` ns after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ageing {
    /// Thousandths of a nanosecond of cost for each nanosecond of waiting. 0 counts as 1.
    pub per_mille: u32,
}

impl Default for Ageing {
    fn default() -> Ageing {
        Ageing { per_mille: 20 }
    }
}
