//! The host queue: tasks of one class that are not yet bound to a device queue, ready or not.

use crate::ids::{ClientId, TaskId};
use std::collections::BTreeMap;

/// Tasks in the order in which they will start: by rank, then by arrival. Bounded.
#[derive(Debug)]
pub(crate) struct HostQueue {
    waiting: BTreeMap<(u64, u64), (TaskId, ClientId)>,
    /// Tasks that hold a place but are not in the queue, because they are not ready.
    unready: usize,
    arrivals: u64,
    capacity: usize,
}

/// A task's place in a host queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64, u64);

impl Place {
    /// The rank it was reserved with.
    pub(crate) fn rank(self) -> u64 {
        self.0
    }
}

impl HostQueue {
    pub(crate) fn new(capacity: usize) -> HostQueue {
        HostQueue { waiting: BTreeMap::new(), unready: 0, arrivals: 0, capacity }
    }

    /// Appends a task behind all others of its rank; `None` if the queue is full.
    pub(crate) fn push(&mut self, task: TaskId, client: ClientId, rank: u64) -> Option<Place> {
        let place = self.reserve(rank)?;
        self.enter(task, client, place);
        Some(place)
    }

    /// Reserves a place behind all others of its rank, for a task that is not ready; `None` if the
    /// queue is full.
    pub(crate) fn reserve(&mut self, rank: u64) -> Option<Place> {
        if self.waiting.len() + self.unready >= self.capacity {
            return None;
        }
        Some(self.reserve_unbounded(rank))
    }

    /// Reserves a place as [`HostQueue::reserve`] does, even if the queue is full: for a task that
    /// another queue admitted.
    pub(crate) fn reserve_unbounded(&mut self, rank: u64) -> Place {
        let place = Place(rank, self.arrivals);
        self.arrivals += 1;
        self.unready += 1;
        place
    }

    /// Puts a task into its reserved place, once it is ready.
    pub(crate) fn enter(&mut self, task: TaskId, client: ClientId, place: Place) {
        self.unready -= 1;
        let old = self.waiting.insert((place.0, place.1), (task, client));
        assert!(old.is_none(), "two tasks have one place in a host queue");
    }

    /// Counts a task that left the queue as unready; it keeps its place.
    pub(crate) fn mark_unready(&mut self) {
        self.unready += 1;
    }

    /// Releases the place of an unready task, which does not get it back.
    pub(crate) fn cancel_reservation(&mut self) {
        self.unready -= 1;
    }

    /// Tasks that hold a place and are not ready.
    pub(crate) fn unready(&self) -> usize {
        self.unready
    }

    /// Removes everything: the device is lost.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.unready = 0;
    }

    /// The task that starts next.
    pub(crate) fn first(&self) -> Option<TaskId> {
        self.waiting.first_key_value().map(|(_, (task, _))| *task)
    }

    /// The waiting tasks with their clients, in the order in which they start.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (TaskId, ClientId)> {
        self.waiting.values().copied()
    }

    /// Removes the task that starts next.
    #[cfg(test)]
    pub(crate) fn pop(&mut self) -> Option<TaskId> {
        self.waiting.pop_first().map(|(_, (task, _))| task)
    }

    /// Removes a task from its place.
    pub(crate) fn remove(&mut self, place: Place) -> TaskId {
        self.waiting.remove(&(place.0, place.1)).expect("a waiting task is in its host queue").0
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
        queue.push(TaskId(1), ClientId(0), 5).expect("room");
        let second = queue.push(TaskId(2), ClientId(0), 5).expect("room");
        queue.push(TaskId(3), ClientId(0), 1).expect("room");
        assert_eq!(queue.push(TaskId(4), ClientId(0), 0), None, "a fourth task does not fit");
        assert_eq!(queue.pop(), Some(TaskId(3)));
        assert_eq!(queue.remove(second), TaskId(2));
        assert_eq!(queue.pop(), Some(TaskId(1)));
        assert!(queue.is_empty());
    }

    #[test]
    fn an_unready_task_keeps_its_place() {
        let mut queue = HostQueue::new(3);
        let first = queue.reserve(0).expect("room");
        queue.push(TaskId(2), ClientId(0), 0).expect("room");
        let third = queue.push(TaskId(3), ClientId(0), 0).expect("room");
        assert_eq!((queue.push(TaskId(4), ClientId(0), 0), queue.len(), queue.unready()), (None, 2, 1));
        queue.remove(third);
        queue.mark_unready();
        queue.enter(TaskId(1), ClientId(0), first);
        assert_eq!((queue.pop(), queue.pop(), queue.unready()), (Some(TaskId(1)), Some(TaskId(2)), 1));
        queue.cancel_reservation();
        assert_eq!(queue.unready(), 0);
    }
}
