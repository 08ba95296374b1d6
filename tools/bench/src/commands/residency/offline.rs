//! What a policy could reach that knows the future.

use super::simulation::arrival;
use atoll_core::Nanos;
use atoll_core::residency::{ItemFacts, ItemId, ResidencyPolicy};
use atoll_models::mixes::Mix;
use std::collections::{BTreeMap, BTreeSet};

/// Belady's rule with sizes and costs: the candidate goes whose memory time until its next use is
/// dearest for what a reload costs. It can be reached, but it is not the optimum, which is hard to
/// compute when sizes differ; [`least_reload_us`] bounds that from below.
pub(super) struct Foreknowing {
    /// When each item is used, latest first; what has passed is taken off.
    uses: BTreeMap<ItemId, Vec<Nanos>>,
    facts: BTreeMap<ItemId, ItemFacts>,
    candidates: BTreeSet<ItemId>,
}

impl Foreknowing {
    pub(super) fn new(mix: &Mix) -> Foreknowing {
        let mut uses: BTreeMap<ItemId, Vec<Nanos>> = BTreeMap::new();
        for request in mix.requests.iter().rev() {
            for &function in &request.functions {
                uses.entry(ItemId(function as u64)).or_default().push(arrival(request));
            }
        }
        Foreknowing { uses, facts: BTreeMap::new(), candidates: BTreeSet::new() }
    }

    /// How much a byte's reload saves per time that it waits; 0 if it is never used again.
    fn worth(&self, now: Nanos, item: ItemId) -> f64 {
        let Some(next) = self.uses[&item].last() else { return 0.0 };
        let facts = &self.facts[&item];
        facts.reload_ns as f64 / facts.bytes as f64 / (next.0.saturating_sub(now.0) + 1) as f64
    }
}

impl ResidencyPolicy for Foreknowing {
    fn admit(&mut self, _now: Nanos, item: ItemId, facts: &ItemFacts) {
        self.facts.insert(item, *facts);
    }

    fn used(&mut self, _now: Nanos, item: ItemId) {
        self.uses.get_mut(&item).expect("a use was foreseen").pop();
    }

    fn hold(&mut self, item: ItemId) {
        self.candidates.remove(&item);
    }

    fn release(&mut self, item: ItemId) {
        self.candidates.insert(item);
    }

    fn victim(&mut self, now: Nanos, may_go: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let candidates: Vec<ItemId> = self.candidates.iter().copied().filter(|&item| may_go(item)).collect();
        let victim = self.least_of(now, &candidates)?;
        self.candidates.remove(&victim);
        Some(victim)
    }

    fn least_of(&self, now: Nanos, candidates: &[ItemId]) -> Option<ItemId> {
        let worth = |item: &ItemId| self.worth(now, *item);
        candidates.iter().copied().min_by(|a, b| worth(a).total_cmp(&worth(b)))
    }

    fn leave(&mut self, item: ItemId) {
        self.candidates.remove(&item);
    }

    fn forget(&mut self, _item: ItemId) {}
}

/// No policy needs less time for reloads than this. Keeping an item between two uses saves one
/// reload and costs its bytes for that many requests; whatever is kept, the costs cannot exceed the
/// device's memory for all requests. The most that can be saved within that sum, if items could be
/// kept in part, is found by taking the best savings first.
pub(super) fn least_reload_us(mix: &Mix) -> u64 {
    let mut last = vec![None; mix.functions.len()];
    let mut keeps: Vec<(u64, f64)> = Vec::new();
    let mut all_us = 0;
    for (now, request) in mix.requests.iter().enumerate() {
        for &index in &request.functions {
            let function = &mix.functions[index];
            all_us += function.reload_us;
            if let Some(before) = last[index].replace(now) {
                // While the two requests themselves run it is there in any case.
                keeps.push((function.reload_us, (now - before - 1) as f64 * function.bytes as f64));
            }
        }
    }
    keeps.sort_by(|a, b| (b.0 as f64 * a.1).total_cmp(&(a.0 as f64 * b.1)));
    let mut left = mix.memory_bytes as f64 * mix.requests.len() as f64;
    let mut saved_us = 0.0;
    for (reload_us, cost) in keeps {
        let part = if cost <= left { 1.0 } else { left / cost };
        saved_us += reload_us as f64 * part;
        left -= cost * part;
    }
    all_us - saved_us as u64
}
