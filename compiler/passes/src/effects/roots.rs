//! Roots: the objects that pointers point into.

use super::cells::VariableKey;
use super::linear::{AtomId, Atoms, Linear, RootSet};
use atoll_ptx::Name;

/// An object in memory that pointers are derived from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// The buffer behind a pointer in a kernel parameter.
    Param {
        /// Position in the parameter list.
        index: usize,
        /// Byte offset of the pointer within the parameter; nonzero only in a structure.
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

/// Parameters of the kernel and of calls: memory of the thread.
const PARAMETERS: usize = 0;
/// Limit on the variables that get roots of their own; the remaining roots are reserved for
/// parameters that turn out to be pointers.
const VARIABLES_MAX: usize = 96;
/// Poison: a value that is computed from pointers but is not a valid pointer, such as the sum of
/// two. Also stands for all variables beyond [`VARIABLES_MAX`].
const MIXED: usize = RootSet::ROOTS_MAX - 1;

/// All roots of a kernel, and the set of roots that are certainly pointers.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    roots: Vec<Place>,
    pointers: RootSet,
    /// Memory visible only to the block or thread itself: shared, local, parameters.
    private: RootSet,
    constant: RootSet,
}

/// One root.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Parameters,
    /// A root that a caller can name.
    Outside(Root),
    /// A shared, local or constant variable, by its key.
    Variable(VariableKey),
}

impl Roots {
    pub(super) fn new() -> Roots {
        let private = RootSet::of(PARAMETERS);
        Roots {
            roots: vec![Place::Parameters],
            pointers: private.union(RootSet::of(MIXED)),
            private,
            constant: RootSet::NONE,
        }
    }

    /// The set of one root.
    pub(super) fn intern(&mut self, root: Root) -> RootSet {
        self.intern_place(Place::Outside(root))
    }

    fn intern_place(&mut self, place: Place) -> RootSet {
        let known = self.roots.iter().position(|r| *r == place);
        let index = known.unwrap_or_else(|| {
            self.roots.push(place);
            self.roots.len() - 1
        });
        if index < MIXED { RootSet::of(index) } else { RootSet::UNKNOWN }
    }

    /// The set of the parameters.
    pub(super) fn parameters() -> RootSet {
        RootSet::of(PARAMETERS)
    }

    /// The set of one variable in shared, local or constant memory. Beyond the limit one root
    /// stands for all other variables. The root is marked as a pointer.
    pub(super) fn intern_variable(&mut self, variable: VariableKey, is_constant: bool) -> RootSet {
        let known = self.roots.contains(&Place::Variable(variable));
        let has_room = known || self.roots.len() < VARIABLES_MAX;
        let set = if has_room { self.intern_place(Place::Variable(variable)) } else { RootSet::of(MIXED) };
        if has_room {
            self.pointers = self.pointers.union(set);
            let kind = if is_constant { &mut self.constant } else { &mut self.private };
            *kind = kind.union(set);
        }
        set
    }

    /// The root with an index, if a caller can name it.
    pub(super) fn get(&self, index: usize) -> Option<&Root> {
        match self.roots.get(index)? {
            Place::Outside(root) => Some(root),
            _ => None,
        }
    }

    /// The variable of a set, if it has exactly one element.
    pub(super) fn variable(&self, set: RootSet) -> Option<VariableKey> {
        match self.roots.get(set.iter().next()?)? {
            Place::Variable(variable) if set.is_single() => Some(*variable),
            _ => None,
        }
    }

    /// The module's variable of a set, if it has exactly one element.
    pub(super) fn module_variable(&self, set: RootSet) -> Option<&Name> {
        match self.roots.get(set.iter().next()?)? {
            Place::Outside(Root::Variable(name)) if set.is_single() => Some(name),
            _ => None,
        }
    }

    /// Records that a root is a pointer and not an integer; returns whether that is new.
    pub(super) fn mark_pointer(&mut self, set: RootSet) -> bool {
        let before = self.pointers;
        self.pointers = before.union(set.intersection(RootSet::of(MIXED).union(RootSet::UNKNOWN).complement()));
        before != self.pointers
    }

    /// The roots of a sum. An integer added to a pointer stays within the pointer's root; the sum
    /// of two pointers has none.
    pub(super) fn of_sum(&self, atoms: &Atoms, sum: &Linear) -> RootSet {
        let rooted = || {
            sum.terms()
                .iter()
                .map(|&(atom, c)| (atoms.get(atom).roots, sum.signed(c)))
                .filter(|(roots, _)| !roots.is_empty())
        };
        let pointers: Vec<(RootSet, i64)> = rooted().filter(|(roots, _)| self.has_pointer(*roots)).collect();
        match self.of_pointers(&pointers) {
            Some(set) => set,
            // Parameters and loaded values may be integers; values with a factor certainly are.
            None => rooted()
                .filter(|(roots, c)| *c == 1 && !self.has_pointer(*roots))
                .fold(RootSet::NONE, |all, (roots, _)| all.union(roots)),
        }
    }

    /// The roots of a sum of pointers; `None` if there are none or they cancel out.
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

    /// The roots of the result of an operation, from the roots of its operands.
    pub(super) fn of_operands(&self, operands: impl Iterator<Item = RootSet> + Clone) -> RootSet {
        let mut pointers = operands.clone().filter(|set| self.has_pointer(*set));
        match pointers.next() {
            None => operands.fold(RootSet::NONE, RootSet::union),
            Some(first) if pointers.all(|other| other == first) => first,
            Some(_) => RootSet::of(MIXED),
        }
    }

    fn has_pointer(&self, set: RootSet) -> bool {
        !set.intersection(self.pointers).is_empty()
    }

    /// Whether a set contains only memory of the block itself.
    pub(super) fn is_private(&self, set: RootSet) -> bool {
        !set.is_empty() && set.is_subset_of(self.private)
    }

    /// Whether a set contains memory of the block itself, or a poisoned value.
    pub(super) fn may_be_private(&self, set: RootSet) -> bool {
        !set.intersection(self.private.union(RootSet::of(MIXED))).is_empty()
    }

    /// Whether a root is memory of the block itself.
    pub(super) fn is_private_root(&self, root: usize) -> bool {
        RootSet::of(root).is_subset_of(self.private)
    }

    /// Whether a root is constant memory.
    pub(super) fn is_constant_root(&self, root: usize) -> bool {
        RootSet::of(root).is_subset_of(self.constant)
    }

    /// The roots an address may point into; `None` if it may point anywhere.
    pub(super) fn targets(&self, set: RootSet) -> Option<Vec<usize>> {
        let known = !set.is_empty() && !set.is_unknown() && set.intersection(RootSet::of(MIXED)).is_empty();
        known.then(|| set.iter().collect())
    }
}

/// The atom of the address of a variable, if an address is based on exactly one variable; with the
/// offset if it is known.
pub(super) fn variable_atom(address: &Linear, is_variable: impl Fn(AtomId) -> bool) -> Option<(AtomId, Option<i64>)> {
    let mut variables = address.terms().iter().filter(|(atom, _)| is_variable(*atom));
    match (variables.next(), variables.next()) {
        (Some(&(atom, 1)), None) => {
            Some((atom, (address.terms().len() == 1).then(|| address.signed(address.offset()))))
        }
        _ => None,
    }
}
