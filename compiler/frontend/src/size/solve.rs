//! Finds the values of a symbol for which sizes satisfy a condition.

use super::ranges::is_short;
use super::{Facts, Polynomial, at_least, bounds, simplified};
use atoll_kgraph::{Expr, SymbolId, SymbolSpec};

/// The symbol that the sizes depend on; `None` if there is none or more than one.
fn only_symbol(sizes: &[&Expr], symbols: &[SymbolSpec]) -> Option<SymbolId> {
    let mut found =
        (0..symbols.len() as u32).map(SymbolId).filter(|symbol| sizes.iter().any(|size| size.depends_on(*symbol)));
    let symbol = found.next()?;
    found.next().is_none().then_some(symbol)
}

/// The symbols, with the range of one of them replaced.
pub(crate) fn narrowed(symbols: &[SymbolSpec], symbol: SymbolId, min: i64, max: i64) -> Vec<SymbolSpec> {
    let mut symbols = symbols.to_vec();
    let spec = &mut symbols[symbol.0 as usize];
    (spec.min, spec.max) = (min, max);
    symbols
}

/// The smallest number in `min..=max` for which `holds` is true; `None` if it is false for `max`.
/// `holds` must be monotone: true for every number after the first.
fn first_that(min: i64, max: i64, mut holds: impl FnMut(i64) -> bool) -> Option<i64> {
    if !holds(max) {
        return None;
    }
    let (mut low, mut high) = (min, max);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

/// The symbol, and the largest value up to which two sizes are equal, if they differ for every
/// larger value: `s` and `min(512, s)` are equal up to 512.
pub(crate) fn equal_up_to(a: &Expr, b: &Expr, symbols: &[SymbolSpec]) -> Option<(SymbolId, i64)> {
    let symbol = only_symbol(&[a, b], symbols)?;
    let SymbolSpec { min, max, .. } = symbols[symbol.0 as usize];
    let are_equal = |up_to: i64| {
        let symbols = narrowed(symbols, symbol, min, up_to);
        Facts { symbols: &symbols, conditions: &[] }.same(a, b)
    };
    // The first value at which the sizes are no longer equal.
    let end = first_that(min, max, |up_to| !are_equal(up_to))?;
    let symbols_beyond = narrowed(symbols, symbol, end, max);
    let (less, more) = (at_least(&(b.clone() - 1), a, &symbols_beyond), at_least(&(a.clone() - 1), b, &symbols_beyond));
    let difference = bounds(&simplified(&(a.clone() - b.clone()), &symbols_beyond), &symbols_beyond);
    let differ = less || more || difference.is_some_and(|(low, high)| low > 0 || high < 0);
    (end > min && differ).then_some((symbol, end - 1))
}

/// The only value of a symbol for which two sizes are equal. Their difference must be a multiple of
/// the symbol plus a number.
pub(crate) fn only_value(a: &Expr, b: &Expr) -> Option<(SymbolId, i64)> {
    let difference = a.clone() - b.clone();
    let difference = is_short(&difference).then(|| Polynomial::of(&difference)).flatten()?;
    let (mut symbol, mut constant) = (None, 0);
    for (monomial, &coefficient) in &difference.terms {
        match &monomial[..] {
            [] => constant = coefficient,
            [Expr::Symbol(id)] if symbol.is_none() => symbol = Some((*id, coefficient)),
            _ => return None,
        }
    }
    let (symbol, coefficient) = symbol?;
    (constant % coefficient == 0).then(|| (symbol, -(constant / coefficient)))
}

/// The symbol, and the smallest value from which a size is never negative, if it is negative for
/// every smaller value.
pub(crate) fn not_negative_from(size: &Expr, symbols: &[SymbolSpec]) -> Option<(SymbolId, i64)> {
    let symbol = only_symbol(&[size], symbols)?;
    let SymbolSpec { min, max, .. } = symbols[symbol.0 as usize];
    let zero = Expr::Const(0);
    let from = first_that(min, max, |from| at_least(size, &zero, &narrowed(symbols, symbol, from, max)))?;
    let is_negative = at_least(&Expr::Const(-1), size, &narrowed(symbols, symbol, min, from - 1));
    (from > min && is_negative).then_some((symbol, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_bounds_a_symbol_and_a_window_raises_it() {
        let symbols = [SymbolSpec::new("s", 1, 1 << 16), SymbolSpec::new("t", 1, 1 << 16)];
        let [s, t] = [0, 1].map(|id| Expr::from(SymbolId(id)));
        assert_eq!(equal_up_to(&s, &s.clone().min(512), &symbols), Some((SymbolId(0), 512)));
        assert_eq!(equal_up_to(&(s.clone() + 1), &(s.clone() + 1).min(77), &symbols), Some((SymbolId(0), 76)));
        assert_eq!(equal_up_to(&s, &(s.clone().floor_div(2) * 2), &symbols), None, "every second value");
        assert_eq!(equal_up_to(&s, &t, &symbols), None);
        assert_eq!(not_negative_from(&((s.clone() - 7).floor_div(2) + 1), &symbols), Some((SymbolId(0), 5)));
        assert_eq!(not_negative_from(&(s.clone() - t.clone()), &symbols), None);
        assert_eq!(only_value(&(s.clone() * 64), &Expr::Const(512)), Some((SymbolId(0), 8)));
        assert_eq!(only_value(&(s.clone() * 64), &Expr::Const(500)), None);
        assert_eq!(only_value(&s, &t), None);
    }

    #[test]
    fn quotients_and_minima_are_compared() {
        let symbols = [SymbolSpec::new("s", 1, 1 << 16)];
        let s = Expr::from(SymbolId(0));
        assert!(at_least(&s, &(s.clone().floor_div(2) * 2), &symbols));
        assert!(at_least(&s, &s.clone().min(3), &symbols));
        assert!(!at_least(&s.clone().min(3), &s, &symbols));
        assert_eq!(simplified(&(s.clone() - 5).max(-9), &symbols), s - 5);
    }
}
