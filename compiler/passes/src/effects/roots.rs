//! What pointers point into.

use super::linear::{AtomId, Atoms, Linear, RootSet};
use atoll_ptx::Name;

/// Something that holds bytes, and that a pointer is derived from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// Whatever the pointer in this kernel parameter points to: the parameter's position, and the byte offset of the pointer in it where the
    /// parameter is a structure.
    Param {
        /// Position in the parameter list.
        index: usize,
        /// Byte offset of the pointer within the parameter.
        offset: u32,
        /// The parameter's name.
        name: Name,
    },
    /// A `.global` variable of the module.
    Variable(Name),
}

impl std::fmt::Display for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Root::Param { name, offset: 0, .. } => write!(f, "%{name}"),
            Root::Param { name, offset, .. } => write!(f, "%{name}+{offset}"),
            Root::Variable(name) => f.write_str(name),
        }
    }
}

/// Memory that only the block or thread itself sees: shared, local, parameters.
pub(super) const PRIVATE: usize = 0;
/// Constant memory.
pub(super) const CONSTANT: usize = 1;
/// The sum of two pointers, or something else that is none: poison.
const MIXED: usize = RootSet::ROOTS_MAX - 1;

/// All roots of a kernel, and which of them are pointers for sure.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    roots: Vec<Option<Root>>,
    declared: RootSet,
}

impl Roots {
    pub(super) fn new() -> Roots {
        let declared = RootSet::of(PRIVATE).union(RootSet::of(CONSTANT)).union(RootSet::of(MIXED));
        Roots { roots: vec![None, None], declared }
    }

    /// The set of one root.
    pub(super) fn intern(&mut self, root: Root) -> RootSet {
        let known = self.roots.iter().position(|r| r.as_ref() == Some(&root));
        let index = known.unwrap_or_else(|| {
            self.roots.push(Some(root));
            self.roots.len() - 1
        });
        if index < MIXED { RootSet::of(index) } else { RootSet::UNKNOWN }
    }

    pub(super) fn get(&self, index: usize) -> Option<&Root> {
        self.roots.get(index)?.as_ref()
    }

    /// Learns that a root is a pointer and not a number; whether that is news.
    pub(super) fn declare(&mut self, set: RootSet) -> bool {
        let before = self.declared;
        self.declared = before.union(set.intersection(RootSet::of(MIXED).union(RootSet::UNKNOWN).complement()));
        before != self.declared
    }

    /// What a sum points into. A number added to a pointer stays within what it points into; two pointers make none.
    pub(super) fn of_sum(&self, atoms: &Atoms, sum: &Linear) -> RootSet {
        let rooted = || sum.terms().iter().map(|&(atom, c)| (atoms.get(atom).roots, sum.signed(c))).filter(|(roots, _)| !roots.is_empty());
        let pointers: Vec<(RootSet, i64)> = rooted().filter(|(roots, _)| self.has_pointer(*roots)).collect();
        match self.of_pointers(&pointers) {
            Some(set) => set,
            // Parameters and loaded values may be numbers as well; scaled ones are.
            None => {
                rooted().filter(|(roots, c)| *c == 1 && !self.has_pointer(*roots)).fold(RootSet::NONE, |all, (roots, _)| all.union(roots))
            }
        }
    }

    /// What a sum of pointers points into, `None` where there are none or they cancel out.
    fn of_pointers(&self, pointers: &[(RootSet, i64)]) -> Option<RootSet> {
        match pointers {
            [] => None,
            [(set, 1)] => Some(*set),
            _ if pointers.iter().all(|(set, _)| set.is_single() && *set != RootSet::of(MIXED)) => {
                let mut sums: Vec<(RootSet, i64)> = Vec::new();
                for &(set, c) in pointers {
                    match sums.iter_mut().find(|(s, _)| *s == set) {
                        Some((_, sum)) => *sum += c,
                        None => sums.push((set, c)),
                    }
                }
                sums.retain(|(_, sum)| *sum != 0);
                match sums.as_slice() {
                    [] => None,
                    [(set, 1)] => Some(*set),
                    _ => Some(RootSet::of(MIXED)),
                }
            }
            _ => Some(RootSet::of(MIXED)),
        }
    }

    /// What the result of an operation on values that point into these may point into.
    pub(super) fn of_operands(&self, operands: impl Iterator<Item = RootSet> + Clone) -> RootSet {
        let mut pointers = operands.clone().filter(|set| self.has_pointer(*set));
        match pointers.next() {
            None => operands.fold(RootSet::NONE, RootSet::union),
            Some(first) if pointers.all(|other| other == first) => first,
            Some(_) => RootSet::of(MIXED),
        }
    }

    fn has_pointer(&self, set: RootSet) -> bool {
        !set.intersection(self.declared).is_empty()
    }

    /// Whether a set holds nothing but memory of the block itself.
    pub(super) fn is_private(set: RootSet) -> bool {
        !set.is_empty() && set.is_subset_of(RootSet::of(PRIVATE))
    }

    /// The roots an address may point into; `None` where it may point anywhere.
    pub(super) fn targets(&self, set: RootSet) -> Option<Vec<usize>> {
        let known = !set.is_empty() && !set.is_unknown() && set.intersection(RootSet::of(MIXED)).is_empty();
        known.then(|| set.iter().collect())
    }
}

/// The atom of an address, where the address is that of one variable, with a known or unknown offset.
pub(super) fn variable_atom(address: &Linear, is_variable: impl Fn(AtomId) -> bool) -> Option<(AtomId, Option<i64>)> {
    let mut variables = address.terms().iter().filter(|(atom, _)| is_variable(*atom));
    match (variables.next(), variables.next()) {
        (Some(&(atom, 1)), None) => Some((atom, (address.terms().len() == 1).then(|| address.signed(address.offset())))),
        _ => None,
    }
}
