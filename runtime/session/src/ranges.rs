//! The memory that exists in a session.

use crate::code::Code;
use std::collections::BTreeMap;

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first address.
    pub at: u64,
    /// Its size.
    pub bytes: u64,
}

impl Span {
    /// The first address after the range; `None` if it is beyond the address space.
    pub fn end(self) -> Option<u64> {
        self.at.checked_add(self.bytes)
    }

    /// Whether `inner` lies inside this range.
    pub fn contains(self, inner: Span) -> bool {
        inner.at >= self.at && inner.end().zip(self.end()).is_some_and(|(inner, outer)| inner <= outer)
    }
}

/// Ranges that do not overlap, each with a value.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges(BTreeMap::new())
    }
}

impl<T> Ranges<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a range. An error if it is empty, wraps around or overlaps another.
    pub(crate) fn insert(&mut self, span: Span, value: T) -> Result<(), Code> {
        let end = span.end().filter(|_| span.bytes > 0).ok_or(Code::INVALID_VALUE)?;
        let before = self.0.range(..end).next_back();
        if before.is_some_and(|(at, (bytes, _))| at + bytes > span.at) {
            return Err(Code::INVALID_VALUE);
        }
        self.0.insert(span.at, (span.bytes, value));
        Ok(())
    }

    /// Removes the range that begins at this address.
    pub(crate) fn remove(&mut self, at: u64) -> Option<(Span, T)> {
        self.0.remove(&at).map(|(bytes, value)| (Span { at, bytes }, value))
    }

    /// The range that contains an address, and its value.
    pub(crate) fn find(&self, at: u64) -> Option<(Span, &T)> {
        let (&start, (bytes, value)) = self.0.range(..=at).next_back()?;
        (at - start < *bytes).then_some((Span { at: start, bytes: *bytes }, value))
    }

    /// Returns an error unless the range lies inside one that exists. An empty range is always
    /// accepted.
    pub(crate) fn check(&self, span: Span) -> Result<(), Code> {
        if span.bytes == 0 || self.find(span.at).is_some_and(|(outer, _)| outer.contains(span)) {
            Ok(())
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    /// First addresses of the ranges whose values satisfy a predicate.
    pub(crate) fn starts(&self, is_meant: impl Fn(&T) -> bool) -> Vec<u64> {
        self.0.iter().filter(|(_, (_, value))| is_meant(value)).map(|(at, _)| *at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_are_found_by_any_address() {
        let mut ranges = Ranges::default();
        let span = |at, bytes| Span { at, bytes };
        ranges.insert(span(100, 10), 'a').expect("a range");
        ranges.insert(span(110, 10), 'b').expect("a range beside it");
        for wrong in [span(95, 6), span(100, 1), span(109, 5), span(0, 1000), span(5, 0), span(u64::MAX, 2)] {
            assert_eq!(ranges.insert(wrong, 'c'), Err(Code::INVALID_VALUE), "{wrong:?}");
        }
        assert_eq!(ranges.find(109), Some((span(100, 10), &'a')));
        assert_eq!(ranges.find(120), None);
        assert_eq!(ranges.check(span(105, 5)), Ok(()));
        for wrong in [span(105, 6), span(99, 2), span(105, u64::MAX)] {
            assert_eq!(ranges.check(wrong), Err(Code::INVALID_VALUE), "{wrong:?}");
        }
        assert_eq!(ranges.remove(105), None);
        assert_eq!(ranges.remove(100), Some((span(100, 10), 'a')));
        assert_eq!(ranges.find(105), None);
    }
}
