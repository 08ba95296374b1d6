//! The waiting requests of a function.

use super::requests::{Order, RequestSlot};
use std::collections::VecDeque;

/// Number of entries whose memory an empty queue keeps.
const KEPT: usize = 256;
/// Number of removed entries that a queue keeps, however few others it has.
const REMOVED_MIN: usize = 32;

/// Requests in the order of their arrival. Almost all of them are added at the end and leave from
/// the front, which takes constant time.
#[derive(Default)]
pub(super) struct Queue {
    /// Ascending. The first one is not removed.
    entries: VecDeque<Entry>,
    removed: usize,
}

struct Entry {
    order: Order,
    /// `None` if it was removed from the middle of the queue.
    request: Option<RequestSlot>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.removed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first request.
    pub(super) fn first(&self) -> Option<(Order, RequestSlot)> {
        let first = self.entries.front()?;
        Some((first.order, first.request.expect("the first entry is not removed")))
    }

    /// All requests, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = RequestSlot> {
        self.entries.iter().filter_map(|entry| entry.request)
    }

    /// Adds a request. Returns whether it is the first one now.
    pub(super) fn insert(&mut self, order: Order, request: RequestSlot) -> bool {
        let entry = Entry { order, request: Some(request) };
        if self.entries.back().is_none_or(|last| last.order < order) {
            self.entries.push_back(entry);
            return self.entries.len() == 1;
        }
        // A request that runs again is older than almost all that wait.
        let at = self.entries.partition_point(|other| other.order < order);
        self.entries.insert(at, entry);
        at == 0
    }

    /// Removes a request, which must be in the queue. Returns whether it was the first one.
    pub(super) fn remove(&mut self, order: Order) -> bool {
        let is_first = self.entries.front().is_some_and(|first| first.order == order);
        if is_first {
            self.entries.pop_front();
            while self.entries.front().is_some_and(|first| first.request.is_none()) {
                self.entries.pop_front();
                self.removed -= 1;
            }
            if self.entries.is_empty() {
                self.entries.shrink_to(KEPT);
            }
            return true;
        }
        let at = self.entries.binary_search_by_key(&order, |entry| entry.order);
        let at = at.expect("a waiting request is in the queue of its function");
        self.entries[at].request.take().expect("a request leaves its queue once");
        self.removed += 1;
        if self.removed > REMOVED_MIN.max(self.entries.len() / 2) {
            self.entries.retain(|entry| entry.request.is_some());
            self.removed = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Nanos;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn a_queue_answers_as_a_sorted_map() {
        let mut rng = Rng::new(1);
        let (mut queue, mut model) = (Queue::default(), BTreeMap::new());
        for round in 0..20_000_u64 {
            // It grows and shrinks, and most entries come and go in order.
            let grows = round % 4000 < 2000;
            if rng.one_in(3) != grows {
                let order = (Nanos(if rng.one_in(10) { rng.below(round + 1) } else { round }), round);
                let is_first = model.first_key_value().is_none_or(|(first, _)| order < *first);
                assert_eq!(queue.insert(order, RequestSlot(round as u32)), is_first);
                model.insert(order, RequestSlot(round as u32));
            } else if !model.is_empty() {
                let at = if rng.one_in(3) { rng.below(model.len() as u64) as usize } else { 0 };
                let order = *model.keys().nth(at).unwrap();
                model.remove(&order);
                assert_eq!(queue.remove(order), at == 0);
            }
            let first = model.first_key_value().map(|(order, request)| (*order, *request));
            assert_eq!((queue.first(), queue.len(), queue.is_empty()), (first, model.len(), model.is_empty()));
            assert!(queue.removed <= REMOVED_MIN.max(queue.entries.len() / 2));
        }
        assert!(queue.iter().eq(model.values().copied()));
        model.into_keys().for_each(|order| assert!(queue.remove(order)));
        assert!(queue.is_empty() && queue.entries.capacity() <= 2 * KEPT, "an empty queue keeps little memory");
    }
}
