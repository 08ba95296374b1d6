//! The outcomes other than success of lowering a list of nodes.

use super::error::{ImportError, LowerError, LowerResult, SizeFact};
use super::scope::Item;
use crate::tensor_graph::ValueId;

/// Why nodes were not lowered.
pub(super) enum Failure {
    /// The import fails.
    Import(ImportError),
    /// The current node cannot be lowered; [`Import::lower_nodes`] adds the node's name.
    Lower(LowerError),
    /// The import must restart with a fact about sizes that a node needs.
    Restart { place: String, fact: SizeFact },
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        Failure::Import(error)
    }
}

impl From<LowerError> for Failure {
    fn from(error: LowerError) -> Failure {
        Failure::Lower(error)
    }
}

/// The tensor of an operand or result that must be one; `what` names it in the error.
pub(super) fn tensor_of(item: &Item, what: &str) -> LowerResult<ValueId> {
    match item {
        Item::Tensor(id) => Ok(*id),
        Item::Sequence(_) => {
            Err(LowerError::Unsupported(format!("{what} is a sequence; only a tensor is supported here")))
        }
        Item::Nothing => Err(LowerError::Unsupported(format!("{what} is an optional without an element"))),
    }
}
