//! What the ranges of symbols imply about sizes.

use super::{Polynomial, canonical};
use atoll_kgraph::{Condition, Expr, Relation, SymbolSpec};

/// Largest nesting depth of minima, maxima and quotients that is analysed.
const DEPTH_MAX: u32 = 5;
/// Largest number of analysis steps for one size.
const STEPS_MAX: u32 = 128;
/// Largest number of conditions that are combined in pairs.
const PAIRED_MAX: usize = 8;
/// Largest number of parts of an expression; a larger one stays as written.
const PARTS_MAX: usize = 160;

/// The smallest and the largest value over all valid symbol values; `None` if unknown or if it
/// overflows.
pub fn bounds(expr: &Expr, symbols: &[SymbolSpec]) -> Option<(i64, i64)> {
    let both = |a: &Expr, b: &Expr| Some((bounds(a, symbols)?, bounds(b, symbols)?));
    match expr {
        Expr::Const(value) => Some((*value, *value)),
        Expr::Symbol(id) => symbols.get(id.0 as usize).map(|s| (s.min, s.max)),
        Expr::Add(a, b) => both(a, b).and_then(|(a, b)| Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?))),
        Expr::Sub(a, b) => both(a, b).and_then(|(a, b)| Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?))),
        Expr::Mul(a, b) => both(a, b).and_then(|(a, b)| corners(a, b, i64::checked_mul)),
        Expr::FloorDiv(a, b) => {
            both(a, b).filter(|(_, b)| b.0 > 0).and_then(|(a, b)| corners(a, b, |x, y| Some(x.div_euclid(y))))
        }
        Expr::CeilDiv(a, b) => both(a, b)
            .filter(|(_, b)| b.0 > 0)
            .and_then(|(a, b)| corners(a, b, |x, y| x.checked_neg().map(|x| -x.div_euclid(y)))),
        Expr::Max(a, b) => both(a, b).map(|(a, b)| (a.0.max(b.0), a.1.max(b.1))),
        Expr::Min(a, b) => both(a, b).map(|(a, b)| (a.0.min(b.0), a.1.min(b.1))),
    }
}

fn corners(a: (i64, i64), b: (i64, i64), f: impl Fn(i64, i64) -> Option<i64>) -> Option<(i64, i64)> {
    let values = [f(a.0, b.0)?, f(a.0, b.1)?, f(a.1, b.0)?, f(a.1, b.1)?];
    Some((values.into_iter().min()?, values.into_iter().max()?))
}

/// Whether `a >= b` for all valid symbol values; `false` if that cannot be proven.
pub fn at_least(a: &Expr, b: &Expr, symbols: &[SymbolSpec]) -> bool {
    let difference = a.clone() - b.clone();
    if !is_short(&difference) {
        return bounds(&difference, symbols).is_some_and(|(low, _)| low >= 0);
    }
    Polynomial::of(&difference)
        .is_some_and(|difference| never_negative(&difference, symbols, DEPTH_MAX, &mut STEPS_MAX.clone()))
}

/// Proves that a sum is never negative: replaces one minimum, maximum or quotient after the other
/// by a bound of it.
fn never_negative(sum: &Polynomial, symbols: &[SymbolSpec], depth: u32, steps: &mut u32) -> bool {
    if bounds(&sum.to_expr(), symbols).is_some_and(|(low, _)| low >= 0) {
        return true;
    }
    let (Some(depth), Some(left)) = (depth.checked_sub(1), steps.checked_sub(1)) else { return false };
    *steps = left;
    sum.terms.iter().any(|(monomial, &coefficient)| {
        let [atom] = &monomial[..] else { return false };
        let mut holds = |value: &Expr, scale: i64, offset: i64| {
            replaced(sum, atom, coefficient, value, scale, offset)
                .is_some_and(|sum| never_negative(&sum, symbols, depth, steps))
        };
        match atom {
            // `-min(x, y)` is at least `-x` and at least `-y`; `min(x, y)` is one of the two.
            Expr::Min(x, y) if coefficient < 0 => holds(x, 1, 0) || holds(y, 1, 0),
            Expr::Max(x, y) if coefficient > 0 => holds(x, 1, 0) || holds(y, 1, 0),
            Expr::Min(x, y) | Expr::Max(x, y) => holds(x, 1, 0) && holds(y, 1, 0),
            // `x - by + 1 <= by * floor(x / by) <= x`
            Expr::FloorDiv(x, by) => by
                .as_const()
                .filter(|by| *by > 0)
                .is_some_and(|by| holds(x, by, if coefficient > 0 { 1 - by } else { 0 })),
            Expr::CeilDiv(x, by) => by
                .as_const()
                .filter(|by| *by > 0)
                .is_some_and(|by| holds(x, by, if coefficient > 0 { 0 } else { by - 1 })),
            _ => false,
        }
    })
}

/// `scale * sum`, with `scale * atom` replaced by `value + offset`.
fn replaced(
    sum: &Polynomial,
    atom: &Expr,
    coefficient: i64,
    value: &Expr,
    scale: i64,
    offset: i64,
) -> Option<Polynomial> {
    let mut rest = sum.clone();
    rest.terms.remove(std::slice::from_ref(atom));
    let rest = rest.times(&Polynomial::constant(scale))?;
    let term = Polynomial::of(value)?.plus(&Polynomial::constant(offset), 1)?;
    rest.plus(&term.times(&Polynomial::constant(coefficient))?, 1)
}

/// The smaller of two sizes; an [`Expr::Min`] if the ranges do not decide.
pub fn smaller(a: Expr, b: Expr, symbols: &[SymbolSpec]) -> Expr {
    if at_least(&b, &a, symbols) {
        a
    } else if at_least(&a, &b, symbols) {
        b
    } else {
        a.min(b)
    }
}

/// The larger of two sizes; an [`Expr::Max`] if the ranges do not decide.
pub fn larger(a: Expr, b: Expr, symbols: &[SymbolSpec]) -> Expr {
    if at_least(&a, &b, symbols) {
        a
    } else if at_least(&b, &a, symbols) {
        b
    } else {
        a.max(b)
    }
}

/// The normal form, without the minima, maxima and quotients that the ranges decide.
pub fn simplified(expr: &Expr, symbols: &[SymbolSpec]) -> Expr {
    if !is_short(expr) {
        return expr.clone();
    }
    let of = |side: &Expr| simplified(side, symbols);
    let whole = match expr {
        Expr::Const(_) | Expr::Symbol(_) => return expr.clone(),
        Expr::Add(a, b) => of(a) + of(b),
        Expr::Sub(a, b) => of(a) - of(b),
        Expr::Mul(a, b) => of(a) * of(b),
        Expr::FloorDiv(a, b) => of(a).floor_div(of(b)),
        Expr::CeilDiv(a, b) => of(a).ceil_div(of(b)),
        Expr::Max(a, b) => larger(of(a), of(b), symbols),
        Expr::Min(a, b) => smaller(of(a), of(b), symbols),
    };
    match bounds(&whole, symbols) {
        Some((low, high)) if low == high => Expr::Const(low),
        _ => canonical(&whole),
    }
}

/// Whether an expression has few enough parts to be analysed.
pub(super) fn is_short(expr: &Expr) -> bool {
    fn count(expr: &Expr, left: &mut usize) -> bool {
        let Some(rest) = left.checked_sub(1) else { return false };
        *left = rest;
        match expr {
            Expr::Const(_) | Expr::Symbol(_) => true,
            Expr::Add(a, b)
            | Expr::Sub(a, b)
            | Expr::Mul(a, b)
            | Expr::FloorDiv(a, b)
            | Expr::CeilDiv(a, b)
            | Expr::Max(a, b)
            | Expr::Min(a, b) => count(a, left) && count(b, left),
        }
    }
    count(expr, &mut PARTS_MAX.clone())
}

/// What is known about sizes: the ranges of the symbols, and the conditions that are checked in
/// every invocation.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The symbols.
    pub symbols: &'a [SymbolSpec],
    /// The conditions.
    pub conditions: &'a [Condition],
}

impl Facts<'_> {
    /// Whether two sizes are equal in every invocation.
    pub fn same(&self, a: &Expr, b: &Expr) -> bool {
        self.is_shown(a, b) || self.is_conditioned(&self.difference(a, b))
    }

    /// Whether ranges and arithmetic prove that two sizes are equal.
    fn is_shown(&self, a: &Expr, b: &Expr) -> bool {
        super::same(a, b) || self.difference(a, b) == Expr::Const(0)
    }

    /// Whether two shapes are equal in every invocation.
    pub fn same_shape(&self, a: &[Expr], b: &[Expr]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.same(a, b))
    }

    /// Whether one size broadcasts to another in every invocation.
    pub fn broadcasts(&self, from: &Expr, to: &Expr) -> bool {
        let is_conditioned = || {
            let mut conditions = self.conditions.iter().filter(|condition| condition.relation == Relation::Broadcasts);
            conditions.any(|condition| self.is_shown(&condition.left, from) && self.is_shown(&condition.right, to))
        };
        from.as_const() == Some(1) || self.same(from, to) || is_conditioned()
    }

    fn difference(&self, a: &Expr, b: &Expr) -> Expr {
        simplified(&(a.clone() - b.clone()), self.symbols)
    }

    /// Whether a difference is zero by one condition, or by the sum of two.
    fn is_conditioned(&self, difference: &Expr) -> bool {
        let equal = self.conditions.iter().filter(|condition| condition.relation == Relation::Equal);
        let zeros: Vec<Expr> = equal.map(|condition| self.difference(&condition.left, &condition.right)).collect();
        let rest = |from: &Expr, zero: &Expr| {
            [canonical(&(from.clone() - zero.clone())), canonical(&(from.clone() + zero.clone()))]
        };
        let is_zero = |rest: &Expr| *rest == Expr::Const(0);
        if zeros.iter().any(|zero| rest(difference, zero).iter().any(is_zero)) {
            return true;
        }
        let pairs = if zeros.len() <= PAIRED_MAX { &zeros[..] } else { &[] };
        pairs.iter().any(|first| {
            rest(difference, first).iter().any(|left| pairs.iter().any(|zero| rest(left, zero).iter().any(is_zero)))
        })
    }
}
