//! Why nodes could not be lowered.

use super::error::{ImportError, Lesson, LowerError, LowerResult};
use super::scope::Item;
use crate::tensor_graph::ValueId;

/// Why nodes could not be lowered.
pub(super) enum Failure {
    /// The import ends here.
    Import(ImportError),
    /// The node being lowered is at fault; which one that is, [`Import::lower_nodes`] adds.
    Lower(LowerError),
    /// A node taught something about symbols.
    Learned { place: String, lesson: Lesson },
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

/// An operand that must be a tensor.
pub(super) fn tensor_of(item: &Item, what: &str) -> LowerResult<ValueId> {
    match item {
        Item::Tensor(id) => Ok(*id),
        Item::Sequence(_) => Err(LowerError::Unsupported(format!("{what} is a sequence where a tensor is expected"))),
        Item::Nothing => Err(LowerError::Invalid(format!("{what} is missing"))),
    }
}
