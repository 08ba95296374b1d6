//! Values that a model refuses when it runs: an index that lies outside of its axis, an integer
//! divided by zero.
//!
//! Each check of a graph has a word in the invocation's control area, which is zero when an
//! invocation begins. A kernel that finds a violation stores a number other than zero there and
//! goes on with some value that harms nobody. The engine reads the words with the outputs; where
//! one is not zero the invocation fails with the text of the first check that was violated. So no
//! launch is added, and a graph without checks pays nothing.

use crate::expr::{EvalError, Expr};
use crate::graph::NodeId;
use serde::{Deserialize, Serialize};

/// A condition that a node's kernel checks while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The node whose kernel checks it.
    pub node: NodeId,
    /// What is wrong where it is violated, for whoever made the inputs. `{}` stands for the next of
    /// `values`.
    pub text: String,
    /// Numbers of the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Expr>,
}

/// Where a text has a number.
const HOLE: &str = "{}";

impl Check {
    /// How many numbers the text takes.
    pub fn holes(&self) -> usize {
        self.text.matches(HOLE).count()
    }

    /// The text with its numbers, for these values of the symbols.
    ///
    /// # Errors
    /// A number that has no value.
    pub fn message(&self, symbols: &[i64]) -> Result<String, EvalError> {
        let mut parts = self.text.split(HOLE);
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
        assert_eq!((check.holes(), check.message(&[5])), (2, Ok("an index is outside of -5..4".into())));
    }
}
