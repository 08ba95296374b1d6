//! Indexes of the functions with waiting requests, in the order of a policy.

use super::super::classes::ClassId;
use super::super::state::{Order, State};
use super::super::{FunctionId, GroupId};
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// Functions with waiting requests, divided into parts and sorted by a key within each part. `P`
/// contains the properties that restrict the devices, usually the class. `I` is what is sorted; it
/// may also be the parts of another index.
pub(super) struct Heads<P, K, I = FunctionId> {
    parts: BTreeMap<P, BTreeSet<(K, I)>>,
    entries: HashMap<I, (P, K), FixedState>,
}

impl<P, K, I> Default for Heads<P, K, I> {
    fn default() -> Heads<P, K, I> {
        Heads { parts: BTreeMap::new(), entries: HashMap::default() }
    }
}

impl<P: Ord + Copy, K: Ord + Copy, I: Ord + Copy + Hash> Heads<P, K, I> {
    /// Sets, changes or removes the entry of a function. Returns the entry before.
    pub(super) fn set(&mut self, function: I, entry: Option<(P, K)>) -> Option<(P, K)> {
        let before = self.entries.get(&function).copied();
        if before == entry {
            return before;
        }
        if let Some((part, key)) = before {
            let set = self.parts.get_mut(&part).expect("the part of an entry exists");
            set.remove(&(key, function));
            if set.is_empty() {
                self.parts.remove(&part);
            }
        }
        match entry {
            Some((part, key)) => {
                self.parts.entry(part).or_default().insert((key, function));
                self.entries.insert(function, (part, key));
            }
            None => {
                self.entries.remove(&function);
            }
        }
        before
    }

    /// The first function of each part.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (P, K, I)> {
        self.parts.iter().map(|(&part, set)| {
            let &(key, function) = set.first().expect("parts are not empty");
            (part, key, function)
        })
    }

    /// The functions of a part, in order.
    pub(super) fn part(&self, part: P) -> impl Iterator<Item = (K, I)> {
        self.parts.get(&part).into_iter().flatten().copied()
    }

    /// Number of parts.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The part of a function with waiting requests.
    pub(super) fn part_of(&self, function: I) -> Option<P> {
        self.entries.get(&function).map(|(part, _)| *part)
    }

    /// Number of functions with waiting requests.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Functions by group and class, in the order of arrival of their first requests.
pub(super) type ByGroup = Heads<(GroupId, ClassId), Order>;

impl ByGroup {
    /// Updates the entry of a function. Returns its part before, and its part now if it is another
    /// one.
    pub(super) fn update_group(&mut self, state: &State, function: FunctionId) -> [Option<(GroupId, ClassId)>; 2] {
        let entry = state.head(function).map(|(head, order)| ((head.group, head.class), order));
        let before = self.set(function, entry).map(|(part, _)| part);
        let after = entry.map(|(part, _)| part);
        [before, after.filter(|_| after != before)]
    }

    /// The parts of a group, each with its first function.
    pub(super) fn of_group(&self, group: GroupId) -> impl Iterator<Item = (ClassId, Order, FunctionId)> {
        self.parts.range((group, 0)..=(group, ClassId::MAX)).map(|(&(_, class), set)| {
            let &(order, function) = set.first().expect("parts are not empty");
            (class, order, function)
        })
    }
}

/// Functions by class, in the order of arrival of their first requests.
pub(super) type Fifo = Heads<ClassId, Order>;

impl Fifo {
    pub(super) fn update(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(head, order)| (head.class, order));
        self.set(function, entry);
    }
}
