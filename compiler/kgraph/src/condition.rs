//! Facts about symbols that are known only when inputs are bound: values that are elements of an
//! input, and conditions on sizes.

use crate::expr::{EvalError, Expr, SymbolId};
use crate::graph::SymbolSpec;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A symbol whose value is an element of an input, such as an entry of a shape given by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputElement {
    /// The symbol.
    pub symbol: SymbolId,
    /// Index of the input, in the order of the graph's inputs. Its elements are integers.
    pub input: u32,
    /// Index of the element, row-major.
    pub index: u32,
}

/// A condition on sizes that could not be decided at compile time. It is checked when inputs are
/// bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The part of the model that requires it, for messages.
    pub place: String,
    /// How the two sizes must relate.
    pub relation: Relation,
    /// The left size.
    pub left: Expr,
    /// The right size.
    pub right: Expr,
}

/// How two sizes relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Both are equal.
    Equal,
    /// The left size is 1 or equals the right size, so it broadcasts.
    Broadcasts,
    /// The left size is at least the right size.
    AtLeast,
}

impl Condition {
    /// Whether the condition holds for the given values of the symbols.
    ///
    /// # Errors
    /// A size cannot be computed.
    pub fn holds(&self, symbols: &[i64]) -> Result<bool, EvalError> {
        let (left, right) = (self.left.eval(symbols)?, self.right.eval(symbols)?);
        Ok(match self.relation {
            Relation::Equal => left == right,
            Relation::Broadcasts => left == 1 || left == right,
            Relation::AtLeast => left >= right,
        })
    }

    /// The condition with the names of the symbols: `seq = past + 1`.
    pub fn text(&self, symbols: &[SymbolSpec]) -> String {
        let (left, right) = (self.left.named(symbols), self.right.named(symbols));
        match self.relation {
            Relation::Equal => format!("{left} = {right}"),
            Relation::Broadcasts => format!("{left} to be 1 or {right}"),
            Relation::AtLeast => format!("{left} to be at least {right}"),
        }
    }
}

/// An expression, displayed with the names of its symbols.
struct Named<'a> {
    expr: &'a Expr,
    symbols: &'a [SymbolSpec],
}

impl Expr {
    /// Displays the expression with the symbols' names instead of their numbers.
    pub fn named<'a>(&'a self, symbols: &'a [SymbolSpec]) -> impl fmt::Display + 'a {
        Named { expr: self, symbols }
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |expr| Named { expr, symbols: self.symbols };
        match self.expr {
            Expr::Const(value) => write!(f, "{value}"),
            Expr::Symbol(id) => match self.symbols.get(id.0 as usize) {
                Some(symbol) => f.write_str(&symbol.name),
                None => write!(f, "s{}", id.0),
            },
            Expr::Add(a, b) => write!(f, "({} + {})", of(a), of(b)),
            Expr::Sub(a, b) => write!(f, "({} - {})", of(a), of(b)),
            Expr::Mul(a, b) => write!(f, "({} * {})", of(a), of(b)),
            Expr::FloorDiv(a, b) => write!(f, "({} / {})", of(a), of(b)),
            Expr::CeilDiv(a, b) => write!(f, "ceil({} / {})", of(a), of(b)),
            Expr::Max(a, b) => write!(f, "max({}, {})", of(a), of(b)),
            Expr::Min(a, b) => write!(f, "min({}, {})", of(a), of(b)),
        }
    }
}
