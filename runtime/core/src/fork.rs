//! Forks: sections of a task in which two branches of steps run concurrently, and their progress.
//!
//! The branches begin when every step before the fork is complete; the steps after the fork begin
//! when both branches are complete. Within a branch steps complete in order, as in a task. The
//! branches are independent: no step of one needs a step of the other.

use crate::event::Step;
use crate::ids::QueueId;
use std::ops::Range;
use std::sync::Arc;

/// A section of a task that may run in two concurrent branches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    /// The step indices of each branch, ascending.
    branches: [Arc<[u32]>; 2],
}

impl Fork {
    /// A fork with two branches, given as step indices.
    ///
    /// # Panics
    /// If a branch is empty or out of order, a step is in both, or a step between the first and the
    /// last is in neither.
    pub fn new(branches: [Vec<u32>; 2]) -> Fork {
        let mut all: Vec<u32> = branches.iter().flatten().copied().collect();
        all.sort_unstable();
        let has_all = all.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        let is_in_order = branches.iter().all(|branch| !branch.is_empty() && branch.is_sorted());
        assert!(has_all && is_in_order, "branches have to contain each step of the fork once, ascending: {branches:?}");
        Fork { branches: branches.map(Arc::from) }
    }

    /// The steps of both branches.
    pub fn steps(&self) -> Range<u32> {
        let ends = |branch: &Arc<[u32]>| (branch[0], branch[branch.len() - 1] + 1);
        let [first, second] = self.branches.each_ref().map(ends);
        first.0.min(second.0)..first.1.max(second.1)
    }

    /// The same fork in a task that has `base` more steps before it.
    #[must_use]
    pub fn offset_by(&self, base: u32) -> Fork {
        Fork { branches: self.branches.each_ref().map(|branch| branch.iter().map(|step| step + base).collect()) }
    }

    /// Whether the fork fits a task of these steps: its steps exist and are all
    /// [`Step::Preemptible`].
    pub(crate) fn fits(&self, steps: &[Step]) -> bool {
        let Range { start, end } = self.steps();
        steps.get(start as usize..end as usize).is_some_and(|steps| steps.iter().all(|step| *step == Step::Preemptible))
    }
}

/// Progress of one branch. `completed` and `next` count its own steps.
#[derive(Clone, Debug)]
struct Branch {
    steps: Arc<[u32]>,
    queue: QueueId,
    completed: usize,
    next: usize,
    /// A launch of the epoch in flight came back evicted.
    eviction_seen: bool,
}

/// A fork that is running.
#[derive(Clone, Debug)]
pub(crate) struct Forked {
    branches: [Branch; 2],
    end: u32,
}

impl Forked {
    pub(crate) fn begin(fork: &Fork, queues: [QueueId; 2]) -> Forked {
        let branch = |at: usize| Branch {
            steps: Arc::clone(&fork.branches[at]),
            queue: queues[at],
            completed: 0,
            next: 0,
            eviction_seen: false,
        };
        Forked { branches: [branch(0), branch(1)], end: fork.steps().end }
    }

    /// The first step after the fork.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Continues both branches in one queue, the first before the second.
    pub(crate) fn move_to(&mut self, queue: QueueId) {
        self.branches.iter_mut().for_each(|branch| branch.queue = queue);
    }

    /// The next step for a queue.
    pub(crate) fn ready_step(&self, queue: QueueId) -> Option<u32> {
        let mut branches = self.branches.iter().filter(|branch| branch.queue == queue);
        branches.find_map(|branch| branch.steps.get(branch.next).copied())
    }

    /// Whether a step is the first incomplete one of its branch, and whether a launch of the branch
    /// was evicted.
    pub(crate) fn place_of(&self, step: u32) -> (bool, bool) {
        let branch = &self.branches[self.branch_of(step)];
        (branch.steps.get(branch.completed) == Some(&step), branch.eviction_seen)
    }

    pub(crate) fn issued(&mut self, step: u32) {
        let at = self.branch_of(step);
        let branch = &mut self.branches[at];
        assert_eq!(branch.steps.get(branch.next), Some(&step), "a step is issued that is not the next of its branch");
        branch.next += 1;
    }

    pub(crate) fn completed(&mut self, step: u32) {
        let at = self.branch_of(step);
        let branch = &mut self.branches[at];
        assert_eq!(branch.steps.get(branch.completed), Some(&step), "a step of a branch completed out of order");
        branch.completed += 1;
    }

    pub(crate) fn evicted(&mut self, step: u32) {
        let at = self.branch_of(step);
        self.branches[at].eviction_seen = true;
    }

    /// Resets both branches to their first incomplete steps. Called when nothing is in flight;
    /// evicted steps are issued again under a newer epoch.
    pub(crate) fn rewind(&mut self) {
        for branch in &mut self.branches {
            (branch.next, branch.eviction_seen) = (branch.completed, false);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.branches.iter().all(|branch| branch.completed == branch.steps.len())
    }

    fn branch_of(&self, step: u32) -> usize {
        usize::from(self.branches[1].steps.binary_search(&step).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_divide_the_steps_of_a_fork() {
        let fork = Fork::new([vec![2, 5], vec![3, 4]]);
        assert_eq!(fork.steps(), 2..6);
        assert_eq!(fork.offset_by(3), Fork::new([vec![5, 8], vec![6, 7]]));
        assert!(fork.fits(&[Step::Preemptible; 6]) && !fork.fits(&[Step::Preemptible; 5]));
        let mut steps = [Step::Preemptible; 6];
        steps[3] = Step::NotPreemptible;
        assert!(!fork.fits(&steps));
        for branches in [[vec![0], vec![]], [vec![0], vec![0]], [vec![0], vec![2]], [vec![1, 0], vec![2]]] {
            let text = format!("{branches:?}");
            assert!(std::panic::catch_unwind(|| Fork::new(branches)).is_err(), "{text}");
        }
    }

    #[test]
    fn branches_progress_independently() {
        let queues = [QueueId(0), QueueId(2)];
        let mut forked = Forked::begin(&Fork::new([vec![2, 5], vec![3, 4]]), queues);
        assert_eq!(queues.map(|queue| forked.ready_step(queue)), [Some(2), Some(3)]);
        [2, 3, 4].into_iter().for_each(|step| forked.issued(step));
        assert_eq!(queues.map(|queue| forked.ready_step(queue)), [Some(5), None]);
        forked.evicted(3);
        assert_eq!(
            [2, 3, 4, 5].map(|step| forked.place_of(step)),
            [(true, false), (true, true), (false, true), (false, false)]
        );
        forked.completed(2);
        forked.rewind();
        assert_eq!(queues.map(|queue| forked.ready_step(queue)), [Some(5), Some(3)]);
        forked.move_to(QueueId(1));
        assert_eq!(forked.ready_step(QueueId(1)), Some(5));
        forked.issued(5);
        assert_eq!(forked.ready_step(QueueId(1)), Some(3), "one branch after the other");
        [5, 3, 4].into_iter().for_each(|step| forked.completed(step));
        assert!(forked.is_complete());
    }
}
