//! An offline policy that knows all future requests, and a lower bound.

use super::simulation::arrival;
use atoll_core::Nanos;
use atoll_core::residency::{ItemFacts, ItemId, ResidencyPolicy};
use atoll_models::mixes::Mix;
use std::collections::{BTreeMap, BTreeSet};

/// Belady's rule with sizes and costs: evicts the candidate that occupies the most memory time
/// until its next use, relative to its reload cost. This is not the optimum, which is hard to
/// compute for items of different sizes; [`least_reload_us`] bounds that from below.
pub(super) struct Offline {
    /// Future uses of each item, the next one last; past uses are removed.
    uses: BTreeMap<ItemId, Vec<Nanos>>,
    facts: BTreeMap<ItemId, ItemFacts>,
    candidates: BTreeSet<ItemId>,
}

impl Offline {
    pub(super) fn new(mix: &Mix) -> Offline {
        let mut uses: BTreeMap<ItemId, Vec<Nanos>> = BTreeMap::new();
        for request in mix.requests.iter().rev() {
            for &function in &request.functions {
                uses.entry(ItemId(function as u64)).or_default().push(arrival(request));
            }
        }
        Offline { uses, facts: BTreeMap::new(), candidates: BTreeSet::new() }
    }

    /// Reload time saved per byte and time until the next use; 0 if there is no further use.
    fn value(&self, now: Nanos, item: ItemId) -> f64 {
        let Some(next) = self.uses[&item].last() else { return 0.0 };
        let facts = &self.facts[&item];
        facts.reload_ns as f64 / facts.bytes as f64 / (next.0.saturating_sub(now.0) + 1) as f64
    }
}

impl ResidencyPolicy for Offline {
    fn admit(&mut self, _now: Nanos, item: ItemId, facts: &ItemFacts) {
        self.facts.insert(item, *facts);
    }

    fn used(&mut self, _now: Nanos, item: ItemId) {
        self.uses.get_mut(&item).expect("every use is in the list").pop();
    }

    fn exclude(&mut self, item: ItemId) {
        self.candidates.remove(&item);
    }

    fn include(&mut self, item: ItemId) {
        self.candidates.insert(item);
    }

    fn victim(&mut self, now: Nanos, is_candidate: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let mut candidates = self.candidates.iter().copied().filter(|&item| is_candidate(item));
        let victim = self.least_of(now, &mut candidates)?;
        self.candidates.remove(&victim);
        Some(victim)
    }

    fn least_of(&self, now: Nanos, items: &mut dyn Iterator<Item = ItemId>) -> Option<ItemId> {
        let worth = |item: &ItemId| self.value(now, *item);
        items.filter(|item| self.candidates.contains(item)).min_by(|a, b| worth(a).total_cmp(&worth(b)))
    }

    fn removed(&mut self, item: ItemId) {
        self.candidates.remove(&item);
    }

    fn forget(&mut self, _item: ItemId) {}
}

/// A lower bound of the reload time of any policy. Keeping an item between two uses saves one
/// reload, and costs its bytes for the number of requests in between. The total cost of everything
/// kept is at most the device's memory times the number of requests. Taking the best savings first,
/// with fractional items, gives the largest possible saving within that limit (a fractional
/// knapsack).
pub(super) fn least_reload_us(mix: &Mix) -> u64 {
    let mut last = vec![None; mix.functions.len()];
    let mut keeps: Vec<(u64, f64)> = Vec::new();
    let mut all_us = 0;
    for (now, request) in mix.requests.iter().enumerate() {
        for &index in &request.functions {
            let function = &mix.functions[index];
            all_us += function.reload_us;
            if let Some(before) = last[index].replace(now) {
                // During the two requests themselves it is on the device in any case.
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
