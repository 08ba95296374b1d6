//! Indexes of the functions with waiting requests, in the order of a policy.

use super::super::classes::ClassId;
use super::super::state::{Order, State};
use super::super::{FunctionId, RequestId};
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Functions with waiting requests, divided into parts and sorted by a key within each part. `P`
/// contains the properties that restrict the devices, usually the class.
pub(super) struct Heads<P, K> {
    parts: BTreeMap<P, BTreeSet<(K, FunctionId)>>,
    entries: HashMap<FunctionId, (P, K), FixedState>,
}

impl<P, K> Default for Heads<P, K> {
    fn default() -> Heads<P, K> {
        Heads { parts: BTreeMap::new(), entries: HashMap::default() }
    }
}

impl<P: Ord + Copy, K: Ord + Copy> Heads<P, K> {
    /// Sets, changes or removes the entry of a function.
    pub(super) fn set(&mut self, function: FunctionId, entry: Option<(P, K)>) {
        let before = self.entries.get(&function).copied();
        if before == entry {
            return;
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
    }

    /// The first function of each part.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (P, K, FunctionId)> {
        self.parts.iter().map(|(&part, set)| {
            let &(key, function) = set.first().expect("parts are not empty");
            (part, key, function)
        })
    }

    /// The functions of a part, in order.
    pub(super) fn part(&self, part: P) -> impl Iterator<Item = (K, FunctionId)> {
        self.parts.get(&part).into_iter().flatten().copied()
    }

    /// Number of functions with waiting requests.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Functions by class, in the order of arrival of their first requests.
pub(super) type Fifo = Heads<ClassId, Order>;

impl Fifo {
    pub(super) fn update(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(order, _)| (state.function(function).class, order));
        self.set(function, entry);
    }
}

/// The first waiting request of a function that is in an index.
pub(super) fn head_of(state: &State, function: FunctionId) -> RequestId {
    state.head(function).expect("indexes hold functions with waiting requests").1
}
