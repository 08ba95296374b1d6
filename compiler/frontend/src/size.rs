//! Sizes in a normal form, so that equal sizes compare equal.
//!
//! [`Expr`] keeps what it does not fold as written: `s + 2 - 2` does not compare equal to `s`.
//! Shape inference must treat the two as equal. Here an expression becomes a polynomial with
//! integer coefficients over *atoms* (symbols, and quotients, minima and maxima that cannot be
//! decomposed), and is converted back to an [`Expr`] in a fixed order. Equality of normal forms is
//! sound (equal forms are equal for all symbol values) but not complete.
//!
//! `ranges` uses the ranges of the symbols as well: it decides signs, minima, maxima, and
//! conditions that are checked in each invocation. `solve` finds the values of a symbol for which
//! two sizes are equal.

mod ranges;
mod solve;

pub use ranges::{Facts, at_least, bounds, larger, simplified, smaller};
pub(crate) use solve::{equal_up_to, narrowed, not_negative_from, only_value};

use atoll_kgraph::Expr;
use std::collections::BTreeMap;

/// A product of atoms, sorted; none is the constant 1.
type Monomial = Vec<Expr>;

/// Terms by monomial; no coefficient is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Polynomial {
    terms: BTreeMap<Monomial, i64>,
}

/// Largest number of terms of a polynomial. A longer expression stays as written, so that no model
/// can make sizes grow without bound.
const TERMS_MAX: usize = 64;

/// The normal form of an expression; a long expression is returned as written.
pub fn canonical(expr: &Expr) -> Expr {
    match expr {
        Expr::Const(_) | Expr::Symbol(_) => expr.clone(),
        _ if !ranges::is_short(expr) => expr.clone(),
        _ => Polynomial::of(expr).map_or_else(|| expr.clone(), |p| p.to_expr()),
    }
}

/// Whether two sizes are provably equal.
pub fn same(a: &Expr, b: &Expr) -> bool {
    a == b || canonical(a) == canonical(b)
}

/// Whether two shapes are provably equal.
pub fn same_shape(a: &[Expr], b: &[Expr]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// Number of elements of a shape, in normal form.
pub fn elements(shape: &[Expr]) -> Expr {
    canonical(&Expr::product(shape))
}

/// All dimensions as numbers; `None` if one is symbolic or negative.
pub fn static_shape(shape: &[Expr]) -> Option<Vec<usize>> {
    shape.iter().map(|dim| dim.as_const().and_then(|v| usize::try_from(v).ok())).collect()
}

/// `dividend / divisor`; `None` unless the division provably leaves no remainder.
pub fn divide_exact(dividend: &Expr, divisor: &Expr) -> Option<Expr> {
    if !ranges::is_short(dividend) || !ranges::is_short(divisor) {
        return None;
    }
    let dividend = Polynomial::of(dividend)?;
    let divisor = Polynomial::of(divisor)?;
    if dividend == divisor {
        return Some(Expr::Const(1));
    }
    let (by, factor) = divisor.single_term()?;
    let mut quotient = Polynomial::default();
    for (monomial, coefficient) in &dividend.terms {
        let rest = remove_factors(monomial, by)?;
        if coefficient % factor != 0 {
            return None;
        }
        quotient.add_term(rest, coefficient / factor)?;
    }
    Some(quotient.to_expr())
}

/// The size as `coefficient * product(factors)`; `None` if it has more than one term.
pub fn as_monomial(expr: &Expr) -> Option<(i64, Vec<Expr>)> {
    let polynomial = Polynomial::of(expr)?;
    let (monomial, coefficient) = polynomial.single_term()?;
    Some((coefficient, monomial.clone()))
}

/// `monomial` without the factors of `by`; `None` where one is missing.
fn remove_factors(monomial: &Monomial, by: &Monomial) -> Option<Monomial> {
    let mut rest = monomial.clone();
    for factor in by {
        let at = rest.iter().position(|f| f == factor)?;
        rest.remove(at);
    }
    Some(rest)
}

impl Polynomial {
    fn constant(value: i64) -> Polynomial {
        let mut terms = BTreeMap::new();
        if value != 0 {
            terms.insert(Monomial::new(), value);
        }
        Polynomial { terms }
    }

    fn atom(expr: Expr) -> Polynomial {
        Polynomial { terms: BTreeMap::from([(vec![expr], 1)]) }
    }

    /// The polynomial of an expression; `None` if a coefficient overflows or the number of terms
    /// exceeds [`TERMS_MAX`].
    fn of(expr: &Expr) -> Option<Polynomial> {
        match expr {
            Expr::Const(value) => Some(Polynomial::constant(*value)),
            Expr::Symbol(_) => Some(Polynomial::atom(expr.clone())),
            Expr::Add(a, b) => Polynomial::of(a)?.plus(&Polynomial::of(b)?, 1),
            Expr::Sub(a, b) => Polynomial::of(a)?.plus(&Polynomial::of(b)?, -1),
            Expr::Mul(a, b) => Polynomial::of(a)?.times(&Polynomial::of(b)?),
            Expr::FloorDiv(a, b) => Polynomial::of(a)?.divided(&canonical(b), Expr::floor_div),
            Expr::CeilDiv(a, b) => Polynomial::of(a)?.divided(&canonical(b), Expr::ceil_div),
            Expr::Max(a, b) => Some(symmetric(canonical(a), canonical(b), Expr::max)),
            Expr::Min(a, b) => Some(symmetric(canonical(a), canonical(b), Expr::min)),
        }
    }

    fn single_term(&self) -> Option<(&Monomial, i64)> {
        let mut terms = self.terms.iter();
        let first = terms.next()?;
        terms.next().is_none().then_some((first.0, *first.1))
    }

    fn add_term(&mut self, monomial: Monomial, coefficient: i64) -> Option<()> {
        let sum = self.terms.get(&monomial).copied().unwrap_or(0).checked_add(coefficient)?;
        if sum == 0 {
            self.terms.remove(&monomial);
        } else {
            self.terms.insert(monomial, sum);
        }
        (self.terms.len() <= TERMS_MAX).then_some(())
    }

    fn plus(mut self, other: &Polynomial, sign: i64) -> Option<Polynomial> {
        for (monomial, coefficient) in &other.terms {
            self.add_term(monomial.clone(), coefficient.checked_mul(sign)?)?;
        }
        Some(self)
    }

    fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut monomial: Monomial = left.iter().chain(right).cloned().collect();
                monomial.sort();
                product.add_term(monomial, a.checked_mul(*b)?)?;
            }
        }
        Some(product)
    }

    /// Divides the terms that `divisor` divides: `(4x + y) / 4` becomes `x + y / 4`.
    fn divided(self, divisor: &Expr, divide: fn(Expr, Expr) -> Expr) -> Option<Polynomial> {
        let Some(by) = divisor.as_const().filter(|by| *by > 0) else {
            let whole = self.to_expr();
            return Some(match divide_exact(&whole, divisor) {
                Some(quotient) => Polynomial::of(&quotient)?,
                None => Polynomial::atom(divide(whole, divisor.clone())),
            });
        };
        let mut quotient = Polynomial::default();
        let mut rest = Polynomial::default();
        for (monomial, coefficient) in self.terms {
            if coefficient % by == 0 {
                quotient.add_term(monomial, coefficient / by)?;
            } else if monomial.is_empty() {
                // Keeps the remainder of a constant in `0..by`, so that equal quotients have equal
                // forms.
                quotient.add_term(Monomial::new(), coefficient.div_euclid(by))?;
                rest.add_term(monomial, coefficient.rem_euclid(by))?;
            } else {
                rest.add_term(monomial, coefficient)?;
            }
        }
        let tail = match divide(rest.to_expr(), Expr::Const(by)) {
            Expr::Const(value) => Polynomial::constant(value),
            other => Polynomial::atom(other),
        };
        quotient.plus(&tail, 1)
    }

    /// Positive terms come first, so that a difference prints as one.
    fn to_expr(&self) -> Expr {
        let term = |monomial: &Monomial, coefficient: i64| Expr::product(monomial) * coefficient;
        let positive = self.terms.iter().rev().filter(|(_, c)| **c > 0);
        let negative = self.terms.iter().rev().filter(|(_, c)| **c < 0);
        let sum = positive.fold(Expr::Const(0), |sum, (m, c)| sum + term(m, *c));
        negative.fold(sum, |sum, (m, c)| match c.checked_neg() {
            Some(magnitude) => sum - term(m, magnitude),
            None => sum + term(m, *c),
        })
    }
}

fn symmetric(a: Expr, b: Expr, make: fn(Expr, Expr) -> Expr) -> Polynomial {
    let (a, b) = if a <= b { (a, b) } else { (b, a) };
    match make(a, b) {
        whole @ (Expr::Max(..) | Expr::Min(..)) => Polynomial::atom(whole),
        folded => Polynomial::of(&folded).unwrap_or_else(|| Polynomial::atom(folded)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::{SymbolId, SymbolSpec};
    use proptest::prelude::*;

    fn s(id: u32) -> Expr {
        Expr::from(SymbolId(id))
    }

    #[test]
    fn equal_sizes_have_one_form() {
        assert!(same(&(s(0) + 2 - 2), &s(0)));
        assert!(same(&(s(0) * 3 + s(1)), &(s(1) + s(0) + s(0) * 2)));
        assert!(same(&((s(0) * 4 + 6).floor_div(4)), &(s(0) + 1)));
        assert!(!same(&(s(0).floor_div(2) * 2), &s(0)));
        assert_eq!(divide_exact(&(s(0) * s(1) * 12), &(s(1) * 4)), Some(canonical(&(s(0) * 3))));
        assert_eq!(divide_exact(&(s(0) * 3), &Expr::Const(2)), None);
    }

    #[test]
    fn bounds_decide_minima() {
        let symbols = [SymbolSpec::new("n", 4, 100)];
        assert_eq!(smaller(s(0), Expr::Const(3), &symbols), Expr::Const(3));
        assert_eq!(smaller(s(0), Expr::Const(100), &symbols), s(0));
        assert!(matches!(smaller(s(0), Expr::Const(50), &symbols), Expr::Min(..)));
    }

    fn any_expr() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![(-20i64..20).prop_map(Expr::Const), (0u32..3).prop_map(|id| Expr::from(SymbolId(id)))];
        leaf.prop_recursive(4, 24, 2, |inner| {
            (inner.clone(), inner, 0..7, 1i64..9).prop_map(|(a, b, kind, by)| match kind {
                0 => a + b,
                1 => a - b,
                2 => a * b,
                3 => a.floor_div(by),
                4 => a.ceil_div(by),
                5 => a.max(b),
                _ => a.min(b),
            })
        })
    }

    proptest! {
        #[test]
        fn the_normal_form_has_the_same_value(expr in any_expr(), values in prop::array::uniform3(1i64..9)) {
            prop_assert_eq!(canonical(&expr).eval(&values), expr.eval(&values));
        }

        #[test]
        fn bounds_hold(expr in any_expr(), values in prop::array::uniform3(1i64..9)) {
            let symbols: Vec<_> = (0..3).map(|i| SymbolSpec::new(i.to_string(), 1, 8)).collect();
            if let (Some((low, high)), Ok(value)) = (bounds(&expr, &symbols), expr.eval(&values)) {
                prop_assert!(low <= value && value <= high);
            }
        }

        #[test]
        fn ranges_simplify_without_changing_the_value(expr in any_expr(), values in prop::array::uniform3(1i64..9)) {
            let symbols: Vec<_> = (0..3).map(|i| SymbolSpec::new(i.to_string(), 1, 8)).collect();
            if let Ok(value) = expr.eval(&values) {
                prop_assert_eq!(simplified(&expr, &symbols).eval(&values), Ok(value));
                if at_least(&expr, &Expr::Const(0), &symbols) {
                    prop_assert!(value >= 0);
                }
            }
        }
    }
}
