//! Errors of bytes from the wire. The sender is always at fault.

use serde::{Deserialize, Serialize};

/// Why bytes are not a valid request or answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The JSON part is not JSON, or does not have the expected structure.
    #[error("the body is not valid JSON for this request: {0}")]
    Json(String),
    /// The header with the length of the JSON part contradicts the body.
    #[error("Inference-Header-Content-Length is {json_bytes}, but the body has {body_bytes} bytes")]
    JsonLength {
        /// Value of the header.
        json_bytes: usize,
        /// Length of the body.
        body_bytes: usize,
    },
    /// A body without JSON for a model with several inputs or none.
    #[error(
        "Inference-Header-Content-Length is 0, so the body is the input of a model with one input, and this one has \
        {inputs}; describe the inputs in JSON"
    )]
    Raw {
        /// Inputs of the model.
        inputs: usize,
    },
    /// Extra bytes after the last binary tensor.
    #[error(
        "{surplus} extra bytes follow the last tensor; the sum of all binary_data_size must equal the length of the \
        binary part"
    )]
    Surplus {
        /// Number of extra bytes.
        surplus: usize,
    },
    /// A tensor is inconsistent.
    #[error("tensor `{name}`: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A parameter has an invalid value.
    #[error("parameter `{name}`: {reason}")]
    Parameter {
        /// Its name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A limit is exceeded.
    #[error("the body has {count} {what}; the limit is {most}")]
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The limit.
        most: usize,
    },
}

impl ProtocolError {
    pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> ProtocolError {
        ProtocolError::Tensor { name: name.into(), reason: reason.into() }
    }
}

/// The body of every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error message.
    pub error: String,
    /// The missing credential or right, if the request was refused for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
