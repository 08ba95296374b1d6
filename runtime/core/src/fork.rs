//! Parts of a task in which two lines of steps run beside each other, and how far the lines have
//! come.
//!
//! The lines begin when every step in front of the part is complete, and what is behind it begins
//! when both are. Within a line steps complete one by one, in order, as those of a task do; between
//! the lines nothing is promised, because no step of one needs a step of the other.

use crate::event::Step;
use crate::ids::QueueId;
use std::ops::Range;
use std::sync::Arc;

/// A part of a task that may run in two lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    /// The indices of each line's steps, in order.
    lines: [Arc<[u32]>; 2],
}

impl Fork {
    /// A part of two lines.
    ///
    /// # Panics
    /// If a line is empty or out of order, a step is in both, or one between the first and the last
    /// is in neither.
    pub fn new(lines: [Vec<u32>; 2]) -> Fork {
        let mut all: Vec<u32> = lines.iter().flatten().copied().collect();
        all.sort_unstable();
        let has_all = all.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        let is_in_order = lines.iter().all(|line| !line.is_empty() && line.is_sorted());
        assert!(has_all && is_in_order, "lines that leave steps out, or have them twice: {lines:?}");
        Fork { lines: lines.map(Arc::from) }
    }

    /// The steps of both lines.
    pub fn steps(&self) -> Range<u32> {
        let ends = |line: &Arc<[u32]>| (line[0], line[line.len() - 1] + 1);
        let [first, second] = self.lines.each_ref().map(ends);
        first.0.min(second.0)..first.1.max(second.1)
    }

    /// The same part of a task in which so many steps stand in front of this one's.
    #[must_use]
    pub fn behind(&self, base: u32) -> Fork {
        Fork { lines: self.lines.each_ref().map(|line| line.iter().map(|step| step + base).collect()) }
    }

    /// Whether the part is one of a task of these steps: each of them can leave and says what of it
    /// ran.
    pub(crate) fn is_of(&self, steps: &[Step]) -> bool {
        let Range { start, end } = self.steps();
        steps.get(start as usize..end as usize).is_some_and(|steps| steps.iter().all(|step| *step == Step::Cuttable))
    }
}

/// How far one line has come. Counts are of its own steps.
#[derive(Clone, Debug)]
struct Line {
    steps: Arc<[u32]>,
    queue: QueueId,
    completed: usize,
    next: usize,
    /// A launch of the epoch in flight came back evicted.
    eviction_seen: bool,
}

/// A part of a task that is being run in two lines.
#[derive(Clone, Debug)]
pub(crate) struct Forked {
    lines: [Line; 2],
    end: u32,
}

impl Forked {
    pub(crate) fn begin(fork: &Fork, queues: [QueueId; 2]) -> Forked {
        let line = |at: usize| Line {
            steps: Arc::clone(&fork.lines[at]),
            queue: queues[at],
            completed: 0,
            next: 0,
            eviction_seen: false,
        };
        Forked { lines: [line(0), line(1)], end: fork.steps().end }
    }

    /// The first step behind the part.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Both lines go on in one queue, the first before the second.
    pub(crate) fn move_to(&mut self, queue: QueueId) {
        self.lines.iter_mut().for_each(|line| line.queue = queue);
    }

    /// The next step for a queue.
    pub(crate) fn ready_step(&self, queue: QueueId) -> Option<u32> {
        let mut lines = self.lines.iter().filter(|line| line.queue == queue);
        lines.find_map(|line| line.steps.get(line.next).copied())
    }

    /// Whether a step is the first one of its line that is not complete, and whether a launch of
    /// the line came back evicted.
    pub(crate) fn place_of(&self, step: u32) -> (bool, bool) {
        let line = &self.lines[self.line_of(step)];
        (line.steps.get(line.completed) == Some(&step), line.eviction_seen)
    }

    pub(crate) fn issued(&mut self, step: u32) {
        let at = self.line_of(step);
        let line = &mut self.lines[at];
        assert_eq!(line.steps.get(line.next), Some(&step), "a step is issued that is not the next of its line");
        line.next += 1;
    }

    pub(crate) fn completed(&mut self, step: u32) {
        let at = self.line_of(step);
        let line = &mut self.lines[at];
        assert_eq!(line.steps.get(line.completed), Some(&step), "a step of a line completed out of order");
        line.completed += 1;
    }

    pub(crate) fn evicted(&mut self, step: u32) {
        let at = self.line_of(step);
        self.lines[at].eviction_seen = true;
    }

    /// Nothing is in flight: what left is issued again, under another epoch.
    pub(crate) fn rewind(&mut self) {
        for line in &mut self.lines {
            (line.next, line.eviction_seen) = (line.completed, false);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.lines.iter().all(|line| line.completed == line.steps.len())
    }

    fn line_of(&self, step: u32) -> usize {
        usize::from(self.lines[1].steps.binary_search(&step).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_share_out_the_steps_of_a_part() {
        let fork = Fork::new([vec![2, 5], vec![3, 4]]);
        assert_eq!(fork.steps(), 2..6);
        assert_eq!(fork.behind(3), Fork::new([vec![5, 8], vec![6, 7]]));
        assert!(fork.is_of(&[Step::Cuttable; 6]) && !fork.is_of(&[Step::Cuttable; 5]));
        let mut steps = [Step::Cuttable; 6];
        steps[3] = Step::Solid;
        assert!(!fork.is_of(&steps));
        for lines in [[vec![0], vec![]], [vec![0], vec![0]], [vec![0], vec![2]], [vec![1, 0], vec![2]]] {
            let text = format!("{lines:?}");
            assert!(std::panic::catch_unwind(|| Fork::new(lines)).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_come_along_by_themselves() {
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
        assert_eq!(forked.ready_step(QueueId(1)), Some(3), "one line after the other");
        [5, 3, 4].into_iter().for_each(|step| forked.completed(step));
        assert!(forked.is_complete());
    }
}
