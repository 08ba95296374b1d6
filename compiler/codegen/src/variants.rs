//! Launch variants for matrix products with a symbolic number of rows.
//!
//! A tile is sized for many rows. For a single request of one token, only an eighth of its warps
//! would work, with one row each. So a product with symbolic rows gets an additional kernel for
//! each bound in [`ROWS`], and the runtime launches the first one whose ranges contain the values
//! of the symbols. A range lets one symbol vary and sets all others to their smallest value: one
//! long sequence, or many requests of one token.

use crate::error::CodegenError;
use crate::kernels::matmul;
use crate::schedule::{Work, WorkKind};
use crate::target::TargetDescription;
use crate::writer::Written;
use atoll_frontend::tensor_graph::Op;
use atoll_kgraph::{Expr, SymbolId, SymbolRange, SymbolSpec};

/// Largest number of rows of each kernel: one row, the accumulators of a matrix-vector product,
/// then parts of a tile.
const ROWS: [i64; 5] = [1, 4, 8, 16, 32];

/// The variants of a node that are better than its default launch, for some values of the symbols.
pub(crate) fn variants(
    target: &TargetDescription,
    symbols: &[SymbolSpec],
    work: &Work,
) -> Result<Vec<(Vec<SymbolRange>, Written)>, CodegenError> {
    let (WorkKind::Op(Op::MatMul(product)), [output, ..]) = (&work.kind, &work.outputs[..]) else {
        return Ok(Vec::new());
    };
    let rows = matmul::rows(product, &work.inputs, output)?;
    let mut variants: Vec<(Vec<SymbolRange>, Written)> = Vec::new();
    let mut least = 1;
    for most in ROWS {
        for ranges in ranges(symbols, &rows, least, most) {
            if variants.iter().all(|(known, _)| *known != ranges) {
                variants.push((ranges, matmul::matmul(target, product, &work.inputs, output, Some(most))?));
            }
        }
        least = most + 1;
    }
    Ok(variants)
}

/// Ranges of the symbols in which `rows` is in `least..=most`: for every symbol that it depends on,
/// the range of that symbol while all others have their smallest value.
fn ranges(symbols: &[SymbolSpec], rows: &Expr, least: i64, most: i64) -> Vec<Vec<SymbolRange>> {
    let smallest: Vec<i64> = symbols.iter().map(|symbol| symbol.min.max(1)).collect();
    let used: Vec<usize> = (0..symbols.len()).filter(|&index| rows.depends_on(SymbolId(index as u32))).collect();
    if used.iter().any(|&index| smallest[index] > symbols[index].max) || !grows(rows, &smallest) {
        return Vec::new();
    }
    let of = |varied: &usize| {
        let rows_at = |value: i64| {
            let mut values = smallest.clone();
            values[*varied] = value;
            rows.eval(&values).unwrap_or(i64::MAX)
        };
        let (low, high) = (smallest[*varied], symbols[*varied].max);
        let first = first_value(low, high, |value| rows_at(value) >= least)?;
        let end = first_value(low, high, |value| rows_at(value) > most).unwrap_or(high + 1);
        let range = |&index: &usize| {
            let (min, max) = if index == *varied { (first, end - 1) } else { (smallest[index], smallest[index]) };
            SymbolRange { symbol: SymbolId(index as u32), min, max }
        };
        (first < end).then(|| used.iter().map(range).collect())
    };
    used.iter().filter_map(of).collect()
}

/// The smallest value in `low..=high` for which `holds` is true; it must be monotone.
fn first_value(low: i64, high: i64, holds: impl Fn(i64) -> bool) -> Option<i64> {
    let (mut below, mut above) = (low, high.checked_add(1)?);
    while below < above {
        let middle = below + (above - below) / 2;
        if holds(middle) { above = middle } else { below = middle + 1 }
    }
    (below <= high).then_some(below)
}

/// Whether an expression is monotonically non-decreasing in every symbol, from these values on.
fn grows(expr: &Expr, smallest: &[i64]) -> bool {
    let is_positive = |expr: &Expr| expr.eval(smallest).is_ok_and(|value| value >= 0);
    match expr {
        Expr::Const(_) | Expr::Symbol(_) => true,
        Expr::Add(a, b) | Expr::Max(a, b) | Expr::Min(a, b) => grows(a, smallest) && grows(b, smallest),
        Expr::Sub(a, b) => grows(a, smallest) && b.as_const().is_some(),
        Expr::Mul(a, b) => grows(a, smallest) && grows(b, smallest) && is_positive(a) && is_positive(b),
        Expr::FloorDiv(a, b) | Expr::CeilDiv(a, b) => grows(a, smallest) && b.as_const().is_some_and(|by| by > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(ranges: &[(i64, i64)]) -> Vec<SymbolSpec> {
        ranges.iter().map(|&(min, max)| SymbolSpec::new("s", min, max)).collect()
    }

    fn symbol(index: u32) -> Expr {
        SymbolId(index).into()
    }

    /// `(symbol, min, max)` of every range.
    fn found(symbols: &[SymbolSpec], rows: &Expr, least: i64, most: i64) -> Vec<Vec<(u32, i64, i64)>> {
        ranges(symbols, rows, least, most)
            .iter()
            .map(|r| r.iter().map(|r| (r.symbol.0, r.min, r.max)).collect())
            .collect()
    }

    #[test]
    fn one_symbol_varies_and_the_others_are_at_their_smallest() {
        let symbols = symbols(&[(1, 64), (1, 512)]);
        assert_eq!(found(&symbols, &symbol(1), 2, 4), [[(1, 2, 4)]]);
        let rows = symbol(0) * symbol(1);
        assert_eq!(found(&symbols, &rows, 5, 8), [[(0, 5, 8), (1, 1, 1)], [(0, 1, 1), (1, 5, 8)]]);
        assert_eq!(found(&symbols, &symbol(1).ceil_div(10), 1, 1), [[(1, 1, 10)]]);
    }

    #[test]
    fn impossible_row_counts_have_no_range() {
        assert!(found(&symbols(&[(40, 64)]), &symbol(0), 1, 8).is_empty(), "always more rows");
        assert_eq!(found(&symbols(&[(0, 6)]), &symbol(0), 5, 8), [[(0, 5, 6)]], "no more than the symbol allows");
        assert_eq!(found(&symbols(&[(0, 6)]), &symbol(0), 1, 1), [[(0, 1, 1)]], "no rows have no kernel");
        assert!(found(&symbols(&[(1, 9)]), &(Expr::Const(9) - symbol(0)), 1, 8).is_empty(), "fewer rows for more");
        assert!(found(&[], &Expr::Const(3), 1, 8).is_empty(), "nothing varies");
    }
}
