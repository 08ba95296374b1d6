//! A ring buffer of the latest records.

use crate::record::Record;

/// The position of a record: the number of records that were written before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor(pub u64);

/// A bounded ring that overwrites its oldest record when it is full. It is not synchronized.
#[derive(Debug)]
pub struct Ring {
    records: Vec<Record>,
    capacity: usize,
    count: u64,
}

impl Ring {
    /// An empty ring for `capacity` records. Its memory grows with the records, up to the capacity.
    ///
    /// # Panics
    /// If `capacity` is not a power of two.
    pub fn new(capacity: usize) -> Ring {
        assert!(capacity.is_power_of_two(), "a ring of {capacity} records");
        Ring { records: Vec::new(), capacity, count: 0 }
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        if self.records.len() < self.capacity {
            self.records.push(record);
        } else {
            let at = self.slot(self.count);
            self.records[at] = record;
        }
        self.count += 1;
    }

    /// The position of the next record to be written.
    pub fn end(&self) -> Cursor {
        Cursor(self.count)
    }

    /// The record at a position, or `None` if it was overwritten or not written yet.
    pub fn get(&self, at: Cursor) -> Option<&Record> {
        let is_there = at.0 < self.count && self.count - at.0 <= self.records.len() as u64;
        is_there.then(|| &self.records[self.slot(at.0)])
    }

    /// Reads at most `max` records, starting at `from`. Returns the records, the number of records
    /// from `from` on that were overwritten, and the position of the next record to read.
    pub fn since(&self, from: Cursor, max: usize) -> (Vec<Record>, u64, Cursor) {
        let oldest = self.count - self.records.len() as u64;
        let begin = from.0.clamp(oldest, self.count);
        let end = self.count.min(begin.saturating_add(max as u64));
        let records = (begin..end).map(|at| self.records[self.slot(at)]).collect();
        (records, oldest.saturating_sub(from.0), Cursor(end))
    }

    fn slot(&self, number: u64) -> usize {
        (number & (self.capacity as u64 - 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EventKind;
    use atoll_core::{Nanos, TaskId};

    fn filled(count: u64) -> Ring {
        let mut ring = Ring::new(8);
        (0..count)
            .for_each(|at| ring.push(Record { at: Nanos(at), task: TaskId(0), function: 0, kind: EventKind::Ready }));
        ring
    }

    fn read(ring: &Ring, from: u64, max: usize) -> (Vec<u64>, u64, u64) {
        let (records, lost, next) = ring.since(Cursor(from), max);
        (records.iter().map(|record| record.at.0).collect(), lost, next.0)
    }

    #[test]
    fn a_reader_goes_on_where_it_was() {
        let ring = filled(5);
        assert_eq!(read(&ring, 0, 3), (vec![0, 1, 2], 0, 3));
        assert_eq!(read(&ring, 3, 3), (vec![3, 4], 0, 5));
        assert_eq!(read(&ring, 5, 3), (vec![], 0, 5));
        assert_eq!(read(&ring, u64::MAX, 3), (vec![], 0, 5), "a cursor of another engine");
        assert_eq!((ring.get(Cursor(4)).map(|record| record.at.0), ring.get(Cursor(5))), (Some(4), None));
    }

    #[test]
    fn what_is_overwritten_is_counted() {
        let ring = filled(8 + 5);
        assert_eq!(read(&ring, 2, 99), ((5..13).collect(), 3, 13));
        assert_eq!(read(&ring, 5, 2), (vec![5, 6], 0, 7));
        assert_eq!((ring.get(Cursor(4)), ring.get(Cursor(5)).map(|record| record.at.0)), (None, Some(5)));
    }
}
