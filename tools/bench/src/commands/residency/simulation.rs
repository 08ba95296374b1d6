//! Simulates a device with a residency policy on a mix of requests.

use atoll_core::residency::{ItemFacts, ItemId, Residency, ResidencyPolicy};
use atoll_core::{Class, Nanos};
use atoll_models::mixes::{Mix, MixFunction, MixRequest};

/// Result of a policy on a mix.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Uses of functions, and hits: uses that found the function on the device.
    pub(super) uses: u64,
    pub(super) hits: u64,
    /// Bytes of all uses, and of the hits.
    pub(super) bytes: u64,
    pub(super) hit_bytes: u64,
    /// Total time of reloads, and the part of it that was for real-time functions.
    pub(super) reload_us: u64,
    pub(super) rt_reload_us: u64,
}

/// Runs a mix. All functions of a request are on the device together, and one request runs at a
/// time, as in KaaS. Time is that of the arrivals, so that all policies see the same requests.
pub(super) fn simulate(mix: &Mix, policy: Box<dyn ResidencyPolicy>) -> Outcome {
    let mut device = Device { mix, residency: Residency::new(policy), outcome: Outcome::default() };
    mix.requests.iter().for_each(|request| device.serve(request));
    device.outcome
}

/// Arrival time of a request.
pub(super) fn arrival(request: &MixRequest) -> Nanos {
    Nanos(request.at_ms * 1_000_000)
}

struct Device<'a> {
    mix: &'a Mix,
    residency: Residency,
    outcome: Outcome,
}

impl Device<'_> {
    fn serve(&mut self, request: &MixRequest) {
        let now = arrival(request);
        let (there, missing): (Vec<usize>, Vec<usize>) =
            request.functions.iter().partition(|&&function| self.residency.contains(ItemId(function as u64)));
        there.iter().for_each(|&function| self.residency.pin(ItemId(function as u64)));
        let free_bytes = self.mix.memory_bytes - self.residency.resident_bytes();
        let missing_bytes: u64 = missing.iter().map(|&function| self.mix.functions[function].bytes).sum();
        self.residency.reclaim(now, missing_bytes.saturating_sub(free_bytes)).expect("a request fits on the device");
        for &function in &missing {
            self.residency.add(now, ItemId(function as u64), &facts(&self.mix.functions[function]));
            self.residency.pin(ItemId(function as u64));
        }
        for &function in &request.functions {
            self.residency.used(now, ItemId(function as u64));
            self.residency.unpin(ItemId(function as u64));
            self.count(function, there.contains(&function));
        }
    }

    fn count(&mut self, function: usize, hit: bool) {
        let (outcome, function) = (&mut self.outcome, &self.mix.functions[function]);
        outcome.uses += 1;
        outcome.bytes += function.bytes;
        if hit {
            outcome.hits += 1;
            outcome.hit_bytes += function.bytes;
            return;
        }
        outcome.reload_us += function.reload_us;
        if function.real_time {
            outcome.rt_reload_us += function.reload_us;
        }
    }
}

fn facts(function: &MixFunction) -> ItemFacts {
    let class = if function.real_time { Class::RealTime } else { Class::BestEffort };
    ItemFacts { bytes: function.bytes, reload_ns: function.reload_us * 1000, class }
}
