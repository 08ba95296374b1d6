//! What can go wrong, and whose fault it is.

/// Why a tensor graph has no kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodegenError {
    /// The model asks for something the generator cannot do (yet): choose another export, or extend
    /// the generator.
    #[error("node {node}: {reason}")]
    Unsupported {
        /// The model's name of the node.
        node: String,
        /// What is not possible.
        reason: String,
    },
    /// The tensor graph contradicts itself. A bug in the frontend, not in the model.
    #[error("node {node}: the tensor graph is inconsistent: {reason}")]
    Inconsistent {
        /// The model's name of the node.
        node: String,
        /// The contradiction.
        reason: String,
    },
}

impl CodegenError {
    pub(crate) fn unsupported(reason: impl Into<String>) -> CodegenError {
        CodegenError::Unsupported { node: String::new(), reason: reason.into() }
    }

    pub(crate) fn inconsistent(reason: impl Into<String>) -> CodegenError {
        CodegenError::Inconsistent { node: String::new(), reason: reason.into() }
    }

    /// The error with the node it is about; generators do not know names.
    pub(crate) fn at(self, name: &str) -> CodegenError {
        match self {
            CodegenError::Unsupported { reason, .. } => CodegenError::Unsupported { node: name.to_owned(), reason },
            CodegenError::Inconsistent { reason, .. } => CodegenError::Inconsistent { node: name.to_owned(), reason },
        }
    }
}
