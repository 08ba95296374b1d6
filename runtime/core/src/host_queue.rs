//! The host queue: tasks of one class that have not been given a device queue yet, whether or not
//! they could start.

use crate::ids::TaskId;
use std::collections::BTreeMap;

/// Tasks in the order in which they will start: by rank, then by arrival. Bounded.
#[derive(Debug)]
pub(crate) struct HostQueue {
    waiting: BTreeMap<(u64, u64), TaskId>,
    /// Tasks that have a place and do not stand in it, because something they need is missing.
    away: usize,
    arrivals: u64,
    capacity: usize,
}

/// A task's place in a host queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64, u64);

impl Place {
    /// The rank it was given for.
    pub(crate) fn rank(self) -> u64 {
        self.0
    }
}

impl HostQueue {
    pub(crate) fn new(capacity: usize) -> HostQueue {
        HostQueue { waiting: BTreeMap::new(), away: 0, arrivals: 0, capacity }
    }

    /// Lines a task up behind all others of its rank; `None` if the queue is full.
    pub(crate) fn push(&mut self, task: TaskId, rank: u64) -> Option<Place> {
        let place = self.reserve(rank)?;
        self.enter(task, place);
        Some(place)
    }

    /// A place for a task that cannot start yet, behind all others of its rank; `None` if the queue
    /// is full.
    pub(crate) fn reserve(&mut self, rank: u64) -> Option<Place> {
        if self.waiting.len() + self.away >= self.capacity {
            return None;
        }
        Some(self.take_in(rank))
    }

    /// A place for a task that was admitted elsewhere, behind all others of its rank, as if it were
    /// away. Its admission was bounded there, so this queue may be full.
    pub(crate) fn take_in(&mut self, rank: u64) -> Place {
        let place = Place(rank, self.arrivals);
        self.arrivals += 1;
        self.away += 1;
        place
    }

    /// A task that was away comes to its place.
    pub(crate) fn enter(&mut self, task: TaskId, place: Place) {
        self.away -= 1;
        let old = self.waiting.insert((place.0, place.1), task);
        assert!(old.is_none(), "two tasks at one place of a host queue");
    }

    /// A task, which is not in the queue, keeps its place in it.
    pub(crate) fn keep(&mut self) {
        self.away += 1;
    }

    /// A task that was away does not come back.
    pub(crate) fn give_up(&mut self) {
        self.away -= 1;
    }

    /// Tasks that have a place and cannot start.
    pub(crate) fn away(&self) -> usize {
        self.away
    }

    /// Forgets everything: the device is lost.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.away = 0;
    }

    /// The first task.
    pub(crate) fn first(&self) -> Option<TaskId> {
        self.waiting.first_key_value().map(|(_, task)| *task)
    }

    /// Takes the first task.
    #[cfg(test)]
    pub(crate) fn pop(&mut self) -> Option<TaskId> {
        self.waiting.pop_first().map(|(_, task)| task)
    }

    /// Takes a task out of the line.
    pub(crate) fn remove(&mut self, place: Place) -> TaskId {
        self.waiting.remove(&(place.0, place.1)).expect("a waiting task stands in its host queue")
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_rank_then_arrival_and_the_bound_holds() {
        let mut queue = HostQueue::new(3);
        queue.push(TaskId(1), 5).expect("room");
        let second = queue.push(TaskId(2), 5).expect("room");
        queue.push(TaskId(3), 1).expect("room");
        assert_eq!(queue.push(TaskId(4), 0), None, "a fourth task does not fit");
        assert_eq!(queue.pop(), Some(TaskId(3)));
        assert_eq!(queue.remove(second), TaskId(2));
        assert_eq!(queue.pop(), Some(TaskId(1)));
        assert!(queue.is_empty());
    }

    #[test]
    fn who_was_away_stands_where_it_arrived() {
        let mut queue = HostQueue::new(3);
        let first = queue.reserve(0).expect("room");
        queue.push(TaskId(2), 0).expect("room");
        let third = queue.push(TaskId(3), 0).expect("room");
        assert_eq!((queue.push(TaskId(4), 0), queue.len(), queue.away()), (None, 2, 1));
        queue.remove(third);
        queue.keep();
        queue.enter(TaskId(1), first);
        assert_eq!((queue.pop(), queue.pop(), queue.away()), (Some(TaskId(1)), Some(TaskId(2)), 1));
        queue.give_up();
        assert_eq!(queue.away(), 0);
    }
}
