//! Decides which sections of a task are worth running in two branches, from the dependencies of its
//! steps and their costs.

use crate::event::Step;
use crate::fork::Fork;
use std::cmp::Reverse;
use std::ops::Range;

/// Most steps in one fork. Sections that pay off in models are as long as one block of the
/// architecture; searching longer ones costs more than it gains.
const FORK_STEPS_MAX: usize = 256;

/// The cost of one step that runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCost {
    /// Its kind. Only [`Step::Preemptible`] steps run in branches.
    pub step: Step,
    /// Duration in nanoseconds.
    pub ns: u64,
    /// Share of the compute units it occupies during that time, in thousandths.
    pub busy_permille: u32,
}

impl StepCost {
    /// The cost of a launch of `blocks` blocks on a device that runs `at_a_time` of them at once.
    pub fn of_launch(step: Step, ns: u64, blocks: u64, at_a_time: u64) -> StepCost {
        let at_a_time = at_a_time.max(1);
        let waves = blocks.div_ceil(at_a_time).max(1);
        let busy_permille = (u128::from(blocks) * 1000 / (u128::from(waves) * u128::from(at_a_time))) as u32;
        StepCost { step, ns, busy_permille }
    }
}

/// The sections of a task that run at least `gain_ns_min` faster in two branches. `gain_ns_min` has
/// to exceed the cost of starting and joining branches. The forks are ordered by their steps and do
/// not overlap.
///
/// `needs` lists for each step the earlier steps that have to be complete before it; transitive
/// ones may be left out. The estimated time of a fork is that of its longer branch, or the work of
/// both where that fills all compute units.
pub fn plan_forks(needs: &[Vec<u32>], costs: &[StepCost], gain_ns_min: u64) -> Vec<Fork> {
    assert_eq!(needs.len(), costs.len(), "every step has a cost");
    let (mut forks, mut begin) = (Vec::new(), 0);
    while begin < costs.len() {
        match section_from(begin, needs, costs).filter(|section| section.gain_ns(costs) >= gain_ns_min.max(1)) {
            Some(section) => {
                begin = section.steps.end;
                forks.push(Fork::new(section.branches));
            }
            None => begin += 1,
        }
    }
    forks
}

/// Steps that fall into two groups without a dependency between them.
struct Section {
    steps: Range<usize>,
    branches: [Vec<u32>; 2],
}

impl Section {
    /// How much faster it is in two branches than in order, in nanoseconds.
    fn gain_ns(&self, costs: &[StepCost]) -> u64 {
        let steps = &costs[self.steps.clone()];
        let in_order: u64 = steps.iter().map(|step| step.ns).sum();
        let work = steps.iter().map(|step| u128::from(step.ns) * u128::from(step.busy_permille)).sum::<u128>() / 1000;
        let longer = self.branches.iter().map(|branch| branch_ns(branch, costs)).max().unwrap_or(0);
        in_order - longer.max(work as u64).min(in_order)
    }
}

fn branch_ns(branch: &[u32], costs: &[StepCost]) -> u64 {
    branch.iter().map(|step| costs[*step as usize].ns).sum()
}

/// The longest section from step `begin` on in which independent branches run until a step needs
/// both.
fn section_from(begin: usize, needs: &[Vec<u32>], costs: &[StepCost]) -> Option<Section> {
    let mut groups = Groups::default();
    let mut end = None;
    for at in begin..costs.len().min(begin + FORK_STEPS_MAX) {
        if costs[at].step != Step::Preemptible {
            break;
        }
        groups.add(needs[at].iter().filter_map(|before| (*before as usize).checked_sub(begin)));
        match groups.count {
            // So far the section is one branch; another may begin.
            1 if end.is_none() => {}
            1 => break,
            _ => end = Some(at + 1),
        }
    }
    let steps = begin..end?;
    Some(Section { branches: distribute(groups.of_first(steps.len(), needs, begin), begin, costs), steps })
}

/// Distributes groups of steps over two branches, longest first, each to the branch that is shorter
/// so far.
fn distribute(mut groups: Vec<Vec<u32>>, begin: usize, costs: &[StepCost]) -> [Vec<u32>; 2] {
    let steps = |group: &Vec<u32>| group.iter().map(|step| begin as u32 + step).collect::<Vec<u32>>();
    groups.sort_by_key(|group| Reverse(branch_ns(&steps(group), costs)));
    let mut branches = [Vec::new(), Vec::new()];
    for group in &groups {
        // An empty branch first, even if steps cost nothing: no branch may stay empty.
        let [first_ns, second_ns] = branches.each_ref().map(|branch| branch_ns(branch, costs));
        let takes_second = branches[1].is_empty() || second_ns <= first_ns;
        let shorter = usize::from(!branches[0].is_empty() && takes_second);
        branches[shorter].extend(steps(group));
    }
    branches.each_mut().map(|branch| {
        branch.sort_unstable();
        std::mem::take(branch)
    })
}

/// A union-find forest of steps, joined by their dependencies; paths are halved on lookup.
#[derive(Default)]
struct Groups {
    parent: Vec<usize>,
    count: usize,
}

impl Groups {
    /// Adds a step that needs the given steps.
    fn add(&mut self, needs: impl Iterator<Item = usize>) {
        let step = self.parent.len();
        self.parent.push(step);
        self.count += 1;
        for before in needs {
            let (root, own) = (self.root(before), self.root(step));
            if root != own {
                self.parent[own] = root;
                self.count -= 1;
            }
        }
    }

    fn root(&mut self, mut step: usize) -> usize {
        while self.parent[step] != step {
            self.parent[step] = self.parent[self.parent[step]];
            step = self.parent[step];
        }
        step
    }

    /// The groups of the first `count` steps alone, without joins by later steps.
    fn of_first(&self, count: usize, needs: &[Vec<u32>], begin: usize) -> Vec<Vec<u32>> {
        let mut alone = Groups::default();
        (begin..begin + count)
            .for_each(|at| alone.add(needs[at].iter().filter_map(|before| (*before as usize).checked_sub(begin))));
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); count];
        for step in 0..count {
            let root = alone.root(step);
            groups[root].push(step as u32);
        }
        groups.retain(|group| !group.is_empty());
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(ns: &[u64], busy_permille: u32) -> Vec<StepCost> {
        ns.iter().map(|&ns| StepCost { step: Step::Preemptible, ns, busy_permille }).collect()
    }

    fn needs(lists: &[&[u32]]) -> Vec<Vec<u32>> {
        lists.iter().map(|list| list.to_vec()).collect()
    }

    /// Step 0, then the branches 1-3 and 2-4, which join at step 5.
    fn diamond() -> Vec<Vec<u32>> {
        needs(&[&[], &[0], &[0], &[1], &[2], &[3, 4]])
    }

    #[test]
    fn branches_between_a_fork_and_a_join_run_concurrently() {
        let forks = plan_forks(&diamond(), &costs(&[10; 6], 500), 1);
        assert_eq!(forks, [Fork::new([vec![1, 3], vec![2, 4]])]);
    }

    #[test]
    fn steps_that_fill_the_device_or_gain_too_little_stay_in_order() {
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 1000), 1), []);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 500), 21), []);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 500), 20).len(), 1);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 750), 10).len(), 1, "40 in order, 30 of work");
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 750), 11), []);
        assert_eq!(
            plan_forks(&diamond(), &costs(&[10, 10, 1, 10, 1, 10], 100), 3),
            [],
            "the gain is at most the shorter branch"
        );
    }

    #[test]
    fn steps_that_are_not_preemptible_end_a_fork() {
        let mut costs = costs(&[10; 6], 500);
        costs[4].step = Step::NotPreemptible;
        assert_eq!(plan_forks(&diamond(), &costs, 1), [Fork::new([vec![1, 3], vec![2]])]);
        costs[2].step = Step::Host;
        assert_eq!(plan_forks(&diamond(), &costs, 1), []);
    }

    #[test]
    fn several_branches_are_distributed_by_cost() {
        let needs = needs(&[&[], &[0], &[0], &[0], &[0], &[1, 2, 3, 4]]);
        let forks = plan_forks(&needs, &costs(&[1, 5, 9, 6, 3, 1], 500), 1);
        assert_eq!(forks, [Fork::new([vec![2, 4], vec![1, 3]])]);
    }

    #[test]
    fn one_fork_follows_another() {
        let mut lists: Vec<Vec<u32>> = vec![vec![]];
        for block in 0..100 {
            let before = 3 * block;
            lists.extend([vec![before], vec![before], vec![before + 1, before + 2]]);
        }
        let forks = plan_forks(&lists, &costs(&vec![10; lists.len()], 500), 1);
        assert_eq!(forks.len(), 100);
        assert_eq!(forks[99].steps(), 298..300);
    }

    #[test]
    fn a_sequence_is_no_fork() {
        let branch: Vec<Vec<u32>> = (0..2000_u32).map(|step| step.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(plan_forks(&branch, &costs(&vec![10; branch.len()], 100), 1), []);
        assert_eq!(plan_forks(&[], &[], 1), []);
    }

    #[test]
    fn busy_units_depend_on_the_last_wave() {
        let busy = |blocks, at_a_time| StepCost::of_launch(Step::Preemptible, 1, blocks, at_a_time).busy_permille;
        assert_eq!(
            [busy(1, 2), busy(2, 2), busy(3, 2), busy(0, 2), busy(5, 0), busy(u64::MAX, 7)],
            [500, 1000, 750, 0, 1000, 999]
        );
    }
}
