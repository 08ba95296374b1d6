//! Which parts of a task are worth running in two lines: a decision on what its steps need and what
//! they cost.

use crate::event::Step;
use crate::fork::Fork;
use std::cmp::Reverse;
use std::ops::Range;

/// Steps of one part at most. Looking at longer ones costs more than it finds: parts of models are
/// as long as one block of their architecture.
const PART_STEPS_MAX: usize = 256;

/// What one step costs where it runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCost {
    /// What it is. Only [`Step::Cuttable`] runs beside another line.
    pub step: Step,
    /// How long it takes, in nanoseconds.
    pub ns: u64,
    /// How much of the compute units it keeps busy in that time, in thousandths.
    pub busy_permille: u32,
}

impl StepCost {
    /// The cost of a launch of so many blocks, of which a device runs so many at a time.
    pub fn of_launch(step: Step, ns: u64, blocks: u64, at_a_time: u64) -> StepCost {
        let at_a_time = at_a_time.max(1);
        let waves = blocks.div_ceil(at_a_time).max(1);
        let busy_permille = (u128::from(blocks) * 1000 / (u128::from(waves) * u128::from(at_a_time))) as u32;
        StepCost { step, ns, busy_permille }
    }
}

/// The parts of a task that are quicker in two lines, by at least `gain_ns_min`, which has to be
/// more than it costs to begin and to join lines. In the order of their steps; no two share one.
///
/// `needs` has for each step the earlier ones that have to be complete before it, at least those
/// from which the others follow. What two lines take is taken to be the longer one, or the work of
/// both where that fills all compute units.
pub fn plan_forks(needs: &[Vec<u32>], costs: &[StepCost], gain_ns_min: u64) -> Vec<Fork> {
    assert_eq!(needs.len(), costs.len(), "every step has a cost");
    let (mut forks, mut begin) = (Vec::new(), 0);
    while begin < costs.len() {
        match part_from(begin, needs, costs).filter(|part| part.gain_ns(costs) >= gain_ns_min.max(1)) {
            Some(part) => {
                begin = part.steps.end;
                forks.push(Fork::new(part.lines));
            }
            None => begin += 1,
        }
    }
    forks
}

/// Steps that fall into two groups without a need between them.
struct Part {
    steps: Range<usize>,
    lines: [Vec<u32>; 2],
}

impl Part {
    /// How much quicker it is in two lines.
    fn gain_ns(&self, costs: &[StepCost]) -> u64 {
        let steps = &costs[self.steps.clone()];
        let in_line: u64 = steps.iter().map(|step| step.ns).sum();
        let work = steps.iter().map(|step| u128::from(step.ns) * u128::from(step.busy_permille)).sum::<u128>() / 1000;
        let longer = self.lines.iter().map(|line| line_ns(line, costs)).max().unwrap_or(0);
        in_line - longer.max(work as u64).min(in_line)
    }
}

fn line_ns(line: &[u32], costs: &[StepCost]) -> u64 {
    line.iter().map(|step| costs[*step as usize].ns).sum()
}

/// The longest part that begins with a step and in which lines go on until something needs both.
fn part_from(begin: usize, needs: &[Vec<u32>], costs: &[StepCost]) -> Option<Part> {
    let mut groups = Groups::default();
    let mut end = None;
    for at in begin..costs.len().min(begin + PART_STEPS_MAX) {
        if costs[at].step != Step::Cuttable {
            break;
        }
        groups.add(needs[at].iter().filter_map(|before| (*before as usize).checked_sub(begin)));
        match groups.count {
            // Until here the part is one line; another one may begin.
            1 if end.is_none() => {}
            1 => break,
            _ => end = Some(at + 1),
        }
    }
    let steps = begin..end?;
    Some(Part { lines: share_out(groups.of_first(steps.len(), needs, begin), begin, costs), steps })
}

/// Puts groups of steps into two lines, the longest first, each into the line that is shorter so
/// far.
fn share_out(mut groups: Vec<Vec<u32>>, begin: usize, costs: &[StepCost]) -> [Vec<u32>; 2] {
    let steps = |group: &Vec<u32>| group.iter().map(|step| begin as u32 + step).collect::<Vec<u32>>();
    groups.sort_by_key(|group| Reverse(line_ns(&steps(group), costs)));
    let mut lines = [Vec::new(), Vec::new()];
    for group in &groups {
        // The second one even where nothing costs anything: no line is empty.
        let shorter = usize::from(
            !lines[0].is_empty() && (lines[1].is_empty() || line_ns(&lines[1], costs) <= line_ns(&lines[0], costs)),
        );
        lines[shorter].extend(steps(group));
    }
    lines.each_mut().map(|line| {
        line.sort_unstable();
        std::mem::take(line)
    })
}

/// Steps that are joined by what they need, as a forest that is flattened on the way.
#[derive(Default)]
struct Groups {
    parent: Vec<usize>,
    count: usize,
}

impl Groups {
    /// Adds a step that needs these.
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

    /// The groups of the first so many steps alone, which a later one may have joined.
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
        ns.iter().map(|&ns| StepCost { step: Step::Cuttable, ns, busy_permille }).collect()
    }

    fn needs(lists: &[&[u32]]) -> Vec<Vec<u32>> {
        lists.iter().map(|list| list.to_vec()).collect()
    }

    /// 0 feeds 1-3 and 2-4, which 5 joins.
    fn diamond() -> Vec<Vec<u32>> {
        needs(&[&[], &[0], &[0], &[1], &[2], &[3, 4]])
    }

    #[test]
    fn branches_between_a_fork_and_a_join_run_in_two_lines() {
        let forks = plan_forks(&diamond(), &costs(&[10; 6], 500), 1);
        assert_eq!(forks, [Fork::new([vec![1, 3], vec![2, 4]])]);
    }

    #[test]
    fn what_fills_the_device_or_gains_too_little_stays_in_line() {
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 1000), 1), []);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 500), 21), []);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 500), 20).len(), 1);
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 750), 10).len(), 1, "40 in line, 30 of work");
        assert_eq!(plan_forks(&diamond(), &costs(&[10; 6], 750), 11), []);
        assert_eq!(
            plan_forks(&diamond(), &costs(&[10, 10, 1, 10, 1, 10], 100), 3),
            [],
            "the shorter line is all there is to gain"
        );
    }

    #[test]
    fn steps_that_cannot_leave_end_a_part() {
        let mut costs = costs(&[10; 6], 500);
        costs[4].step = Step::Solid;
        assert_eq!(plan_forks(&diamond(), &costs, 1), [Fork::new([vec![1, 3], vec![2]])]);
        costs[2].step = Step::Host;
        assert_eq!(plan_forks(&diamond(), &costs, 1), []);
    }

    #[test]
    fn several_branches_are_shared_out_by_what_they_cost() {
        let needs = needs(&[&[], &[0], &[0], &[0], &[0], &[1, 2, 3, 4]]);
        let forks = plan_forks(&needs, &costs(&[1, 5, 9, 6, 3, 1], 500), 1);
        assert_eq!(forks, [Fork::new([vec![2, 4], vec![1, 3]])]);
    }

    #[test]
    fn one_part_follows_another() {
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
    fn a_line_is_no_part() {
        let line: Vec<Vec<u32>> = (0..2000_u32).map(|step| step.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(plan_forks(&line, &costs(&vec![10; line.len()], 100), 1), []);
        assert_eq!(plan_forks(&[], &[], 1), []);
    }

    #[test]
    fn a_launch_keeps_busy_what_its_last_wave_fills() {
        let busy = |blocks, at_a_time| StepCost::of_launch(Step::Cuttable, 1, blocks, at_a_time).busy_permille;
        assert_eq!(
            [busy(1, 2), busy(2, 2), busy(3, 2), busy(0, 2), busy(5, 0), busy(u64::MAX, 7)],
            [500, 1000, 750, 0, 1000, 999]
        );
    }
}
