//! What a session keeps from one invocation to the next.
//!
//! An invocation of a graph with state buffers is a *step* of a session. A step never overwrites
//! what it reads: a state that a step replaces has two halves, of which one is read and the other
//! one written, and a state that grows is written behind its end. So a step that fails or is
//! cancelled leaves the session as it was, and a step may be evicted and go on anywhere. Which half
//! is which, and where the end is, are symbols whose values the session has.

use crate::expr::{EvalError, Expr, SymbolId};
use crate::graph::BufferId;
use serde::{Deserialize, Serialize};

/// What a session of a graph keeps; nothing where the graph has no state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Symbols whose values the session has.
    pub symbols: Vec<SessionSymbol>,
    /// The tensors of the model that are state.
    pub states: Vec<StateSpec>,
}

/// A symbol that has a value in a session, and another one after each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSymbol {
    /// The symbol.
    pub symbol: SymbolId,
    /// Its value when the session opens.
    pub first: i64,
    /// Its value after a step, over the symbols of that step.
    pub next: Expr,
}

/// An input and an output of the model that are one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSpec {
    /// Where it is kept.
    pub buffer: BufferId,
    /// The model's name of the input that reads it.
    pub input: String,
    /// The model's name of the output that replaces or extends it.
    pub output: String,
    /// Dimensions of the input, outermost first.
    pub shape: Vec<Expr>,
}

impl Session {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty() && self.states.is_empty()
    }

    /// Values of its symbols when the session opens.
    pub fn first(&self) -> Vec<i64> {
        self.symbols.iter().map(|symbol| symbol.first).collect()
    }

    /// Values of its symbols after a step with these values of all symbols.
    ///
    /// # Errors
    /// A value cannot be computed.
    pub fn next(&self, symbols: &[i64]) -> Result<Vec<i64>, EvalError> {
        self.symbols.iter().map(|symbol| symbol.next.eval(symbols)).collect()
    }

    /// Whether a session has the value of a symbol.
    pub fn has(&self, symbol: SymbolId) -> bool {
        self.symbols.iter().any(|own| own.symbol == symbol)
    }
}
