//! Which constants kernels of which domain may read. The engine's part of the contract is checked
//! here; what is wrong panics under the engine's feet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Shown {
    /// Memory of constants: where it begins, and its bytes.
    reserved: BTreeMap<u64, u64>,
    /// By domain.
    shown: BTreeMap<String, BTreeSet<u64>>,
    /// What a domain was shown and cannot read yet, and when it will.
    due: BTreeMap<String, (Instant, BTreeSet<u64>)>,
}

impl Shown {
    pub(super) fn reserve(&mut self, at: u64, bytes: u64) {
        let before = self.reserved.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(begin, length)| begin + length <= at), "constants lie in each other");
        self.reserved.insert(at, bytes);
    }

    pub(super) fn release(&mut self, at: u64) {
        assert!(self.reserved.remove(&at).is_some(), "a constant is released that is not there");
        let unseen = self.due.values_mut().map(|(_, unseen)| unseen);
        for places in self.shown.values_mut().chain(unseen) {
            places.remove(&at);
        }
    }

    /// Whether this is a constant's memory.
    pub(super) fn is_reserved(&self, at: u64) -> bool {
        self.reserved.range(..=at).next_back().is_some_and(|(begin, bytes)| at < begin + bytes)
    }

    pub(super) fn show(&mut self, domain: &str, at: &[u64], delay: Duration) {
        assert!(at.iter().all(|at| self.reserved.contains_key(at)), "a constant is shown that is not there");
        let shown = self.shown.entry(domain.into()).or_default();
        let new: BTreeSet<u64> = at.iter().copied().filter(|at| shown.insert(*at)).collect();
        if !new.is_empty() && !delay.is_zero() {
            let (due, unseen) = self.due.entry(domain.into()).or_insert((Instant::now(), BTreeSet::new()));
            *due = Instant::now() + delay;
            unseen.extend(new);
        }
    }

    pub(super) fn hide(&mut self, domain: &str, at: &[u64]) {
        let unseen = self.due.get_mut(domain).map(|(_, unseen)| unseen);
        for places in self.shown.get_mut(domain).into_iter().chain(unseen) {
            places.retain(|place| !at.contains(place));
        }
    }

    pub(super) fn sees(&self, domain: &str) -> bool {
        !self.due.contains_key(domain)
    }

    /// Lets time pass. Returns whether a domain sees more than before.
    pub(super) fn advance(&mut self) -> bool {
        let (before, now) = (self.due.len(), Instant::now());
        self.due.retain(|_, (due, _)| *due > now);
        self.due.len() < before
    }

    /// A launch of a domain reads what is there.
    pub(super) fn check_read(&self, domain: &str, at: u64) {
        let found = self
            .reserved
            .range(..=at)
            .next_back()
            .filter(|(begin, bytes)| at < *begin + *bytes)
            .map(|(begin, _)| begin);
        let is_shown = found.is_some_and(|begin| self.shown.get(domain).is_some_and(|shown| shown.contains(begin)));
        let is_unseen =
            found.is_some_and(|begin| self.due.get(domain).is_some_and(|(_, unseen)| unseen.contains(begin)));
        assert!(is_shown && !is_unseen, "{domain} launches what reads a constant that it cannot see");
    }

    /// How many constants have memory, and how many are shown, to however many domains.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.reserved.len(), self.shown.values().map(BTreeSet::len).sum())
    }
}
