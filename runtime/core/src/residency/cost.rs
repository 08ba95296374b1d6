//! Eviction by cost: what would be missed least, per byte.

use super::{ItemFacts, ItemId, ResidencyPolicy};
use crate::ids::{Class, Nanos};
use std::collections::{BTreeMap, HashMap};

/// Time in which a use loses half of its weight.
const HALF_LIFE_NS: f64 = 60e9;
/// Waiting for a reload hurts a real-time function so many times as much.
const RT_WEIGHT: f64 = 4.0;

/// The value of an item is its rate of use × its reload time × the weight of its class, per byte. The rate is a count of uses in which every use loses half of
/// its weight per half-life; since all counts decay alike, their order changes with uses alone, and candidates stand in an ordered map: O(log n) per event.
#[derive(Default)]
pub(super) struct Cost {
    items: HashMap<ItemId, Item>,
    /// Candidates, the least valuable first.
    order: BTreeMap<Rank, ItemId>,
}

#[derive(Clone, Copy, Default)]
struct Item {
    /// Log₂ of the decayed count of uses, as it would stand at time 0.
    uses: f64,
    /// Log₂ of what a use saves, per byte.
    saving: f64,
    /// Its place in the order, if it is a candidate.
    rank: Option<Rank>,
}

/// Log₂ of an item's value, made an integer whose order is total; the id makes it unique.
type Rank = (i64, ItemId);

impl Cost {
    fn unrank(&mut self, item: ItemId) -> bool {
        let rank = self.items.get_mut(&item).and_then(|known| known.rank.take());
        rank.is_some_and(|rank| self.order.remove(&rank).is_some())
    }
}

impl ResidencyPolicy for Cost {
    fn admit(&mut self, now: Nanos, item: ItemId, facts: &ItemFacts) {
        let weight = match facts.class {
            Class::RealTime => RT_WEIGHT,
            Class::BestEffort => 1.0,
        };
        let known = self.items.entry(item).or_insert_with(|| Item { uses: now.0 as f64 / HALF_LIFE_NS, ..Item::default() });
        known.saving = (weight * facts.reload_ns.max(1) as f64 / facts.bytes.max(1) as f64).log2();
    }

    fn used(&mut self, now: Nanos, item: ItemId) {
        let Some(known) = self.items.get_mut(&item) else { return };
        let now = now.0 as f64 / HALF_LIFE_NS;
        known.uses = now + ((known.uses - now).exp2() + 1.0).log2();
        if self.unrank(item) {
            self.release(item);
        }
    }

    fn hold(&mut self, item: ItemId) {
        self.unrank(item);
    }

    fn release(&mut self, item: ItemId) {
        let Some(known) = self.items.get_mut(&item) else { return };
        let rank = (((known.uses + known.saving) * 1e6) as i64, item);
        known.rank = Some(rank);
        self.order.insert(rank, item);
    }

    fn victim(&mut self, _now: Nanos) -> Option<ItemId> {
        let (_, item) = self.order.pop_first()?;
        self.items.get_mut(&item)?.rank = None;
        Some(item)
    }

    fn leave(&mut self, item: ItemId) {
        self.unrank(item);
    }

    fn forget(&mut self, item: ItemId) {
        self.items.remove(&item);
    }
}
