//! The wire types of KServe v2 (the Open Inference Protocol) with the extensions of Triton that its
//! clients use: binary tensors, classification, model repository, statistics, logging and trace
//! settings.
//!
//! Pure: bytes in, values out, and back. No socket, no HTTP type, no model: whether a tensor fits a
//! model is for whoever knows the model.
//!
//! # Invariants
//!
//! - A decoded [`Tensor`] is whole: its shape has no negative dimension and its bytes are exactly
//!   as many as shape and type say.
//! - Whatever the bytes, decoding ends in a value or a [`ProtocolError`], in time and memory linear
//!   in their number.
//! - What [`InferRequest::encode`] and [`InferResponse::encode`] write, the decoders here read back
//!   unchanged, except that JSON has no NaN and no infinity.

mod classify;
mod datatype;
mod elements;
mod error;
mod infer;
pub mod limits;
mod model;
mod parameters;
mod repository;
mod settings;
mod tensor;

pub use classify::top_classes;
pub use datatype::{DataType, UnknownDataType};
pub use elements::to_f64;
pub use error::{ErrorBody, ProtocolError};
pub use infer::{Encoded, InferRequest, InferResponse, OutputTensor, RequestedOutput};
pub use model::{
    ConfigState, ConfigTensor, DurationStatistics, InferenceStatistics, Live, ModelConfig, ModelMetadata, ModelReady,
    ModelStatistics, ModelStatisticsList, Ready, SequenceBatching, ServerMetadata, TensorMetadata,
};
pub use parameters::Parameters;
pub use repository::{IndexEntry, IndexRequest, LoadRequest, ModelState};
pub use settings::{LogSettings, TraceSettings};
pub use tensor::Tensor;

/// Name of the header that says how many bytes of a body are JSON; the rest are tensors.
pub const JSON_LENGTH_HEADER: &str = "inference-header-content-length";

/// The one version every model has.
pub const MODEL_VERSION: &str = "1";
