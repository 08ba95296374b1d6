//! Samples of cases, for runs that are not full.
//!
//! A full run takes all cases. Other runs take a few of each group: of each kernel, instruction or
//! family of models. `ATOLL_SEED` draws them, 1 if it is not set. A test prints the size of its
//! sample with the seed; the same seed draws the same sample.

use crate::{full, seed};
use atoll_core::rng::Rng;
use std::collections::BTreeMap;

/// Up to `of_each` cases of each group, and at least one, in their order; all cases in a full run.
/// Tests with different names draw different samples of the same cases.
pub fn sample<T, G: Ord>(test: &str, cases: Vec<T>, of_each: usize, group: impl Fn(&T) -> G) -> Vec<T> {
    take(test, cases, |cases, random| draw(cases, of_each, group, random))
}

/// One case of each of some groups, one group in `one_in`; all cases in a full run.
pub fn sample_groups<T, G: Ord>(test: &str, cases: Vec<T>, one_in: usize, group: impl Fn(&T) -> G) -> Vec<T> {
    take(test, cases, |cases, random| draw_groups(cases, one_in, group, random))
}

#[expect(clippy::print_stderr, reason = "what a test leaves out must be seen")]
fn take<T>(test: &str, cases: Vec<T>, draw: impl FnOnce(Vec<T>, &mut Rng) -> Vec<T>) -> Vec<T> {
    if full() {
        return cases;
    }
    let all = cases.len();
    let seed_of_test = test.bytes().fold(seed(), |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let drawn = draw(cases, &mut Rng::new(seed_of_test));
    eprintln!("SAMPLE: {test}: {} of {all} cases, ATOLL_SEED={}", drawn.len(), seed());
    drawn
}

fn draw_groups<T, G: Ord>(cases: Vec<T>, one_in: usize, group: impl Fn(&T) -> G, random: &mut Rng) -> Vec<T> {
    let of_groups = draw(cases, 1, group, random).into_iter().enumerate().collect();
    let of_some = draw(of_groups, 1, |(number, _)| number / one_in.max(1), random);
    of_some.into_iter().map(|(_, case)| case).collect()
}

fn draw<T, G: Ord>(cases: Vec<T>, of_each: usize, group: impl Fn(&T) -> G, random: &mut Rng) -> Vec<T> {
    let mut groups: BTreeMap<G, Vec<usize>> = BTreeMap::new();
    for (index, case) in cases.iter().enumerate() {
        groups.entry(group(case)).or_default().push(index);
    }
    let mut is_drawn = vec![false; cases.len()];
    for members in groups.values_mut() {
        for _ in 0..of_each.clamp(1, members.len()) {
            let at = random.below(members.len() as u64) as usize;
            is_drawn[members.swap_remove(at)] = true;
        }
    }
    cases.into_iter().zip(is_drawn).filter_map(|(case, is_drawn)| is_drawn.then_some(case)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws numbers below `count`, grouped by their last digit.
    fn digits(count: u32, of_each: usize, seed: u64) -> Vec<u32> {
        draw((0..count).collect(), of_each, |number| number % 10, &mut Rng::new(seed))
    }

    #[test]
    fn each_group_is_drawn_from_and_cases_keep_their_order() {
        for seed in 0..20 {
            let drawn = digits(95, 3, seed);
            assert!(drawn.is_sorted() && drawn.len() == 30, "{drawn:?}");
            for digit in 0..10 {
                assert_eq!(drawn.iter().filter(|number| *number % 10 == digit).count(), 3, "{digit} in {drawn:?}");
            }
        }
        assert_eq!(digits(95, 0, 1).len(), 10, "at least one of each group");
        assert_eq!(digits(7, 3, 1), [0, 1, 2, 3, 4, 5, 6], "a small group is taken as a whole");
        assert_eq!(digits(0, 3, 1), [0; 0]);
    }

    #[test]
    fn one_case_of_some_groups_is_drawn() {
        for seed in 0..20 {
            let drawn = draw_groups((0..95).collect(), 3, |number| number % 10, &mut Rng::new(seed));
            let mut groups: Vec<u32> = drawn.iter().map(|number| number % 10).collect();
            groups.sort_unstable();
            groups.dedup();
            assert_eq!((drawn.len(), groups.len()), (4, 4), "{drawn:?}");
        }
    }

    #[test]
    fn a_seed_repeats_its_sample_and_seeds_together_take_every_case() {
        assert_eq!(digits(95, 1, 5), digits(95, 1, 5));
        let mut together: Vec<u32> = (0..200).flat_map(|seed| digits(95, 1, seed)).collect();
        together.sort_unstable();
        together.dedup();
        assert_eq!(together.len(), 95);
    }
}
