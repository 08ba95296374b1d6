//! Tracks which constants each domain may read, and checks the engine's part of the contract; a
//! violation panics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct MappedConstants {
    /// Memory of constants: offset and bytes.
    reserved: BTreeMap<u64, u64>,
    /// Mapped constants, by domain.
    mapped: BTreeMap<String, BTreeSet<u64>>,
    /// Constants of a domain that are not readable yet, and when they will be.
    due: BTreeMap<String, (Instant, BTreeSet<u64>)>,
}

impl MappedConstants {
    pub(super) fn reserve(&mut self, at: u64, bytes: u64) {
        let before = self.reserved.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(begin, length)| begin + length <= at), "constants overlap");
        self.reserved.insert(at, bytes);
    }

    pub(super) fn release(&mut self, at: u64) {
        assert!(self.reserved.remove(&at).is_some(), "an unreserved constant is released");
        let unmapped = self.due.values_mut().map(|(_, unmapped)| unmapped);
        for places in self.mapped.values_mut().chain(unmapped) {
            places.remove(&at);
        }
    }

    /// Whether an offset is in a constant's memory.
    pub(super) fn is_reserved(&self, at: u64) -> bool {
        self.reserved.range(..=at).next_back().is_some_and(|(begin, bytes)| at < begin + bytes)
    }

    pub(super) fn show(&mut self, domain: &str, at: &[u64], delay: Duration) {
        assert!(at.iter().all(|at| self.reserved.contains_key(at)), "an unreserved constant is mapped");
        let mapped = self.mapped.entry(domain.into()).or_default();
        let new: BTreeSet<u64> = at.iter().copied().filter(|at| mapped.insert(*at)).collect();
        if !new.is_empty() && !delay.is_zero() {
            let (due, unmapped) = self.due.entry(domain.into()).or_insert((Instant::now(), BTreeSet::new()));
            *due = Instant::now() + delay;
            unmapped.extend(new);
        }
    }

    pub(super) fn hide(&mut self, domain: &str, at: &[u64]) {
        let unmapped = self.due.get_mut(domain).map(|(_, unmapped)| unmapped);
        for places in self.mapped.get_mut(domain).into_iter().chain(unmapped) {
            places.retain(|place| !at.contains(place));
        }
    }

    pub(super) fn sees(&self, domain: &str) -> bool {
        !self.due.contains_key(domain)
    }

    /// Lets time pass. Returns whether a domain can read more than before.
    pub(super) fn advance(&mut self) -> bool {
        let (before, now) = (self.due.len(), Instant::now());
        self.due.retain(|_, (due, _)| *due > now);
        self.due.len() < before
    }

    /// Checks that a launch of a domain may read a constant.
    pub(super) fn check_read(&self, domain: &str, at: u64) {
        let found = self
            .reserved
            .range(..=at)
            .next_back()
            .filter(|(begin, bytes)| at < *begin + *bytes)
            .map(|(begin, _)| begin);
        let is_mapped = found.is_some_and(|begin| self.mapped.get(domain).is_some_and(|mapped| mapped.contains(begin)));
        let is_unmapped =
            found.is_some_and(|begin| self.due.get(domain).is_some_and(|(_, unmapped)| unmapped.contains(begin)));
        assert!(is_mapped && !is_unmapped, "{domain} launches a kernel that reads an unmapped constant");
    }

    /// Number of reserved constants, and of mappings of constants into domains.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.reserved.len(), self.mapped.values().map(BTreeSet::len).sum())
    }
}
