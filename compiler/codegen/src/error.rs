//! Errors of code generation.

/// Why a tensor graph cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodegenError {
    /// The model uses something that the generator does not support.
    #[error("node {node}: not supported: {reason}")]
    Unsupported {
        /// The model's name of the node.
        node: String,
        /// What is not supported.
        reason: String,
    },
    /// The tensor graph violates an invariant: a bug in the frontend, not in the model.
    #[error("node {node}: the tensor graph is inconsistent: {reason}")]
    Inconsistent {
        /// The model's name of the node.
        node: String,
        /// The violation.
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

    /// Sets the node of the error; the kernel generators do not know its name.
    pub(crate) fn at(self, name: &str) -> CodegenError {
        match self {
            CodegenError::Unsupported { reason, .. } => CodegenError::Unsupported { node: name.to_owned(), reason },
            CodegenError::Inconsistent { reason, .. } => CodegenError::Inconsistent { node: name.to_owned(), reason },
        }
    }
}
