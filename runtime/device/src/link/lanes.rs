//! Lanes in the rings: which compute units serve which queues, and the order of queues.
//!
//! The engine writes these words while the queues concerned are idle; compute units read them. An
//! untrusted process may write them too, but that only changes the order in which it serves its own
//! launches.

use super::{LINE_BYTES, Link, QUEUES_MAX};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// 64-bit words in a queue's mask of compute units.
const MASK_WORDS: u32 = 8;

/// Most compute units that a mask can hold.
pub const UNITS_MAX: u32 = 64 * MASK_WORDS;

/// Per queue: its mask of compute units, then the other words, in one cache line each.
const QUEUE_BYTES: u64 = 2 * LINE_BYTES;
/// The queue's position in its lane, plus one; 0 if it belongs to no open lane.
const PLACE_AT: u64 = LINE_BYTES;
/// Number of compute units that serve it.
const UNITS_AT: u64 = LINE_BYTES + 4;
/// The queues that it stops, one bit each.
const STOPS_AT: u64 = LINE_BYTES + 8;

/// Size of all lane words.
pub(super) const LANES_BYTES: u64 = QUEUES_MAX as u64 * QUEUE_BYTES + LINE_BYTES;
const VERSION_AT: u64 = QUEUES_MAX as u64 * QUEUE_BYTES;

/// The queues that a compute unit serves, most urgent first: the first queues of all its lanes,
/// then the second ones, and so on.
#[derive(Debug, Default)]
pub struct Order {
    version: u32,
    /// Queue indices.
    pub queues: Vec<u32>,
}

impl Link {
    /// Assigns queues to compute units, in the order of their priority; to none if `units` is
    /// empty. With paired queues, the second half of the queues have the positions of the first
    /// half, one to one: neither queue of a pair comes before the other.
    pub fn set_lane(&self, queues: Range<u32>, paired_queues: bool, units: &[u32]) {
        let places = (queues.end - queues.start) / if paired_queues { 2 } else { 1 };
        for queue in queues.clone() {
            for other in 0..self.shape.all_queues() {
                self.clear(queue, other);
                self.clear(other, queue);
            }
            for index in 0..MASK_WORDS {
                let bits =
                    units.iter().filter(|&&unit| unit / 64 == index).fold(0, |bits, unit| bits | 1 << (unit % 64));
                self.mask_word(queue, index).store(bits, SeqCst);
            }
            let place = if units.is_empty() { 0 } else { (queue - queues.start) % places + 1 };
            self.lane_word(queue, PLACE_AT).store(place, SeqCst);
            self.lane_word(queue, UNITS_AT).store(units.len() as u32, SeqCst);
        }
        for queue in 0..self.shape.all_queues() {
            let stopped = (0..self.shape.all_queues()).filter(|&other| self.stops(queue, other));
            let bits = stopped.fold(0, |bits: u64, other| bits | 1 << other);
            self.stops_word(queue).store(bits, SeqCst);
        }
        self.version_word().fetch_add(1, SeqCst);
        self.bell().ring(self.shape.compute_units);
    }

    /// Whether compute units that run blocks of `other` have to stop for `queue`: `queue` is more
    /// urgent, and all compute units of `other` serve it too. Otherwise stopping them would not
    /// help `queue`; its own units check it between chunks or are interrupted.
    fn stops(&self, queue: u32, other: u32) -> bool {
        let serves_both = (0..MASK_WORDS).all(|index| {
            let [mine, theirs] = [queue, other].map(|queue| self.mask_word(queue, index).load(SeqCst));
            theirs & !mine == 0
        });
        self.is_open(queue) && self.outranks(queue, other) && serves_both
    }

    fn is_open(&self, queue: u32) -> bool {
        self.place(queue).is_some()
    }

    fn place(&self, queue: u32) -> Option<u32> {
        self.lane_word(queue, PLACE_AT).load(SeqCst).checked_sub(1)
    }

    /// Whether a queue comes before another one.
    pub(super) fn outranks(&self, queue: u32, other: u32) -> bool {
        matches!((self.place(queue), self.place(other)), (Some(place), Some(others)) if place < others)
    }

    /// The queues that this queue stops.
    pub(super) fn stopped_by(&self, queue: u32) -> impl Iterator<Item = u32> {
        let mut bits = self.stops_word(queue).load(SeqCst);
        std::iter::from_fn(move || {
            let next = bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
            (next < u64::BITS).then_some(next)
        })
    }

    /// Whether a compute unit serves a queue.
    pub fn serves(&self, unit: u32, queue: u32) -> bool {
        self.mask_word(queue, unit / 64).load(SeqCst) & 1 << (unit % 64) != 0
    }

    /// How many compute units serve a queue, at least 1.
    pub fn units_of(&self, queue: u32) -> u32 {
        self.lane_word(queue, UNITS_AT).load(SeqCst).max(1)
    }

    /// Updates the queues that a compute unit serves. Reads one word if nothing has changed.
    pub fn refresh(&self, unit: u32, order: &mut Order) {
        let version = self.version_word().load(SeqCst);
        if order.version == version {
            return;
        }
        order.version = version;
        let mut queues: Vec<u32> =
            (0..self.shape.all_queues()).filter(|&queue| self.is_open(queue) && self.serves(unit, queue)).collect();
        // Each place is read only once, since it may change meanwhile. A change has a new version.
        queues.sort_by_cached_key(|&queue| self.place(queue));
        order.queues = queues;
    }

    /// Wakes `units` compute units for a queue; all of them if some do not serve it, since the bell
    /// cannot choose.
    pub fn wake(&self, queue: u32, units: u32) {
        let all = self.shape.compute_units;
        self.bell().ring(if self.units_of(queue) < all { all } else { units });
    }

    fn mask_word(&self, queue: u32, index: u32) -> &AtomicU64 {
        self.long_word(self.lane_at(queue) + u64::from(index) * 8)
    }

    fn stops_word(&self, queue: u32) -> &AtomicU64 {
        self.long_word(self.lane_at(queue) + STOPS_AT)
    }

    fn lane_word(&self, queue: u32, at: u64) -> &AtomicU32 {
        self.word(self.lane_at(queue) + at)
    }

    fn version_word(&self) -> &AtomicU32 {
        self.word(super::LANES_AT + VERSION_AT)
    }

    fn lane_at(&self, queue: u32) -> u64 {
        super::LANES_AT + u64::from(queue) * QUEUE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkShape;

    /// A link with two queues, 70 compute units and room for lanes.
    fn link() -> Link {
        Link::create(LinkShape { queues: 2, paired_queues: false, lane_queues: 6, capacity: 1, compute_units: 70 })
            .expect("memory")
    }

    fn order(link: &Link, unit: u32) -> Vec<u32> {
        let mut order = Order::default();
        link.refresh(unit, &mut order);
        order.queues
    }

    #[test]
    fn compute_units_serve_the_queues_of_their_lanes_in_order_of_priority() {
        let link = link();
        assert_eq!(order(&link, 69), [0, 1]);
        link.set_lane(2..4, false, &[3, 64, 69]);
        link.set_lane(4..7, false, &[69]);
        assert_eq!(order(&link, 69), [0, 2, 4, 1, 3, 5, 6]);
        assert_eq!(order(&link, 64), [0, 2, 1, 3]);
        assert_eq!(order(&link, 5), [0, 1]);
        assert_eq!([0, 2, 4, 7].map(|queue| link.units_of(queue)), [70, 3, 1, 1]);
        link.set_lane(2..4, false, &[]);
        assert_eq!(order(&link, 69), [0, 4, 1, 5, 6]);
        assert_eq!(order(&link, 64), [0, 1]);
    }

    #[test]
    fn a_queue_stops_those_behind_it_that_all_its_own_units_serve() {
        let link = link();
        link.set_lane(2..4, false, &[3, 64]);
        let stopped = |queue: u32| link.stopped_by(queue).collect::<Vec<_>>();
        assert_eq!(stopped(0), [1, 3], "every lane's units serve the default lane too");
        assert_eq!(stopped(2), [3], "unit 5 does not serve queue 2, so its blocks go on");
        link.set_lane(4..6, false, &[5]);
        assert_eq!((stopped(2), stopped(4)), (vec![3], vec![5]), "disjoint lanes do not stop each other");
    }

    #[test]
    fn paired_queues_leave_each_other_alone() {
        let link =
            Link::create(LinkShape { queues: 2, paired_queues: true, lane_queues: 4, capacity: 1, compute_units: 2 })
                .expect("memory");
        link.set_lane(4..8, true, &[0, 1]);
        assert_eq!(order(&link, 1), [0, 2, 4, 6, 1, 3, 5, 7]);
        let stopped = |queue: u32| link.stopped_by(queue).collect::<Vec<_>>();
        assert_eq!((stopped(0), stopped(2)), (vec![1, 3, 5, 7], vec![1, 3, 5, 7]));
        assert_eq!((stopped(1), stopped(7)), (vec![], vec![]));
    }

    #[test]
    fn a_lane_that_closes_leaves_no_mark() {
        let link = link();
        for _ in 0..1_000 {
            link.set_lane(2..4, false, &[1]);
            link.raise_stop(0);
            link.raise_stop(2);
            assert_eq!(link.stop_word(3).load(SeqCst), 2);
            link.set_lane(2..4, false, &[]);
            assert_eq!([2, 3].map(|queue| link.stop_word(queue).load(SeqCst)), [0, 0]);
            assert_eq!(link.stop_word(1).load(SeqCst), 1, "queue 0 still has something");
        }
        link.clear_stop(0);
        assert_eq!(link.stop_word(1).load(SeqCst), 0);
    }
}
