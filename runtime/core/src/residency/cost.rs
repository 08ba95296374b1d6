//! Reclaim by cost: the victim is the item that is cheapest to reload, per byte, considering how
//! long it is likely to stay unused.
//!
//! Vocabulary: *time* counts uses of all items, so that results do not depend on the request rate.
//! The *gap* of an item is the time between two of its uses. Its *saving* is its reload time per
//! byte, weighted by class. The *worth* of an item is its saving divided by the expected time to
//! its next use:
//!
//! - For random use, that time is the inverse of the item's rate, and the age of the last use by
//!   itself says nothing. The rate is the mean of three use counts with different half-lives: the
//!   short one follows bursts, the long one long-term popularity. Each half-life by itself gave
//!   worse results on at least one of the recorded mixes.
//! - For regular use, in a loop or with a period, the next use is due one gap after the last one.
//!   An item that was just used is then not needed for long: the opposite of recency. The deviation
//!   of the gaps from their mean decides how much of each case applies.
//!
//! The order by worth changes with time, so no sorted order is kept. A victim is the least worthy
//! of a sample of the candidates, so that choosing one does not slow down with their number. A few
//! candidates are all compared.

use super::{ItemFacts, ItemId, ResidencyPolicy};
use crate::ids::{Class, Nanos};
use crate::rng::Rng;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Candidates that are compared for one victim. Beyond some dozens the least worthy of a sample is
/// hardly worth more than the least worthy of all.
const SAMPLE: usize = 64;
/// Half-lives of the three use counts, in uses.
const HALF_LIVES: [f64; 3] = [8.0, 64.0, 1024.0];
/// Draws for one sample; some draw items that are not candidates of this reclaim.
const DRAWS: usize = 4 * SAMPLE;
/// Weight of a new gap in the mean and the deviation.
const GAP_GAIN: f64 = 0.1;
/// From this ratio of deviation to mean on, gaps count as random.
const IRREGULAR: f64 = 0.5;
/// Weight of the reload time of items that real-time invocations use.
const RT_WEIGHT: f64 = 4.0;

/// The policy `cost`; see the module's description.
pub(super) struct Cost {
    items: HashMap<ItemId, Item, FixedState>,
    candidates: Vec<ItemId>,
    /// Uses of all items so far.
    now: f64,
    rng: Rng,
}

#[derive(Default)]
struct Item {
    saving: f64,
    /// Index in `candidates`.
    place: Option<usize>,
    last_use: f64,
    /// Use counts at the time of the last use, one per half-life.
    uses: [f64; HALF_LIVES.len()],
    gap: Option<Gap>,
}

#[derive(Clone, Copy)]
struct Gap {
    mean: f64,
    deviation: f64,
}

impl Gap {
    fn first(length: f64) -> Gap {
        // The deviation is unknown after one gap; count it as random.
        Gap { mean: length, deviation: length }
    }

    fn next(self, length: f64) -> Gap {
        let deviation = self.deviation + GAP_GAIN * ((length - self.mean).abs() - self.deviation);
        Gap { mean: self.mean + GAP_GAIN * (length - self.mean), deviation }
    }

    /// 1 for strictly periodic use, 0 for random use.
    fn regularity(self) -> f64 {
        (1.0 - self.deviation / (IRREGULAR * self.mean)).max(0.0)
    }

    /// Expected time to the next use of a regularly used item whose last use was `age` ago. If it
    /// is overdue, its period may have ended: the longer overdue, the later it is expected.
    fn left(self, age: f64) -> f64 {
        let late = self.mean + 2.0 * self.deviation + 1.0;
        if age <= late { (self.mean - age).max(0.0) + self.deviation + 1.0 } else { age }
    }
}

impl Item {
    fn note_use(&mut self, now: f64) {
        let length = now - self.last_use;
        if self.uses[0] > 0.0 {
            self.gap = Some(self.gap.map_or(Gap::first(length), |gap| gap.next(length)));
        }
        self.uses = self.uses_at(now).map(|count| count + 1.0);
        self.last_use = now;
    }

    fn uses_at(&self, now: f64) -> [f64; HALF_LIVES.len()] {
        let age = now - self.last_use;
        std::array::from_fn(|i| self.uses[i] * (-age / HALF_LIVES[i]).exp2())
    }

    fn worth(&self, now: f64) -> f64 {
        // At a rate r the count converges to r × half-life / ln 2.
        let rates = self
            .uses_at(now)
            .iter()
            .zip(HALF_LIVES)
            .map(|(count, half_life)| count * std::f64::consts::LN_2 / half_life)
            .sum::<f64>();
        let rate = rates / HALF_LIVES.len() as f64;
        let Some(gap) = self.gap else { return self.saving * rate };
        let regularity = gap.regularity();
        let left = regularity * gap.left(now - self.last_use) + (1.0 - regularity) / rate;
        self.saving / left
    }
}

impl Default for Cost {
    fn default() -> Cost {
        Cost { items: HashMap::default(), candidates: Vec::new(), now: 0.0, rng: Rng::new(0) }
    }
}

impl Cost {
    fn item(&mut self, item: ItemId) -> &mut Item {
        self.items.get_mut(&item).expect("an item that was admitted is known until it is forgotten")
    }

    /// The least worthy of a sample of the candidates that pass `is_candidate`; ties go to the
    /// lowest id, to be deterministic.
    fn least(&mut self, is_candidate: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let all = self.candidates.iter().copied().filter(|&item| is_candidate(item));
        if self.candidates.len() <= SAMPLE {
            return self.least_worthy(all);
        }
        let count = self.candidates.len() as u64;
        let (candidates, rng) = (&self.candidates, &mut self.rng);
        let drawn = (0..DRAWS).map(|_| candidates[rng.below(count) as usize]);
        let sample: Vec<ItemId> = drawn.filter(|&item| is_candidate(item)).take(SAMPLE).collect();
        if sample.is_empty() { self.least_worthy(all) } else { self.least_worthy(sample.into_iter()) }
    }

    /// The least worthy of the items that are candidates.
    fn least_worthy(&self, items: impl Iterator<Item = ItemId>) -> Option<ItemId> {
        let candidates =
            items.filter_map(|id| Some((self.items.get(&id)?, id))).filter(|(item, _)| item.place.is_some());
        let ranked = candidates.map(|(item, id)| (item.worth(self.now), id));
        ranked.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, item)| item)
    }
}

impl ResidencyPolicy for Cost {
    fn admit(&mut self, _now: Nanos, item: ItemId, facts: &ItemFacts) {
        let weight = match facts.class {
            Class::RealTime => RT_WEIGHT,
            Class::BestEffort => 1.0,
        };
        self.items.entry(item).or_default().saving = weight * facts.reload_ns.max(1) as f64 / facts.bytes.max(1) as f64;
    }

    fn used(&mut self, _now: Nanos, item: ItemId) {
        self.now += 1.0;
        let now = self.now;
        self.item(item).note_use(now);
    }

    fn exclude(&mut self, item: ItemId) {
        let Some(place) = self.item(item).place.take() else { return };
        self.candidates.swap_remove(place);
        if let Some(&moved) = self.candidates.get(place) {
            self.item(moved).place = Some(place);
        }
    }

    fn include(&mut self, item: ItemId) {
        self.item(item).place = Some(self.candidates.len());
        self.candidates.push(item);
    }

    fn victim(&mut self, _now: Nanos, is_candidate: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let victim = self.least(is_candidate)?;
        self.exclude(victim);
        Some(victim)
    }

    fn least_of(&self, _now: Nanos, items: &mut dyn Iterator<Item = ItemId>) -> Option<ItemId> {
        self.least_worthy(items)
    }

    fn removed(&mut self, item: ItemId) {
        self.exclude(item);
    }

    fn forget(&mut self, item: ItemId) {
        self.items.remove(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which items of the given bytes, reload times and classes are reclaimed after
    /// the given uses.
    fn victims(items: &[(u64, u64, Class)], uses: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut cost = Cost::default();
        for (id, &(bytes, reload_ns, class)) in items.iter().enumerate() {
            cost.admit(Nanos(0), ItemId(id as u64), &ItemFacts { bytes, reload_ns, class });
            cost.include(ItemId(id as u64));
        }
        uses.into_iter().for_each(|item| cost.used(Nanos(0), ItemId(item)));
        std::iter::from_fn(|| cost.victim(Nanos(0), &|_| true)).map(|item| item.0).collect()
    }

    const PLAIN: (u64, u64, Class) = (1000, 1000, Class::BestEffort);

    #[test]
    fn reload_time_per_byte_and_class_decide_between_equals() {
        let items =
            [PLAIN, (2000, 1000, Class::BestEffort), (1000, 5000, Class::BestEffort), (1000, 1000, Class::RealTime)];
        assert_eq!(victims(&items, [0, 1, 2, 3]), [1, 0, 3, 2]);
    }

    #[test]
    fn in_a_loop_the_one_just_used_goes_first() {
        let uses = (0..200).map(|i| i % 4);
        assert_eq!(victims(&[PLAIN; 4], uses), [3, 2, 1, 0]);
    }

    #[test]
    fn long_popular_items_outlast_items_used_twice() {
        let mut rng = Rng::new(1);
        let popular = (0..300).map(|_| rng.below(2));
        assert_eq!(victims(&[PLAIN; 4], popular.chain([2, 3, 2, 3]))[..2], [2, 3]);
    }

    #[test]
    fn many_candidates_are_sampled_and_all_go_once() {
        let mut order = victims(&[PLAIN; 1000], 0..1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
