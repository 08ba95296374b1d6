//! How many stages of a graph can run at one time.

use super::graph::Graph;
use super::limits::STAGES_MAX;

/// A set of stages is a word with one bit for each stage.
const _: () = assert!(STAGES_MAX <= 64);

impl Graph {
    /// The largest number of stages of one request that can run at the same time. Only stages for
    /// which `counts` returns true count.
    ///
    /// It is the size of the largest set of stages of which none needs another one, directly or
    /// indirectly. By Dilworth's theorem that is the number of stages minus the size of a largest
    /// matching of stages with later stages that need them.
    pub fn width(&self, counts: impl Fn(usize) -> bool) -> usize {
        // Stages are in topological order.
        let mut before: Vec<u64> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let all = stage.needs.iter().fold(0, |all, &needed| all | (1 << needed) | before[needed]);
            before.push(all);
        }
        let counted: Vec<usize> = (0..self.stages.len()).filter(|&stage| counts(stage)).collect();
        let among = counted.iter().fold(0, |all, &stage| all | (1 << stage));
        let earlier: Vec<u64> = before.into_iter().map(|stages| stages & among).collect();
        let mut pairs = Pairs { earlier, later: vec![None; self.stages.len()] };
        let paired = counted.iter().filter(|&&stage| pairs.add(stage, &mut 0)).count();
        counted.len() - paired
    }
}

/// A matching of stages with later stages, made larger by augmenting paths.
struct Pairs {
    /// For each stage the stages that have to end before it.
    earlier: Vec<u64>,
    /// For each stage the later one of its pair.
    later: Vec<Option<usize>>,
}

impl Pairs {
    /// Matches a later stage with an earlier one, and matches other stages anew if necessary.
    /// Returns whether that was possible. `tried` is the set of earlier stages that were tried.
    fn add(&mut self, stage: usize, tried: &mut u64) -> bool {
        loop {
            let left = self.earlier[stage] & !*tried;
            if left == 0 {
                return false;
            }
            let candidate = left.trailing_zeros() as usize;
            *tried |= 1 << candidate;
            let is_free = match self.later[candidate] {
                None => true,
                Some(other) => self.add(other, tried),
            };
            if is_free {
                self.later[candidate] = Some(stage);
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::graphs::{Graph, Stage};

    /// A graph without tensors whose stages need these earlier ones.
    fn graph(needs: &[&[usize]]) -> Graph {
        let stage = |needs: &&[usize]| Stage {
            name: String::new(),
            function: String::new(),
            inputs: Vec::new(),
            when: None,
            otherwise: Vec::new(),
            batch_max: 1,
            cpu_only: false,
            needs: needs.to_vec(),
            needed_by: Vec::new(),
        };
        Graph {
            name: String::new(),
            inputs: Vec::new(),
            stages: needs.iter().map(stage).collect(),
            outputs: Vec::new(),
            deadline: None,
            price_max: None,
            prefer: None,
        }
    }

    /// The width by trying all sets.
    fn by_trying(needs: &[Vec<usize>], counts: u32) -> usize {
        let mut before = vec![0_u32; needs.len()];
        for (stage, needs) in needs.iter().enumerate() {
            before[stage] = needs.iter().fold(0, |all, &needed| all | (1 << needed) | before[needed]);
        }
        let is_apart = |set: u32| (0..needs.len()).all(|stage| set & (1 << stage) == 0 || set & before[stage] == 0);
        let sets = (0..1_u32 << needs.len()).filter(|&set| set & !counts == 0 && is_apart(set));
        sets.map(|set| set.count_ones() as usize).max().unwrap_or(0)
    }

    #[test]
    fn chains_are_narrow_and_branches_wide() {
        let all = |_| true;
        assert_eq!(graph(&[]).width(all), 0);
        assert_eq!(graph(&[&[], &[0], &[1], &[2]]).width(all), 1);
        assert_eq!(graph(&[&[], &[0], &[0], &[0], &[1, 2, 3]]).width(all), 3);
        assert_eq!(graph(&[&[], &[], &[], &[0]]).width(all), 3);
        // A stage that does not count still separates the stages before and after it.
        assert_eq!(graph(&[&[], &[0], &[1]]).width(|stage| stage != 1), 1);
        assert_eq!(graph(&[&[], &[0], &[0], &[0]]).width(|stage| stage != 2), 2);
    }

    #[test]
    fn the_width_of_random_graphs_is_that_of_their_largest_set() {
        let seed = std::env::var("ATOLL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
        let mut numbers = crate::rng::Rng::new(seed);
        let mut random = move || numbers.next_u64() as u32;
        for case in 0..300 {
            let stages = (random() % 9) as usize;
            let odds = 1 + random() % 4;
            let needs: Vec<Vec<usize>> =
                (0..stages).map(|stage| (0..stage).filter(|_| random() % 5 < odds).collect()).collect();
            let counts = random() % (1 << stages);
            let slices: Vec<&[usize]> = needs.iter().map(Vec::as_slice).collect();
            let width = graph(&slices).width(|stage| counts & (1 << stage) != 0);
            assert_eq!(width, by_trying(&needs, counts), "seed {seed}, case {case}: {needs:?}, {counts:b}");
        }
    }
}
