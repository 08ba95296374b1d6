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

    /// Dimensions of each state, given the values of all symbols in a step, with the session's own
    /// symbols as they were when it opened. They are the same in all steps, unless a step has
    /// another number of rows than the state.
    ///
    /// # Errors
    /// A value cannot be computed.
    pub fn form(&self, symbols: &[i64]) -> Result<Vec<Vec<i64>>, EvalError> {
        let mut symbols = symbols.to_vec();
        for own in &self.symbols {
            if let Some(value) = symbols.get_mut(own.symbol.0 as usize) {
                *value = own.first;
            }
        }
        self.states.iter().map(|state| state.shape.iter().map(|size| size.eval(&symbols)).collect()).collect()
    }

    /// Whether the value of a symbol belongs to the session.
    pub fn has(&self, symbol: SymbolId) -> bool {
        self.symbols.iter().any(|own| own.symbol == symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_state_is_that_of_its_rows_and_not_of_its_length() {
        let (rows, past) = (SymbolId(0), SymbolId(1));
        let session = Session {
            symbols: vec![SessionSymbol { symbol: past, first: 0, next: Expr::from(past) + Expr::from(rows) }],
            states: vec![StateSpec {
                buffer: BufferId(0),
                input: "past".into(),
                output: "present".into(),
                shape: vec![Expr::from(rows), Expr::from(past), Expr::Const(8)],
            }],
        };
        assert_eq!(session.form(&[2, 0]), Ok(vec![vec![2, 0, 8]]));
        assert_eq!(session.form(&[2, 5]), session.form(&[2, 0]));
        assert_eq!(session.form(&[1, 5]), Ok(vec![vec![1, 0, 8]]));
    }
}
