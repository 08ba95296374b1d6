//! Sizes as expressions over named symbols.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Index of a symbol in [`crate::KernelGraph::symbols`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SymbolId(pub u32);

/// An integer expression over symbols. The operators and methods such as [`Expr::floor_div`] build
/// it and fold constants. Copies share their operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expr {
    /// A number.
    Const(i64),
    /// A symbol's value.
    Symbol(SymbolId),
    /// Sum.
    Add(Arc<Expr>, Arc<Expr>),
    /// Difference.
    Sub(Arc<Expr>, Arc<Expr>),
    /// Product.
    Mul(Arc<Expr>, Arc<Expr>),
    /// Quotient rounded towards negative infinity.
    FloorDiv(Arc<Expr>, Arc<Expr>),
    /// Quotient rounded towards positive infinity.
    CeilDiv(Arc<Expr>, Arc<Expr>),
    /// The larger.
    Max(Arc<Expr>, Arc<Expr>),
    /// The smaller.
    Min(Arc<Expr>, Arc<Expr>),
}

/// Why an expression cannot be evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The value does not fit 64 bits.
    #[error("the size overflows 64 bits")]
    Overflow,
    /// A division by zero.
    #[error("the size divides by zero")]
    DivisionByZero,
    /// A symbol without a value.
    #[error("symbol {0} is not bound")]
    Unbound(u32),
}

impl Expr {
    /// The number, if the expression is constant.
    pub fn as_const(&self) -> Option<i64> {
        match self {
            Expr::Const(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether the expression contains a symbol.
    pub fn depends_on(&self, symbol: SymbolId) -> bool {
        match self {
            Expr::Const(_) => false,
            Expr::Symbol(id) => *id == symbol,
            Expr::Add(a, b)
            | Expr::Sub(a, b)
            | Expr::Mul(a, b)
            | Expr::FloorDiv(a, b)
            | Expr::CeilDiv(a, b)
            | Expr::Max(a, b)
            | Expr::Min(a, b) => a.depends_on(symbol) || b.depends_on(symbol),
        }
    }

    /// Number of constants and symbols in the expression. Each occurrence counts.
    pub fn terms(&self) -> usize {
        match self {
            Expr::Const(_) | Expr::Symbol(_) => 1,
            Expr::Add(a, b)
            | Expr::Sub(a, b)
            | Expr::Mul(a, b)
            | Expr::FloorDiv(a, b)
            | Expr::CeilDiv(a, b)
            | Expr::Max(a, b)
            | Expr::Min(a, b) => a.terms() + b.terms(),
        }
    }

    /// Evaluates the expression, with `symbols[id]` as the value of each symbol.
    pub fn eval(&self, symbols: &[i64]) -> Result<i64, EvalError> {
        let checked = |value: Option<i64>| value.ok_or(EvalError::Overflow);
        let pair = |a: &Expr, b: &Expr| Ok::<_, EvalError>((a.eval(symbols)?, b.eval(symbols)?));
        match self {
            Expr::Const(value) => Ok(*value),
            Expr::Symbol(id) => symbols.get(id.0 as usize).copied().ok_or(EvalError::Unbound(id.0)),
            Expr::Add(a, b) => pair(a, b).and_then(|(a, b)| checked(a.checked_add(b))),
            Expr::Sub(a, b) => pair(a, b).and_then(|(a, b)| checked(a.checked_sub(b))),
            Expr::Mul(a, b) => pair(a, b).and_then(|(a, b)| checked(a.checked_mul(b))),
            Expr::Max(a, b) => pair(a, b).map(|(a, b)| a.max(b)),
            Expr::Min(a, b) => pair(a, b).map(|(a, b)| a.min(b)),
            Expr::FloorDiv(a, b) => pair(a, b).and_then(|(a, b)| floor_div(a, b)),
            Expr::CeilDiv(a, b) => {
                let (a, b) = pair(a, b)?;
                floor_div(a.checked_neg().ok_or(EvalError::Overflow)?, b).and_then(|q| checked(q.checked_neg()))
            }
        }
    }

    /// `self / by`, rounded down.
    pub fn floor_div(self, by: impl Into<Expr>) -> Expr {
        simplify(Expr::FloorDiv, self, by.into())
    }

    /// `self / by`, rounded up.
    pub fn ceil_div(self, by: impl Into<Expr>) -> Expr {
        simplify(Expr::CeilDiv, self, by.into())
    }

    /// The larger of two sizes.
    pub fn max(self, other: impl Into<Expr>) -> Expr {
        simplify(Expr::Max, self, other.into())
    }

    /// The smaller of two sizes.
    pub fn min(self, other: impl Into<Expr>) -> Expr {
        simplify(Expr::Min, self, other.into())
    }

    /// The product of all factors; 1 if there are none.
    pub fn product<'a>(factors: impl IntoIterator<Item = &'a Expr>) -> Expr {
        factors.into_iter().cloned().fold(Expr::Const(1), |a, b| a * b)
    }

    /// The expression rounded up to a multiple of `unit`.
    pub fn align_up(self, unit: i64) -> Expr {
        self.ceil_div(unit) * unit
    }
}

fn floor_div(a: i64, b: i64) -> Result<i64, EvalError> {
    if b == 0 {
        return Err(EvalError::DivisionByZero);
    }
    let quotient = a.checked_div(b).ok_or(EvalError::Overflow)?;
    Ok(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// Folds constants and neutral elements; keeps everything else as written.
fn simplify(make: fn(Arc<Expr>, Arc<Expr>) -> Expr, a: Expr, b: Expr) -> Expr {
    let (left, right) = (a.as_const(), b.as_const());
    let whole = make(Arc::new(a), Arc::new(b));
    if left.is_some() && right.is_some() {
        return whole.eval(&[]).map_or(whole, Expr::Const);
    }
    match whole {
        Expr::Add(a, _) | Expr::Sub(a, _) if right == Some(0) => Arc::unwrap_or_clone(a),
        Expr::Add(_, b) if left == Some(0) => Arc::unwrap_or_clone(b),
        Expr::Mul(a, _) | Expr::FloorDiv(a, _) | Expr::CeilDiv(a, _) if right == Some(1) => Arc::unwrap_or_clone(a),
        Expr::Mul(_, b) if left == Some(1) => Arc::unwrap_or_clone(b),
        Expr::Mul(..) if left == Some(0) || right == Some(0) => Expr::Const(0),
        Expr::Max(a, b) | Expr::Min(a, b) if a == b => Arc::unwrap_or_clone(a),
        Expr::Sub(a, b) if a == b => Expr::Const(0),
        // Constants go to the right, so that more equal sizes have the same form.
        Expr::Mul(a, b) if left.is_some() => Expr::Mul(b, a),
        Expr::Add(a, b) if left.is_some() => Expr::Add(b, a),
        // (x * c) / c
        Expr::FloorDiv(a, b) | Expr::CeilDiv(a, b)
            if right.is_some_and(|v| v > 0) && matches!(&*a, Expr::Mul(_, c) if c == &b) =>
        {
            match Arc::unwrap_or_clone(a) {
                Expr::Mul(x, _) => Arc::unwrap_or_clone(x),
                other => other,
            }
        }
        other => other,
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Expr {
        Expr::Const(value)
    }
}

impl From<SymbolId> for Expr {
    fn from(id: SymbolId) -> Expr {
        Expr::Symbol(id)
    }
}

impl<T: Into<Expr>> std::ops::Add<T> for Expr {
    type Output = Expr;
    fn add(self, other: T) -> Expr {
        simplify(Expr::Add, self, other.into())
    }
}

impl<T: Into<Expr>> std::ops::Sub<T> for Expr {
    type Output = Expr;
    fn sub(self, other: T) -> Expr {
        simplify(Expr::Sub, self, other.into())
    }
}

impl<T: Into<Expr>> std::ops::Mul<T> for Expr {
    type Output = Expr;
    fn mul(self, other: T) -> Expr {
        simplify(Expr::Mul, self, other.into())
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(value) => write!(f, "{value}"),
            Expr::Symbol(id) => write!(f, "s{}", id.0),
            Expr::Add(a, b) => write!(f, "({a} + {b})"),
            Expr::Sub(a, b) => write!(f, "({a} - {b})"),
            Expr::Mul(a, b) => write!(f, "({a} * {b})"),
            Expr::FloorDiv(a, b) => write!(f, "({a} / {b})"),
            Expr::CeilDiv(a, b) => write!(f, "ceil({a} / {b})"),
            Expr::Max(a, b) => write!(f, "max({a}, {b})"),
            Expr::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_fold_and_symbols_stay() {
        let s = Expr::from(SymbolId(0));
        assert_eq!(Expr::Const(7).ceil_div(2), Expr::Const(4));
        assert_eq!(s.clone() * 1 + 0, s);
        assert_eq!((s.clone() * 4).floor_div(4), s);
        assert_eq!((s.clone() + 3).eval(&[5]), Ok(8));
        assert_eq!(Expr::Const(-7).floor_div(2), Expr::Const(-4));
        assert_eq!(s.clone().floor_div(0).eval(&[1]), Err(EvalError::DivisionByZero));
        assert_eq!((s * i64::MAX).eval(&[2]), Err(EvalError::Overflow));
    }
}
