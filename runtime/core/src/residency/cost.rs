//! Eviction by cost: what goes is what would cost least to bring back, per byte, for the time until
//! it is likely to be used again.
//!
//! Vocabulary: *time* counts uses, of whatever item, so that nothing depends on how fast requests
//! come; the *gap* of an item is the time from one use to the next; its *saving* is its reload time
//! per byte, weighted by class. The worth of an item is its saving divided by the gap that is
//! expected to be left:
//!
//! - For what is used at random, the expected gap is one over its rate, and how long ago the last
//!   use was says nothing by itself. The rate is a mean of three counts of uses that decay at
//!   different speeds: the quick one follows bursts, the slow one knows what is popular in the long
//!   run. Any single speed lost on one of the recorded mixes.
//! - What is used regularly, in a loop or at a period, is next due one gap after its last use: just
//!   used means not needed for long, the very opposite of what recency says. How far gaps differ
//!   from their mean says how much of each applies.
//!
//! That worth is no fixed order, it changes with time. So a victim is the least worthy of a sample
//! of the candidates, which for as many functions as one device serves is all of them, and every
//! event takes constant time.

use super::{ItemFacts, ItemId, ResidencyPolicy};
use crate::ids::{Class, Nanos};
use crate::rng::Rng;
use std::collections::HashMap;

/// Candidates that are compared for one victim. Beyond some dozens the least of a sample is hardly
/// worth more than the least of all.
const SAMPLE: usize = 64;
/// Uses after which a use counts half, for each of the counts.
const HALF_LIVES: [f64; 3] = [8.0, 64.0, 1024.0];
/// Candidates that are drawn for a sample where not all of them may go.
const DRAWS: usize = 4 * SAMPLE;
/// How much of the gap's mean and deviation one more gap makes up.
const GAP_GAIN: f64 = 0.1;
/// Gaps that deviate by this part of their mean, or more, are taken to be random.
const IRREGULAR: f64 = 0.5;
/// A real-time request that waits for a reload hurts so many times as much.
const RT_WEIGHT: f64 = 4.0;

/// See the page above.
pub(super) struct Cost {
    items: HashMap<ItemId, Item>,
    candidates: Vec<ItemId>,
    /// Uses so far.
    now: f64,
    rng: Rng,
}

#[derive(Default)]
struct Item {
    saving: f64,
    /// Place among the candidates.
    place: Option<usize>,
    last_use: f64,
    /// Counts of uses as of the last one, one per half-life.
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
        // Nothing is known of how regular it is.
        Gap { mean: length, deviation: length }
    }

    fn next(self, length: f64) -> Gap {
        let deviation = self.deviation + GAP_GAIN * ((length - self.mean).abs() - self.deviation);
        Gap { mean: self.mean + GAP_GAIN * (length - self.mean), deviation }
    }

    /// 1 for a clockwork, 0 for what comes at random.
    fn regularity(self) -> f64 {
        (1.0 - self.deviation / (IRREGULAR * self.mean)).max(0.0)
    }

    /// Time until a regular use that was last seen `age` ago. What is overdue may have ended: it is
    /// expected ever later.
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
        // A count that is fed at a rate r comes to r × half-life / ln 2.
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
        Cost { items: HashMap::new(), candidates: Vec::new(), now: 0.0, rng: Rng::new(0) }
    }
}

impl Cost {
    fn item(&mut self, item: ItemId) -> &mut Item {
        self.items.get_mut(&item).expect("what came to the device is known until it is forgotten")
    }

    /// The least worthy of a sample of those that may go; of equal ones the lowest id, since a
    /// map's order is not the same twice.
    fn least(&mut self, may_go: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let all = self.candidates.iter().copied().filter(|&item| may_go(item));
        if self.candidates.len() <= SAMPLE {
            return self.least_worthy(all);
        }
        let count = self.candidates.len() as u64;
        let (candidates, rng) = (&self.candidates, &mut self.rng);
        let drawn = (0..DRAWS).map(|_| candidates[rng.below(count) as usize]);
        let sample: Vec<ItemId> = drawn.filter(|&item| may_go(item)).take(SAMPLE).collect();
        if sample.is_empty() { self.least_worthy(all) } else { self.least_worthy(sample.into_iter()) }
    }

    fn least_worthy(&self, items: impl Iterator<Item = ItemId>) -> Option<ItemId> {
        let ranked = items.map(|item| (self.items[&item].worth(self.now), item));
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

    fn hold(&mut self, item: ItemId) {
        let Some(place) = self.item(item).place.take() else { return };
        self.candidates.swap_remove(place);
        if let Some(&moved) = self.candidates.get(place) {
            self.item(moved).place = Some(place);
        }
    }

    fn release(&mut self, item: ItemId) {
        self.item(item).place = Some(self.candidates.len());
        self.candidates.push(item);
    }

    fn victim(&mut self, _now: Nanos, may_go: &dyn Fn(ItemId) -> bool) -> Option<ItemId> {
        let victim = self.least(may_go)?;
        self.hold(victim);
        Some(victim)
    }

    fn least_of(&self, _now: Nanos, candidates: &[ItemId]) -> Option<ItemId> {
        self.least_worthy(candidates.iter().copied())
    }

    fn leave(&mut self, item: ItemId) {
        self.hold(item);
    }

    fn forget(&mut self, item: ItemId) {
        self.items.remove(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items of these bytes, reload times and classes, then these uses; who goes, in order.
    fn victims(items: &[(u64, u64, Class)], uses: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut cost = Cost::default();
        for (id, &(bytes, reload_ns, class)) in items.iter().enumerate() {
            cost.admit(Nanos(0), ItemId(id as u64), &ItemFacts { bytes, reload_ns, class });
            cost.release(ItemId(id as u64));
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
    fn what_was_popular_for_long_outlasts_what_was_seen_twice() {
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
