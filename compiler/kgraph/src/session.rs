//! The state that a session keeps between invocations.
//!
//! An invocation of a graph with state buffers is a *step* of a session. A step never overwrites
//! what it reads. A state that a step replaces has two halves: one is read, the other written. A
//! state that grows is written past its end. Therefore a failed or cancelled step leaves the
//! session unchanged, and an evicted step can resume anywhere. Symbols whose values belong to the
//! session record which half is current and where a growing state ends.

use crate::expr::{EvalError, Expr, SymbolId};
use crate::graph::BufferId;
use serde::{Deserialize, Serialize};

/// The state of a session; empty for a graph without state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Symbols whose values belong to the session.
    pub symbols: Vec<SessionSymbol>,
    /// The tensors of the model that are state.
    pub states: Vec<StateSpec>,
}

/// A symbol whose value belongs to the session and changes with each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSymbol {
    /// The symbol.
    pub symbol: SymbolId,
    /// Its value when the session opens.
    pub first: i64,
    /// Its value after a step, over the symbols of the step.
    pub next: Expr,
}

/// An input and an output of the model that form one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateSpec {
    /// The state buffer.
    pub buffer: BufferId,
    /// Name of the model input that reads it.
    pub input: String,
    /// Name of the model output that replaces or extends it.
    pub output: String,
    /// Dimensions of the input, outermost first.
    pub shape: Vec<Expr>,
}

impl Session {
    /// Whether the graph has no state.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty() && self.states.is_empty()
    }

    /// Values of the session's symbols when it opens.
    pub fn first(&self) -> Vec<i64> {
        self.symbols.iter().map(|symbol| symbol.first).collect()
    }

    /// Values of the session's symbols after a step, given the values of all symbols in that step.
    ///
    /// # Errors
    /// A value cannot be computed.
    pub fn next(&self, symbols: &[i64]) -> Result<Vec<i64>, EvalError> {
        self.symbols.iter().map(|symbol| symbol.next.eval(symbols)).collect()
    }

    /// Whether the value of a symbol belongs to the session.
    pub fn has(&self, symbol: SymbolId) -> bool {
        self.symbols.iter().any(|own| own.symbol == symbol)
    }
}
