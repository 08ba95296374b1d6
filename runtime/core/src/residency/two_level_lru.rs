//! Two LRU lists, as in KaaS: the baseline for `cost`.

use super::{ItemFacts, ItemId, ResidencyPolicy};
use crate::ids::Nanos;
use std::collections::{BTreeMap, HashMap};

/// Items with more uses than this are protected. As in KaaS, use counts survive a reclaim.
const PROTECTED_ABOVE: u64 = 2;

/// Items that were used more than twice are protected: none of them is reclaimed while an
/// unprotected item is left. Within each list the least recently released item goes first.
///
/// KaaS counts a use when it releases a buffer; here uses are counted earlier. The result is the
/// same, since an item is no candidate in between.
#[derive(Default)]
pub(super) struct TwoLevelLru {
    uses: HashMap<ItemId, u64>,
    /// Candidates by list and age; unprotected ones come first.
    order: BTreeMap<Place, ItemId>,
    places: HashMap<ItemId, Place>,
    releases: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    protected: bool,
    released: u64,
}

impl ResidencyPolicy for TwoLevelLru {
    fn admit(&mut self, _now: Nanos, item: ItemId, _facts: &ItemFacts) {
        self.uses.entry(item).or_default();
    }

    fn used(&mut self, _now: Nanos, item: ItemId) {
        *self.uses.entry(item).or_default() += 1;
        if self.places.contains_key(&item) {
            self.exclude(item);
            self.include(item);
        }
    }

    fn exclude(&mut self, item: ItemId) {
        if let Some(place) = self.places.remove(&item) {
            self.order.remove(&place);
        }
    }

    fn include(&mut self, item: ItemId) {
        self.releases += 1;
        let place = Place { protected: self.uses[&item] > PROTECTED_ABOVE, released: self.releases };
        self.order.insert(place, item);
        self.places.insert(item, place);
    }

    fn victim(&mut self, _now: Nanos, is_candidate: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let victim = self.order.values().copied().find(|&item| is_candidate(item))?;
        self.exclude(victim);
        Some(victim)
    }

    fn least_of(&self, _now: Nanos, items: &mut dyn Iterator<Item = ItemId>) -> Option<ItemId> {
        let candidates = items.filter_map(|item| Some((self.places.get(&item)?, item)));
        candidates.min().map(|(_, item)| item)
    }

    fn removed(&mut self, item: ItemId) {
        self.exclude(item);
    }

    fn forget(&mut self, item: ItemId) {
        self.uses.remove(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Class;

    #[test]
    fn items_used_more_than_twice_are_reclaimed_last() {
        let mut lru = TwoLevelLru::default();
        let facts = ItemFacts { bytes: 1, reload_ns: 1, class: Class::BestEffort };
        for item in [1, 2, 3, 4].map(ItemId) {
            lru.admit(Nanos(0), item, &facts);
            for _ in 0..[0, 3, 2, 3, 1][item.0 as usize] {
                lru.used(Nanos(0), item);
            }
            lru.include(item);
        }
        lru.used(Nanos(1), ItemId(2));
        let order: Vec<u64> = std::iter::from_fn(|| lru.victim(Nanos(2), &|_| true)).map(|item| item.0).collect();
        assert_eq!(order, [4, 1, 3, 2], "item 2 has reached its third use and is the last one used");
    }

    #[test]
    fn uses_are_remembered_until_an_item_is_forgotten() {
        let mut lru = TwoLevelLru::default();
        let facts = ItemFacts { bytes: 1, reload_ns: 1, class: Class::BestEffort };
        for item in [1, 1, 1].map(ItemId) {
            lru.admit(Nanos(0), item, &facts);
            lru.used(Nanos(0), item);
            lru.removed(item);
        }
        let victims = |lru: &mut TwoLevelLru| {
            for item in [1, 2].map(ItemId) {
                lru.admit(Nanos(0), item, &facts);
                lru.include(item);
            }
            std::iter::from_fn(|| lru.victim(Nanos(0), &|_| true)).map(|item| item.0).collect::<Vec<_>>()
        };
        assert_eq!(victims(&mut lru), [2, 1], "item 1 was used three times");
        lru.forget(ItemId(1));
        assert_eq!(victims(&mut lru), [1, 2]);
    }
}
