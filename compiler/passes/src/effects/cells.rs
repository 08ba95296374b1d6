//! Contents of local variables and of call parameters.
//!
//! A place that is always accessed at the same offset and width has one known value, independent of
//! the order of the accesses. For all other places only the possible pointer targets are known.

use super::linear::{Linear, RootSet};
use std::collections::HashMap;

/// A variable, by the address of its declaration in the tree.
pub(super) type VariableKey = usize;

/// The contents of one place.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The value; `None` after different values were stored.
    pub(super) value: Option<Linear>,
    pub(super) roots: RootSet,
    /// Number of the atom that stands for several values.
    pub(super) number: usize,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// Nothing has been stored there yet.
    Nothing,
    /// One value.
    Value(Linear),
    /// Several values: number of their atom, and possible pointer targets.
    Several(usize, RootSet),
    /// No single value is known: accesses to the variable overlap, or only its other places were
    /// stored to.
    Mixture(RootSet),
}

/// All variables of a thread.
#[derive(Debug, Default)]
pub(super) struct Cells {
    cells: HashMap<VariableKey, HashMap<(i64, u32), Cell>>,
    count: usize,
    /// Variables with overlapping accesses of different extent, and their possible pointer targets.
    inconsistent: HashMap<VariableKey, RootSet>,
    /// Possible pointer targets stored to an unknown variable; every variable may hold them.
    anywhere: Option<RootSet>,
    /// Possible pointer targets in shared memory.
    shared: RootSet,
}

impl Cells {
    /// Stores to a known place; returns whether anything changed.
    pub(super) fn store(&mut self, place: (VariableKey, i64, u32), value: &Linear, roots: RootSet) -> bool {
        let (variable, offset, width) = place;
        let end = offset.saturating_add(i64::from(width / 8));
        let overlaps =
            |&(o, w): &(i64, u32)| (o, w) != (offset, width) && o < end && offset < o.saturating_add(i64::from(w / 8));
        let mut changed = false;
        if self.cells.get(&variable).is_some_and(|own| own.keys().any(overlaps)) {
            changed |= self.mark_inconsistent(variable, RootSet::NONE);
        }
        let count = &mut self.count;
        let cell = self.cells.entry(variable).or_default().entry((offset, width)).or_insert_with(|| {
            changed = true;
            *count += 1;
            Cell { value: Some(value.clone()), roots, number: *count }
        });
        if cell.value.as_ref().is_some_and(|known| known != value) {
            cell.value = None;
            changed = true;
        }
        changed |= cell.roots.union(roots) != cell.roots;
        cell.roots = cell.roots.union(roots);
        changed
    }

    /// Stores to an unknown place of a variable; returns whether anything changed.
    pub(super) fn mark_inconsistent(&mut self, variable: VariableKey, roots: RootSet) -> bool {
        let before = self.inconsistent.get(&variable).copied();
        let after = before.unwrap_or_default().union(roots);
        self.inconsistent.insert(variable, after);
        before != Some(after)
    }

    /// Stores to an unknown variable; returns whether anything changed.
    pub(super) fn store_anywhere(&mut self, roots: RootSet) -> bool {
        let after = Some(self.anywhere.unwrap_or_default().union(roots));
        let changed = self.anywhere != after;
        self.anywhere = after;
        changed
    }

    pub(super) fn store_shared(&mut self, roots: RootSet) -> bool {
        let before = self.shared;
        self.shared = before.union(roots);
        before != self.shared
    }

    pub(super) fn shared(&self) -> RootSet {
        self.shared
    }

    /// Whether anything was stored into a variable.
    pub(super) fn is_written(&self, variable: VariableKey) -> bool {
        self.inconsistent.contains_key(&variable) || self.cells.contains_key(&variable)
    }

    /// Whether a variable has overlapping accesses of different extent, or may be the target of a
    /// store to an unknown variable.
    pub(super) fn is_inconsistent(&self, variable: VariableKey) -> bool {
        self.inconsistent.contains_key(&variable) || self.anywhere.is_some()
    }

    /// The contents of a place.
    pub(super) fn load(&self, place: (VariableKey, i64, u32)) -> Contents {
        let (variable, offset, width) = place;
        let inconsistent = self.is_inconsistent(variable);
        match self.cells.get(&variable).and_then(|own| own.get(&(offset, width))) {
            Some(cell) if !inconsistent => match &cell.value {
                Some(value) => Contents::Value(value.clone()),
                None => Contents::Several(cell.number, cell.roots),
            },
            None if !inconsistent && !self.is_written(variable) => Contents::Nothing,
            _ => Contents::Mixture(self.anything_in(variable)),
        }
    }

    /// Possible pointer targets anywhere in a variable.
    pub(super) fn anything_in(&self, variable: VariableKey) -> RootSet {
        let whole = self.cells.get(&variable).into_iter().flatten().map(|(_, cell)| cell.roots);
        let inconsistent = self.inconsistent.get(&variable).copied().unwrap_or_default();
        whole.fold(inconsistent.union(self.anywhere.unwrap_or_default()), RootSet::union)
    }

    /// Possible pointer targets in any variable.
    pub(super) fn anything(&self) -> RootSet {
        let inconsistent = self.inconsistent.values().copied().fold(self.anywhere.unwrap_or_default(), RootSet::union);
        self.cells.values().flat_map(HashMap::values).map(|cell| cell.roots).fold(inconsistent, RootSet::union)
    }

    /// The places of a variable that were stored to; used when it is passed to a call.
    pub(super) fn of_variable(&self, variable: VariableKey) -> Vec<(i64, u32, Cell)> {
        let own = self.cells.get(&variable).into_iter().flatten();
        own.map(|((offset, width), cell)| (*offset, *width, cell.clone())).collect()
    }
}
