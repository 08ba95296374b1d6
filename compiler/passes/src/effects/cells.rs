//! What local variables, and the parameters of calls, hold.
//!
//! One value for each place that is always accessed alike, whatever the order of the accesses; for
//! everything else, only what it may point into.

use super::linear::{Linear, RootSet};
use std::collections::HashMap;

/// A variable, by the address of its declaration in the tree.
pub(super) type VariableKey = usize;

/// What one place holds.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The value, `None` once it was several.
    pub(super) value: Option<Linear>,
    pub(super) roots: RootSet,
    /// A number for the atom that stands for several values.
    pub(super) number: usize,
}

/// What a load finds.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// Nothing was stored there yet.
    Nothing,
    /// One value.
    Value(Linear),
    /// Several values: the number of the atom for them, what they point into.
    Several(usize, RootSet),
    /// The place is also accessed in other ways.
    Mixture(RootSet),
}

/// All variables of a thread.
#[derive(Debug, Default)]
pub(super) struct Cells {
    cells: HashMap<VariableKey, HashMap<(i64, u32), Cell>>,
    count: usize,
    /// Variables of which some place is stored to in several ways, and what they may hold.
    torn: HashMap<VariableKey, RootSet>,
    /// What was stored to a variable that is not known: any may hold it.
    anywhere: Option<RootSet>,
    /// What shared memory may hold.
    shared: RootSet,
}

impl Cells {
    /// Stores to a known place; whether anything is news.
    pub(super) fn store(&mut self, place: (VariableKey, i64, u32), value: &Linear, roots: RootSet) -> bool {
        let (variable, offset, width) = place;
        let end = offset.saturating_add(i64::from(width / 8));
        let overlaps =
            |&(o, w): &(i64, u32)| (o, w) != (offset, width) && o < end && offset < o.saturating_add(i64::from(w / 8));
        let mut news = false;
        if self.cells.get(&variable).is_some_and(|own| own.keys().any(overlaps)) {
            news |= self.tear(variable, RootSet::NONE);
        }
        let count = &mut self.count;
        let cell = self.cells.entry(variable).or_default().entry((offset, width)).or_insert_with(|| {
            news = true;
            *count += 1;
            Cell { value: Some(value.clone()), roots, number: *count }
        });
        if cell.value.as_ref().is_some_and(|known| known != value) {
            cell.value = None;
            news = true;
        }
        news |= cell.roots.union(roots) != cell.roots;
        cell.roots = cell.roots.union(roots);
        news
    }

    /// Stores somewhere into a variable.
    pub(super) fn tear(&mut self, variable: VariableKey, roots: RootSet) -> bool {
        let before = self.torn.get(&variable).copied();
        let after = before.unwrap_or_default().union(roots);
        self.torn.insert(variable, after);
        before != Some(after)
    }

    /// Stores into some variable.
    pub(super) fn store_anywhere(&mut self, roots: RootSet) -> bool {
        let after = Some(self.anywhere.unwrap_or_default().union(roots));
        let news = self.anywhere != after;
        self.anywhere = after;
        news
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
        self.torn.contains_key(&variable) || self.cells.contains_key(&variable)
    }

    /// Whether places of a variable are stored to in several ways.
    pub(super) fn is_torn(&self, variable: VariableKey) -> bool {
        self.torn.contains_key(&variable) || self.anywhere.is_some()
    }

    /// What a place holds.
    pub(super) fn load(&self, place: (VariableKey, i64, u32)) -> Held {
        let (variable, offset, width) = place;
        let torn = self.is_torn(variable);
        match self.cells.get(&variable).and_then(|own| own.get(&(offset, width))) {
            Some(cell) if !torn => match &cell.value {
                Some(value) => Held::Value(value.clone()),
                None => Held::Several(cell.number, cell.roots),
            },
            None if !torn && !self.is_written(variable) => Held::Nothing,
            _ => Held::Mixture(self.anything_in(variable)),
        }
    }

    /// What may be found anywhere in a variable.
    pub(super) fn anything_in(&self, variable: VariableKey) -> RootSet {
        let whole = self.cells.get(&variable).into_iter().flatten().map(|(_, cell)| cell.roots);
        let torn = self.torn.get(&variable).copied().unwrap_or_default();
        whole.fold(torn.union(self.anywhere.unwrap_or_default()), RootSet::union)
    }

    /// What may be found in any variable.
    pub(super) fn anything(&self) -> RootSet {
        let torn = self.torn.values().copied().fold(self.anywhere.unwrap_or_default(), RootSet::union);
        self.cells.values().flat_map(HashMap::values).map(|cell| cell.roots).fold(torn, RootSet::union)
    }

    /// The places of a variable that hold something, for passing it on.
    pub(super) fn of_variable(&self, variable: VariableKey) -> Vec<(i64, u32, Cell)> {
        let own = self.cells.get(&variable).into_iter().flatten();
        own.map(|((offset, width), cell)| (*offset, *width, cell.clone())).collect()
    }
}
