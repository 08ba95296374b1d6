//! What can be wrong with bytes from the wire. All of it is the fault of whoever sent them.

use serde::{Deserialize, Serialize};

/// Why bytes are no request, or no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The JSON part is no JSON, or not of the expected form.
    #[error("the JSON of the body cannot be read: {0}")]
    Json(String),
    /// The header with the length of the JSON part contradicts the body.
    #[error("Inference-Header-Content-Length is {json_bytes}, the body has {body_bytes} bytes")]
    JsonLength {
        /// What the header says.
        json_bytes: usize,
        /// What there is.
        body_bytes: usize,
    },
    /// Bytes behind the last binary tensor.
    #[error(
        "{surplus} bytes follow the last tensor; the sum of all binary_data_size must be the length of the binary part"
    )]
    Surplus {
        /// How many.
        surplus: usize,
    },
    /// A tensor contradicts itself.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A parameter has a value it cannot have.
    #[error("parameter `{name}`: {reason}")]
    Parameter {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More than is allowed.
    #[error("{count} {what}, at most {most} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many may be.
        most: usize,
    },
}

impl ProtocolError {
    pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> ProtocolError {
        ProtocolError::Tensor { name: name.into(), reason: reason.into() }
    }
}

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: String,
}
