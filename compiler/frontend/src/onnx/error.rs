//! What can be wrong with a model, and whose fault it is.

use crate::tensor_graph::ValueId;
use crate::verify::VerifyErrors;
use atoll_kgraph::SymbolId;
use std::path::PathBuf;

/// Why a model could not be imported. Every variant says what to do, or names the place in the
/// model.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("the model is empty (0 bytes); was the download complete?")]
    Empty,
    /// The bytes are no ONNX model.
    #[error("not an ONNX model, or a truncated one: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The operator set is outside what is supported.
    #[error("opset {version} is not supported, only {min} to {max}; convert the model with onnx.version_converter")]
    Opset {
        /// The model's.
        version: i64,
        /// Oldest supported.
        min: i64,
        /// Newest supported.
        max: i64,
    },
    /// An operator that is not known.
    #[error(
        "node {node}: operator {operator} of domain {domain} (opset {opset}) is not supported{}",
        .nearest.map_or_else(String::new, |name| format!("; the nearest supported operator is {name}"))
    )]
    UnsupportedOperator {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
        /// The operator's domain.
        domain: String,
        /// The model's version of that domain.
        opset: i64,
        /// A supported operator with a similar name.
        nearest: Option<&'static str>,
    },
    /// A use of an operator that is not supported.
    #[error("node {node} ({operator}): not supported: {reason}")]
    Unsupported {
        /// The node.
        node: String,
        /// Its operator.
        operator: String,
        /// What about it.
        reason: String,
    },
    /// An element type that is not supported.
    #[error("{what} has element type {dtype}, which is not supported")]
    DType {
        /// Tensor or node.
        what: String,
        /// ONNX's name or number of the type.
        dtype: String,
    },
    /// The model contradicts itself or ONNX.
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
        /// Some of them.
        nodes: Vec<String>,
    },
    /// Something is larger than a limit.
    #[error("{what} is {found}, more than the limit of {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// How large it is.
        found: String,
        /// The limit.
        limit: String,
    },
    /// External data is missing.
    #[error("the weights of {tensor} lie in {path}, which cannot be read ({source}); put that file beside the model")]
    ExternalDataMissing {
        /// The tensor.
        tensor: String,
        /// Where they should lie.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// External data points to a place it must not, or does not fit.
    #[error("the external data of {tensor} is refused: {reason}")]
    ExternalData {
        /// The tensor.
        tensor: String,
        /// Why.
        reason: String,
    },
    /// No value of a symbol fits what a node needs.
    #[error("{needs}, but {range}; give `{symbol}` another range, as `--symbol {symbol}=1..8`")]
    Range {
        /// The symbol.
        symbol: String,
        /// What the node needs.
        needs: String,
        /// The symbol's range, and what set it.
        range: String,
    },
    /// An option names a size that the model does not have.
    #[error("no input has a dimension `{symbol}`; {known}")]
    UnknownSymbol {
        /// The name in the options.
        symbol: String,
        /// Those that there are.
        known: String,
    },
    /// The importer made an invalid graph: a mistake of ours.
    #[error("internal error, please report: the imported graph is not valid: {0}")]
    Internal(#[from] VerifyErrors),
}

/// Why one node could not be lowered; the importer adds which node.
#[derive(Debug)]
pub(crate) enum LowerError {
    /// Legal ONNX that is not supported.
    Unsupported(String),
    /// No legal ONNX.
    Invalid(String),
    /// Larger than a limit.
    TooLarge { what: String, found: String, limit: String },
    /// Something about symbols that the import begins again with.
    Learned(Lesson),
}

/// What a node teaches about the symbols.
#[derive(Debug)]
pub(crate) enum Lesson {
    /// Two are one.
    Same(SymbolId, SymbolId),
    /// No other values are possible.
    Range {
        /// The symbol.
        symbol: SymbolId,
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// The elements of an input are sizes.
    Elements(ValueId),
}

impl LowerError {
    /// The error with its place.
    pub(super) fn at(self, node: &str, operator: &str) -> ImportError {
        match self {
            LowerError::Unsupported(reason) => {
                ImportError::Unsupported { node: node.into(), operator: operator.into(), reason }
            }
            LowerError::Invalid(reason) => ImportError::Invalid { place: format!("node {node} ({operator})"), reason },
            LowerError::TooLarge { what, found, limit } => {
                ImportError::TooLarge { what: format!("{what} of node {node} ({operator})"), found, limit }
            }
            LowerError::Learned(_) => {
                ImportError::Invalid { place: node.into(), reason: "sizes do not fit each other".into() }
            }
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
