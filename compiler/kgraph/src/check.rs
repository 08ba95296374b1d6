//! Runtime checks: conditions on values that a kernel finds while it runs, such as an index within
//! its axis or a nonzero divisor.
//!
//! Each check of a graph has a word in the control area of the invocation, which is zeroed when the
//! invocation begins. A kernel that finds a violation stores a nonzero number there and continues
//! with a harmless value. The engine reads the words together with the outputs. If one is nonzero,
//! the invocation fails with the text of the first violated check. Checks therefore need no extra
//! launch, and a graph without checks has no cost.

use crate::expr::{EvalError, Expr};
use crate::graph::NodeId;
use serde::{Deserialize, Serialize};

/// A condition that a node's kernel checks while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The node whose kernel checks it.
    pub node: NodeId,
    /// The error message for the caller if it is violated. Each `{}` stands for the next of
    /// `values`.
    pub text: String,
    /// The numbers in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Expr>,
}

/// The placeholder of a number in a text.
const PLACEHOLDER: &str = "{}";

impl Check {
    /// The number of placeholders in the text.
    pub fn placeholders(&self) -> usize {
        self.text.matches(PLACEHOLDER).count()
    }

    /// The text with its numbers, for the given values of the symbols.
    ///
    /// # Errors
    /// A number cannot be computed.
    pub fn message(&self, symbols: &[i64]) -> Result<String, EvalError> {
        let mut parts = self.text.split(PLACEHOLDER);
        let mut message = parts.next().unwrap_or_default().to_owned();
        for (value, part) in self.values.iter().zip(parts) {
            message += &format!("{}{part}", value.eval(symbols)?);
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::SymbolId;

    #[test]
    fn a_message_has_the_numbers_of_the_invocation() {
        let n = Expr::from(SymbolId(0));
        let values = vec![Expr::Const(0) - n.clone(), n - 1];
        let check = Check { node: NodeId(0), text: "an index is outside of {}..{}".into(), values };
        assert_eq!((check.placeholders(), check.message(&[5])), (2, Ok("an index is outside of -5..4".into())));
    }
}
