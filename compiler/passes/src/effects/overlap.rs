//! Whether two accesses of one block, by any threads and at any times, can touch the same byte.
//!
//! The difference of the addresses is a constant plus the parts that differ between threads and
//! times. Values that are constant for the whole block cancel out; a value with a known range adds
//! an interval; any other value adds a multiple of its coefficient. Sign or zero extension of a
//! 32-bit sum may or may not wrap around, which adds a multiple of 2³².

use super::linear::{Atoms, Class, Linear};

/// Limit on the sums that are expanded: registers whose start values depend on each other would be
/// expanded forever.
const SUMS_MAX: usize = 64;

/// Limit on the atoms that are tried both as an interval and as a multiple.
const RANGED_MAX: usize = 6;

/// The difference of two addresses.
struct Difference {
    constant: i128,
    /// The difference is known modulo this number, which divides 2⁶⁴ or is a step.
    modulus: i128,
    /// Coefficients, each with the range of its factor.
    ranged: Vec<(i128, (i128, i128))>,
}

/// Whether `write` (address and bytes) may overlap `read`. The addresses must point into the same
/// root.
pub(crate) fn may_overlap(atoms: &Atoms, read: (&Linear, u64), write: (&Linear, u64)) -> bool {
    let mut difference = Difference { constant: 0, modulus: 1 << 64, ranged: Vec::new() };
    let Some(common) = write.0.plus(read.0, u64::MAX) else { return true };
    // Stable parts that cancel out need no further analysis; the others are expanded one by one.
    let stays = |linear: &Linear| {
        let changing = linear.terms().iter().filter(|(atom, _)| atoms.get(*atom).class != Class::Stable);
        changing.map(|&(atom, c)| (Linear::atom(64, atom), linear.signed(c))).collect::<Vec<_>>()
    };
    difference.constant = i128::from(common.signed(common.offset()));
    let mut stable = Linear::constant(64, 0);
    for &(atom, c) in common.terms().iter().filter(|(atom, _)| atoms.get(*atom).class == Class::Stable) {
        stable = match stable.plus(&Linear::atom(64, atom), c) {
            Some(sum) => sum,
            None => return true,
        };
    }
    let mut parts: Vec<(Linear, i128)> = stays(write.0).into_iter().map(|(l, c)| (l, i128::from(c))).collect();
    parts.extend(stays(read.0).into_iter().map(|(l, c)| (l, -i128::from(c))));
    if !difference.add_all(atoms, parts, stable) {
        return true;
    }
    difference.may_lie_within(-(i128::from(write.1) - 1), i128::from(read.1) - 1)
}

impl Difference {
    /// Adds values that differ between threads and times, and a stable sum; returns false if there
    /// are too many to analyse.
    fn add_all(&mut self, atoms: &Atoms, parts: Vec<(Linear, i128)>, stable: Linear) -> bool {
        // The stable parts of an extended value cancel out only after it is expanded, so they are
        // collected first.
        let mut stable_terms = stable;
        let mut waiting = parts;
        let mut sums = 0;
        while let Some((linear, factor)) = waiting.pop() {
            sums += 1;
            if sums > SUMS_MAX {
                return false;
            }
            self.constant += product(&linear, linear.offset(), factor);
            for &(atom, c) in linear.terms() {
                let factor = product(&linear, c, factor);
                let known = atoms.get(atom);
                if known.class == Class::Stable {
                    match stable_terms.plus(&Linear::atom(64, atom), factor as u64) {
                        Some(sum) => stable_terms = sum,
                        None => return false,
                    }
                } else if let (Some(narrow), None) = (&known.narrow, known.range) {
                    self.modulo(factor << narrow.width());
                    waiting.push((narrow.clone(), factor));
                } else if let Some((start, multiple)) = &known.stride {
                    self.modulo(factor * i128::from(*multiple));
                    self.modulo(factor << start.width());
                    waiting.push((start.clone(), factor));
                } else {
                    self.add(factor, known.range);
                }
            }
        }
        for &(atom, c) in stable_terms.terms() {
            self.add(i128::from(stable_terms.signed(c)), atoms.get(atom).range);
        }
        self.constant %= 1 << 64;
        self.ranged.len() <= RANGED_MAX
    }

    fn add(&mut self, factor: i128, range: Option<(i64, i64)>) {
        match range {
            Some((low, high)) => self.ranged.push((factor, (low.into(), high.into()))),
            None => self.modulo(factor),
        }
    }

    fn modulo(&mut self, factor: i128) {
        self.modulus = gcd(self.modulus, factor.unsigned_abs() as i128);
    }

    /// Whether the difference may lie in `low..=high`. Each value with a range is tried as an
    /// interval and as a multiple of its factor.
    fn may_lie_within(&self, low: i128, high: i128) -> bool {
        (0..1_u32 << self.ranged.len()).all(|choice| {
            let Some((least, most, modulus)) = self.interval(choice) else { return true };
            // Does a multiple of the modulus shift the interval into the window?
            let first = (low - most).div_euclid(modulus) + i128::from((low - most).rem_euclid(modulus) != 0);
            let last = (high - least).div_euclid(modulus);
            first <= last
        })
    }

    /// Smallest and largest difference, and its modulus; `None` if the numbers become too large.
    fn interval(&self, choice: u32) -> Option<(i128, i128, i128)> {
        /// Larger than every address, and far below the limits of 128-bit sums.
        const FAR: i128 = 1 << 100;
        let mut modulus = self.modulus;
        let (mut least, mut most) = (self.constant, self.constant);
        for (index, &(factor, (from, to))) in self.ranged.iter().enumerate() {
            let (a, b) = (factor * from, factor * to);
            if choice >> index & 1 == 1 {
                modulus = gcd(modulus, factor.abs());
                (least, most) = (least.checked_add(a)?, most.checked_add(a)?);
            } else {
                (least, most) = (least.checked_add(a.min(b))?, most.checked_add(a.max(b))?);
            }
        }
        (least > -FAR && most < FAR).then_some((least, most, modulus))
    }
}

/// A coefficient or constant of a sum times a factor, modulo 2⁶⁴ like all addresses.
fn product(linear: &Linear, value: u64, factor: i128) -> i128 {
    i128::from(linear.signed(value).wrapping_mul(factor as i64))
}

fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::super::linear::AtomKey;
    use super::*;

    /// `atom · factor + constant`.
    fn sum(atom: &Linear, factor: u64, constant: i64) -> Linear {
        Linear::constant(64, constant as u64).plus(atom, factor).expect("two terms")
    }

    fn atom(atoms: &mut Atoms, name: &str, class: Class, range: Option<(i64, i64)>) -> Linear {
        Linear::atom(64, atoms.intern(AtomKey::Special(name.into()), || (class, range)))
    }

    #[test]
    fn accesses_at_known_distances_overlap_from_the_first_common_byte_on() {
        let mut atoms = Atoms::default();
        let base = atom(&mut atoms, "base", Class::Stable, None);
        for (distance, read_bytes, write_bytes, expected) in [
            (0, 4, 4, true),
            (3, 4, 4, true),
            (4, 4, 4, false),
            (-3, 4, 4, true),
            (-4, 4, 4, false),
            (0, 1, 1, true),
            (1, 1, 1, false),
            (7, 8, 1, true),
            (8, 8, 1, false),
            (-7, 1, 8, true),
            (-8, 1, 8, false),
        ] {
            let (read, write) = (sum(&base, 1, 100), sum(&base, 1, 100 + distance));
            let found = may_overlap(&atoms, (&read, read_bytes), (&write, write_bytes));
            assert_eq!(found, expected, "{write_bytes} bytes written {distance} behind {read_bytes} that are read");
        }
        // Two different bases are at any distance.
        let other = atom(&mut atoms, "other", Class::Stable, None);
        assert!(may_overlap(&atoms, (&sum(&base, 1, 0), 4), (&sum(&other, 1, 4), 4)));
    }

    #[test]
    fn threads_overlap_unless_their_ranges_or_multiples_keep_them_apart() {
        let mut atoms = Atoms::default();
        let base = atom(&mut atoms, "base", Class::Stable, None);
        let thread = atom(&mut atoms, "%tid.x", Class::Thread, Some((0, 31)));
        let unknown = atom(&mut atoms, "%clock", Class::Thread, None);
        let at = |index: &Linear, factor, constant| sum(&base, 1, constant).plus(index, factor).expect("three terms");
        let overlap = |read: &Linear, write: &Linear, write_bytes| may_overlap(&atoms, (read, 4), (write, write_bytes));
        // Another thread may have the same index, up to 31.
        assert!(overlap(&at(&thread, 4, 0), &at(&thread, 4, 0), 4));
        assert!(overlap(&at(&thread, 4, 124), &at(&thread, 4, 0), 4));
        assert!(!overlap(&at(&thread, 4, 128), &at(&thread, 4, 0), 4));
        assert!(overlap(&at(&thread, 4, 128), &at(&thread, 4, 0), 5), "its last byte is in the first of the others");
        assert!(!overlap(&at(&thread, 4, 0), &at(&thread, 4, 128), 4));
        // Every second word is read, and the others are written.
        assert!(!overlap(&at(&unknown, 8, 0), &at(&unknown, 8, 4), 4));
        assert!(overlap(&at(&unknown, 8, 0), &at(&unknown, 8, 4), 5));
        assert!(overlap(&at(&unknown, 8, 0), &at(&unknown, 8, 3), 4));
        assert!(overlap(&at(&unknown, 8, 0), &at(&unknown, 4, 4), 4));
    }
}
