//! Indexes of the functions with waiting requests, in the order of a policy.

use super::super::classes::ClassId;
use super::super::id_table::IdTable;
use super::super::requests::Order;
use super::super::state::State;
use super::super::{FunctionId, GroupId};
use std::collections::{BTreeMap, BTreeSet};

/// Functions with waiting requests, divided into parts and sorted by a key within each part. `P`
/// contains the properties that restrict the devices, usually the class.
pub(super) struct Heads<P, K> {
    parts: BTreeMap<P, BTreeSet<(K, FunctionId)>>,
    entries: IdTable<FunctionId, (P, K)>,
}

impl<P, K> Default for Heads<P, K> {
    fn default() -> Heads<P, K> {
        Heads { parts: BTreeMap::new(), entries: IdTable::default() }
    }
}

impl<P: Ord + Copy, K: Ord + Copy> Heads<P, K> {
    /// Sets, changes or removes the entry of a function.
    pub(super) fn set(&mut self, function: FunctionId, entry: Option<(P, K)>) {
        let before = self.entries.get(function).copied();
        if before == entry {
            return;
        }
        match entry {
            Some(entry) => self.entries.insert(function, entry),
            None => _ = self.entries.remove(function),
        }
        if let Some((part, key)) = before {
            let set = self.parts.get_mut(&part).expect("the part of an entry exists");
            set.remove(&(key, function));
            match entry {
                // The part does not become empty.
                Some((after, key)) if after == part => {
                    set.insert((key, function));
                    return;
                }
                _ if set.is_empty() => _ = self.parts.remove(&part),
                _ => {}
            }
        }
        if let Some((part, key)) = entry {
            self.parts.entry(part).or_default().insert((key, function));
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
        self.set(function, state.head(function).map(|(head, order)| (head.class, order)));
    }
}

/// Functions with waiting requests by group and class, in the order of arrival of their first
/// requests.
#[derive(Default)]
pub(super) struct ByGroup {
    /// The parts of each group with waiting requests, by ascending class. Most groups have one.
    groups: IdTable<GroupId, Vec<Part>>,
    entries: IdTable<FunctionId, Entry>,
    parts: usize,
}

/// Functions of a group and a class; not empty.
struct Part {
    class: ClassId,
    functions: BTreeSet<(Order, FunctionId)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    group: GroupId,
    class: ClassId,
    order: Order,
}

/// The first functions of a part before and after an update.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) group: GroupId,
    pub(super) class: ClassId,
    pub(super) before: Option<FunctionId>,
    pub(super) first: Option<(Order, FunctionId)>,
}

impl Part {
    fn first(&self) -> (Order, FunctionId) {
        *self.functions.first().expect("parts are not empty")
    }
}

impl ByGroup {
    /// Updates the entry of a function. Returns the change of its part before, and of its part now
    /// if it is another one.
    pub(super) fn update(&mut self, state: &State, function: FunctionId) -> [Option<Change>; 2] {
        let head = state.head(function);
        let entry = head.map(|(head, order)| Entry { group: head.group, class: head.class, order });
        let before = self.entries.get(function).copied();
        match entry {
            Some(entry) => self.entries.insert(function, entry),
            None => _ = self.entries.remove(function),
        }
        match (before, entry) {
            (Some(before), Some(entry)) if (before.group, before.class) == (entry.group, entry.class) => {
                [Some(self.change(entry.group, entry.class, function, Some(before.order), Some(entry.order))), None]
            }
            _ => [
                before.map(|entry| self.change(entry.group, entry.class, function, Some(entry.order), None)),
                entry.map(|entry| self.change(entry.group, entry.class, function, None, Some(entry.order))),
            ],
        }
    }

    /// Changes the position of a function in a part.
    fn change(
        &mut self,
        group: GroupId,
        class: ClassId,
        function: FunctionId,
        from: Option<Order>,
        to: Option<Order>,
    ) -> Change {
        let parts = self.groups.get_or_default(group);
        let at = parts.binary_search_by_key(&class, |part| part.class).unwrap_or_else(|at| {
            parts.insert(at, Part { class, functions: BTreeSet::new() });
            self.parts += 1;
            at
        });
        let functions = &mut parts[at].functions;
        let before = functions.first().map(|(_, function)| *function);
        if from != to {
            from.into_iter().for_each(|order| _ = functions.remove(&(order, function)));
            to.into_iter().for_each(|order| _ = functions.insert((order, function)));
        }
        let first = functions.first().copied();
        if first.is_none() {
            parts.remove(at);
            self.parts -= 1;
            if parts.is_empty() {
                self.groups.remove(group);
            }
        }
        Change { group, class, before, first }
    }

    /// The first function of each part.
    pub(super) fn firsts(&self) -> impl Iterator<Item = (GroupId, ClassId, Order, FunctionId)> {
        self.groups.iter().flat_map(|(group, parts)| {
            parts.iter().map(move |part| {
                let (order, function) = part.first();
                (group, part.class, order, function)
            })
        })
    }

    /// The parts of a group, each with its first function.
    pub(super) fn of_group(&self, group: GroupId) -> impl Iterator<Item = (ClassId, Order, FunctionId)> {
        self.groups.get(group).into_iter().flatten().map(|part| {
            let (order, function) = part.first();
            (part.class, order, function)
        })
    }

    /// Number of parts.
    pub(super) fn parts(&self) -> usize {
        self.parts
    }
}
