//! Integers as linear sums: the form in which the analyses represent addresses before a launch.
//!
//! A [`Linear`] of width `w` is `constant + Σ coefficient · atom` modulo 2ʷ, exactly. An *atom* is
//! an opaque value: a parameter, a special register, the result of a non-linear operation, a
//! register with several definitions. Atoms are interned: the same operation on the same operands
//! is the same atom. The [`Class`] of an atom says whether its value may differ between threads,
//! and whether it may change over time.

use std::collections::HashMap;

/// Limit on the terms of a sum; a longer sum becomes an atom. Addresses have three or four.
const TERMS_MAX: usize = 12;

/// Limit on the atoms of a kernel: a megabyte of PTX has some ten thousand.
pub(crate) const ATOMS_MAX: usize = 1 << 20;

/// Index of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AtomId(u32);

/// Whether a value may differ between threads, and whether it may change over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Equal in all threads of a block, and constant while the block runs.
    Stable,
    /// Differs between threads; constant while the thread runs.
    Thread,
    /// Changes while the thread runs.
    Changing,
}

/// A set of roots that a pointer may point into, by index; see [`super::roots`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RootSet(u128);

impl RootSet {
    /// Number of distinguishable roots. All others are [`RootSet::UNKNOWN`].
    pub(crate) const ROOTS_MAX: usize = 127;
    /// Any memory.
    pub(crate) const UNKNOWN: RootSet = RootSet(1 << 127);
    /// Not a pointer.
    pub(crate) const NONE: RootSet = RootSet(0);

    pub(crate) fn of(root: usize) -> RootSet {
        if root < Self::ROOTS_MAX { RootSet(1 << root) } else { Self::UNKNOWN }
    }

    pub(crate) fn union(self, other: RootSet) -> RootSet {
        RootSet(self.0 | other.0)
    }

    pub(crate) fn intersection(self, other: RootSet) -> RootSet {
        RootSet(self.0 & other.0)
    }

    pub(crate) fn complement(self) -> RootSet {
        RootSet(!self.0)
    }

    pub(crate) fn without_unknown(self) -> RootSet {
        self.intersection(Self::UNKNOWN.complement())
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_unknown(self) -> bool {
        self.0 >> 127 == 1
    }

    pub(crate) fn is_single(self) -> bool {
        self.0.count_ones() == 1
    }

    pub(crate) fn is_subset_of(self, other: RootSet) -> bool {
        self.0 & !other.0 == 0
    }

    /// The indices in the set, without [`RootSet::UNKNOWN`].
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::ROOTS_MAX).filter(move |&root| self.0 >> root & 1 == 1)
    }
}

/// The identity of an atom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AtomKey {
    /// Bytes of a kernel parameter: parameter index, byte offset in it, width in bits.
    Param(usize, i64, u32),
    /// The address of a variable, by its root.
    Address(usize),
    /// A special register.
    Special(String),
    /// The result of an operation that depends only on its operands.
    Pure(String, Vec<Linear>),
    /// A register with several definitions: function, register.
    Register(usize, usize),
    /// Contents of memory of the thread or block, by a unique number.
    Cell(usize),
    /// The n-th result of a statement that reads memory or values of other threads: function,
    /// statement, n.
    Result(usize, usize, usize),
}

/// What is known about an atom.
#[derive(Clone, Debug)]
pub(crate) struct Atom {
    pub(crate) key: AtomKey,
    pub(crate) class: Class,
    /// Smallest and largest value, if known.
    pub(crate) range: Option<(i64, i64)>,
    /// The roots it may point into, if it is a pointer.
    pub(crate) roots: RootSet,
    /// For a sign- or zero-extended integer: the narrow value. Both have the same low bits.
    pub(crate) narrow: Option<Linear>,
    /// For a register that is advanced in steps: its start value, and a divisor of all its steps.
    pub(crate) stride: Option<(Linear, u64)>,
}

/// A sum of atoms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Linear {
    width: u32,
    constant: u64,
    /// Sorted by atom; no coefficient is 0 modulo 2ʷ.
    terms: Vec<(AtomId, u64)>,
}

/// All atoms of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    atoms: Vec<Atom>,
    ids: HashMap<AtomKey, AtomId>,
}

impl Atoms {
    pub(crate) fn get(&self, id: AtomId) -> &Atom {
        &self.atoms[id.0 as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.atoms.len()
    }

    /// The atom with a key; `describe` is called once, when the atom is created.
    pub(crate) fn intern(&mut self, key: AtomKey, describe: impl FnOnce() -> (Class, Option<(i64, i64)>)) -> AtomId {
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let id = AtomId(self.atoms.len() as u32);
        let (class, range) = describe();
        self.atoms.push(Atom { key: key.clone(), class, range, roots: RootSet::NONE, narrow: None, stride: None });
        self.ids.insert(key, id);
        id
    }

    /// Extends the roots that an atom may point into; returns whether anything changed.
    pub(crate) fn add_roots(&mut self, id: AtomId, roots: RootSet) -> bool {
        let known = &mut self.atoms[id.0 as usize].roots;
        let before = *known;
        *known = known.union(roots);
        *known != before
    }

    pub(crate) fn set_narrow(&mut self, id: AtomId, narrow: Linear) {
        self.atoms[id.0 as usize].narrow = Some(narrow);
    }

    pub(crate) fn set_stride(&mut self, id: AtomId, start: Linear, multiple: u64) {
        self.atoms[id.0 as usize].stride = Some((start, multiple));
    }

    /// A number that divides every value of a sum: the absolute value of a constant, otherwise a
    /// power of two.
    pub(crate) fn factor(&self, linear: &Linear) -> u64 {
        if let Some(constant) = linear.as_constant() {
            return linear.signed(constant).unsigned_abs();
        }
        let of_term = |&(atom, c): &(AtomId, u64)| {
            let inner = self.get(atom).narrow.as_ref().map_or(0, Linear::trailing_zeros);
            c.trailing_zeros() + inner
        };
        let constant = if linear.constant == 0 { linear.width } else { linear.constant.trailing_zeros() };
        1 << linear.terms.iter().map(of_term).chain([constant]).min().unwrap_or(0).min(linear.width - 1)
    }

    /// The class of a sum: whether it may differ between threads or change over time.
    pub(crate) fn class(&self, linear: &Linear) -> Class {
        linear.terms.iter().map(|(atom, _)| self.get(*atom).class).max().unwrap_or(Class::Stable)
    }

    /// Smallest and largest value of a sum as a signed integer, if it cannot wrap around.
    pub(crate) fn range(&self, linear: &Linear) -> Option<(i64, i64)> {
        let mut range = (linear.signed(linear.constant), linear.signed(linear.constant));
        for &(atom, coefficient) in &linear.terms {
            let (low, high) = self.get(atom).range?;
            let coefficient = linear.signed(coefficient);
            let (a, b) = (coefficient.checked_mul(low)?, coefficient.checked_mul(high)?);
            range = (range.0.checked_add(a.min(b))?, range.1.checked_add(a.max(b))?);
        }
        let limit = 1_i128 << (linear.width - 1);
        (range.0 >= 0 && i128::from(range.1) < limit).then_some(range)
    }
}

impl Linear {
    pub(crate) fn constant(width: u32, value: u64) -> Linear {
        Linear { width, constant: value & mask(width), terms: Vec::new() }
    }

    pub(crate) fn atom(width: u32, atom: AtomId) -> Linear {
        Linear { width, constant: 0, terms: vec![(atom, 1)] }
    }

    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    pub(crate) fn terms(&self) -> &[(AtomId, u64)] {
        &self.terms
    }

    pub(crate) fn offset(&self) -> u64 {
        self.constant
    }

    pub(crate) fn as_constant(&self) -> Option<u64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atom, if the sum is exactly one atom.
    pub(crate) fn as_atom(&self) -> Option<AtomId> {
        match self.terms.as_slice() {
            [(atom, 1)] if self.constant == 0 => Some(*atom),
            _ => None,
        }
    }

    /// A coefficient or constant as a signed number.
    pub(crate) fn signed(&self, value: u64) -> i64 {
        signed(value, self.width)
    }

    /// `self + factor · other`; `None` if the sum has too many terms.
    pub(crate) fn plus(&self, other: &Linear, factor: u64) -> Option<Linear> {
        let mut terms = Vec::with_capacity(self.terms.len() + other.terms.len());
        let (mut left, mut right) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        loop {
            let term = match (left.peek(), right.peek()) {
                (Some(&&(a, x)), Some(&&(b, y))) if a == b => {
                    left.next();
                    right.next();
                    (a, x.wrapping_add(y.wrapping_mul(factor)))
                }
                (Some(&&(a, _)), Some(&&(b, y))) if b < a => {
                    right.next();
                    (b, y.wrapping_mul(factor))
                }
                (Some(&&term), _) => {
                    left.next();
                    term
                }
                (None, Some(&&(b, y))) => {
                    right.next();
                    (b, y.wrapping_mul(factor))
                }
                (None, None) => break,
            };
            let coefficient = term.1 & mask(self.width);
            if coefficient != 0 {
                terms.push((term.0, coefficient));
            }
        }
        let constant = self.constant.wrapping_add(other.constant.wrapping_mul(factor)) & mask(self.width);
        (terms.len() <= TERMS_MAX).then_some(Linear { width: self.width, constant, terms })
    }

    /// `self · factor`.
    pub(crate) fn times(&self, factor: u64) -> Linear {
        let terms = self.terms.iter().map(|&(atom, c)| (atom, c.wrapping_mul(factor) & mask(self.width)));
        Linear {
            width: self.width,
            constant: self.constant.wrapping_mul(factor) & mask(self.width),
            terms: terms.filter(|(_, c)| *c != 0).collect(),
        }
    }

    /// The same sum with another width. Exact if the new width is smaller, or if the caller knows
    /// that no bit is lost.
    pub(crate) fn with_width(&self, width: u32) -> Linear {
        let from = self.width;
        let widen = |value: u64| signed(value, from) as u64 & mask(width);
        let terms = self.terms.iter().map(|&(atom, c)| (atom, widen(c))).filter(|(_, c)| *c != 0).collect();
        Linear { width, constant: widen(self.constant), terms }
    }

    /// Low bits that are known to be zero.
    pub(crate) fn trailing_zeros(&self) -> u32 {
        let of = |value: u64| if value == 0 { self.width } else { value.trailing_zeros() };
        self.terms.iter().map(|&(_, c)| of(c)).chain([of(self.constant)]).min().unwrap_or(self.width)
    }
}

/// The greatest common divisor.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A mask of the low `width` bits.
pub(crate) fn mask(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// The low `width` bits as a signed integer.
pub(crate) fn signed(value: u64, width: u32) -> i64 {
    let shift = 64 - width.clamp(1, 64);
    ((value << shift) as i64) >> shift
}
