//! Errors of the importer.

use crate::tensor_graph::ValueId;
use crate::verify::VerifyErrors;
use atoll_kgraph::SymbolId;
use std::path::PathBuf;

/// Why a model could not be imported. Every message says what to do, or names the place in the
/// model.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file has 0 bytes.
    #[error("the model is empty (0 bytes); was the download complete?")]
    Empty,
    /// The bytes are not an ONNX model.
    #[error("not an ONNX model, or a truncated one: {reason}")]
    Malformed {
        /// What is wrong with them.
        reason: String,
    },
    /// The operator set is outside the supported range.
    #[error(
        "opset {version} is not supported, only {min} to {max}; \
         convert the model, for example with onnx.version_converter"
    )]
    Opset {
        /// The model's operator set.
        version: i64,
        /// The oldest supported one.
        min: i64,
        /// The newest supported one.
        max: i64,
    },
    /// The operator is not in the table of supported operators.
    #[error(
        "node {node}: operator {operator} of domain {domain} (opset {opset}) is not supported{}",
        .nearest.map_or_else(
            || "; docs/reference/onnx-operators.md lists the supported operators".into(),
            |name| format!("; the nearest supported operator is {name}")
        )
    )]
    UnsupportedOperator {
        /// The node.
        node: String,
        /// The operator's name.
        operator: String,
        /// The operator's domain.
        domain: String,
        /// The model's version of that domain.
        opset: i64,
        /// A supported operator with a similar name.
        nearest: Option<&'static str>,
    },
    /// The operator is supported, but not with these attributes or operands.
    #[error("node {node} ({operator}): not supported: {reason}")]
    Unsupported {
        /// The node's name.
        node: String,
        /// Its operator.
        operator: String,
        /// What is not supported, and what to do about it.
        reason: String,
    },
    /// An element type that is not supported.
    #[error(
        "{what} has element type {dtype}, which is not supported; \
         supported are bool, integers of 8 to 64 bits, float16, bfloat16, float32 and float64"
    )]
    DType {
        /// Tensor or node.
        what: String,
        /// ONNX's name or number of the type.
        dtype: String,
    },
    /// The model contradicts itself or the ONNX specification.
    #[error("the model is invalid at {place}: {reason}")]
    Invalid {
        /// Node or tensor.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The nodes depend on each other in a circle.
    #[error("the model is invalid: its nodes form a cycle: {}", .nodes.join(" -> "))]
    Cycle {
        /// At most 8 nodes of the cycle.
        nodes: Vec<String>,
    },
    /// Something is larger than a limit.
    #[error("{what} is {found}, more than the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// How large it is.
        found: String,
        /// The limit that it exceeds.
        limit: String,
    },
    /// A file of external data cannot be read.
    #[error("the weights of {tensor} are in {path}, which cannot be read ({source}); put that file beside the model")]
    ExternalDataMissing {
        /// The tensor whose data it is.
        tensor: String,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// External data is outside the model's folder, or does not have the tensor's size.
    #[error("the external data of {tensor} is not accepted: {reason}")]
    ExternalData {
        /// The tensor.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// No value in the range of a symbol satisfies a node.
    #[error("{needs}, but {range}; give `{symbol}` another range, for example `--symbol {symbol}=1..8`")]
    Range {
        /// The symbol.
        symbol: String,
        /// What the node needs, with its name.
        needs: String,
        /// The symbol's range, and what set it.
        range: String,
    },
    /// An option names a symbol that the model does not have.
    #[error("no input has a dimension named `{symbol}`; {known}")]
    UnknownSymbol {
        /// The name in the option.
        symbol: String,
        /// The symbols of the model.
        known: String,
    },
    /// The importer built an invalid graph: a bug in Atoll.
    #[error("internal error, please report: the imported graph is not valid: {0}")]
    Internal(#[from] VerifyErrors),
}

/// Why one node cannot be lowered; the importer adds the node's name.
#[derive(Debug)]
pub(crate) enum LowerError {
    /// Valid ONNX that is not supported.
    Unsupported(String),
    /// Not valid ONNX.
    Invalid(String),
    /// Something exceeds a limit.
    TooLarge { what: String, found: String, limit: String },
    /// The import must restart with this fact about sizes.
    Restart(SizeFact),
}

/// A fact about sizes that a node needs. The importer learns it only after it has bound the model's
/// inputs, so it restarts with the fact.
#[derive(Debug)]
pub(crate) enum SizeFact {
    /// Two symbols are equal.
    Same(SymbolId, SymbolId),
    /// The symbol's value is in this range.
    Range {
        /// The symbol.
        symbol: SymbolId,
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// The elements of this input are sizes.
    Elements(ValueId),
}

impl LowerError {
    /// The error for a tensor in an attribute of the node.
    pub(crate) fn in_attribute(error: ImportError) -> LowerError {
        match error {
            ImportError::DType { dtype, .. } => LowerError::Unsupported(format!("its tensor has element type {dtype}")),
            error => LowerError::Invalid(error.to_string()),
        }
    }

    /// Adds the node to the error.
    pub(super) fn at(self, node: &str, operator: &str) -> ImportError {
        match self {
            LowerError::Unsupported(reason) => {
                ImportError::Unsupported { node: node.into(), operator: operator.into(), reason }
            }
            LowerError::Invalid(reason) => ImportError::Invalid { place: format!("node {node} ({operator})"), reason },
            LowerError::TooLarge { what, found, limit } => {
                ImportError::TooLarge { what: format!("{what} of node {node} ({operator})"), found, limit }
            }
            LowerError::Restart(_) => ImportError::Invalid {
                place: node.into(),
                reason: "it needs sizes that are not known when the outputs are bound".into(),
            },
        }
    }
}

pub(crate) type LowerResult<T> = Result<T, LowerError>;

pub(crate) fn unsupported<T>(reason: impl Into<String>) -> LowerResult<T> {
    Err(LowerError::Unsupported(reason.into()))
}

pub(crate) fn invalid<T>(reason: impl Into<String>) -> LowerResult<T> {
    Err(LowerError::Invalid(reason.into()))
}
