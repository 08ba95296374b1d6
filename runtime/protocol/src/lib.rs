//! Wire types of KServe v2 (the Open Inference Protocol), with the extensions of Triton that its
//! clients use: binary tensors, classification, generate, shared memory, model repository,
//! statistics, logging and trace settings; and of KServe v1 (`predict.rs`, `predictions.rs`).
//!
//! This crate is pure: it converts bytes to values and back. It has no sockets, no HTTP types, no
//! shared memory and no models: `atoll_server` checks whether a tensor matches a model, and reads
//! inputs from shared memory.
//!
//! Start reading in `infer/request.rs`.
//!
//! # Invariants
//!
//! - A decoded [`Tensor`] is consistent: its shape has no negative dimension, and the length of its
//!   bytes matches shape and type.
//! - Decoding arbitrary bytes returns a value or a [`ProtocolError`], in time and memory linear in
//!   the number of bytes.
//! - Decoding the result of [`InferRequest::encode`] or [`InferResponse::encode`] gives the same
//!   value, with one exception: an answer has no elements of outputs in shared memory. As in
//!   Triton, JSON has NaN and infinities (`json.rs`).

mod classify;
mod datatype;
mod elements;
mod error;
mod generate;
mod infer;
mod json;
pub mod limits;
mod model;
mod parameters;
mod predict;
mod predictions;
mod repository;
mod settings;
mod shared;
mod tensor;

pub use classify::{ScoreGroups, top_classes};
pub use datatype::{DataType, UnknownDataType};
pub use elements::to_f64;
pub use error::{ErrorBody, ProtocolError};
pub use generate::{decode_generate, encode_generated};
pub use infer::{Encoded, InferRequest, InferResponse, OutputTensor, RequestedOutput};
pub use model::{
    BatchStatistics, ConfigNote, ConfigParameter, ConfigQueuePolicy, ConfigReshape, ConfigResponseCache, ConfigState,
    ConfigTensor, ConfigTransactionPolicy, ConfigTreatment, ConfigVersionPolicy, DurationStatistics, DynamicBatching,
    EnsembleScheduling, EnsembleStep, InferenceStatistics, Live, ModelConfig, ModelMetadata, ModelReady,
    ModelStatistics, ModelStatisticsList, Ready, SequenceBatching, ServerMetadata, TensorMetadata,
};
pub use parameters::Parameters;
pub use predict::{PredictForm, PredictRequest};
pub use predictions::encode_predictions;
pub use repository::{IndexEntry, IndexRequest, LoadRequest, ModelExplanation, ModelState};
pub use settings::{LogSettings, TraceSettings};
pub use shared::{
    CudaRegionStatus, CudaRegisterRequest, RawHandle, RegionStatus, RegisterRequest, SharedRange, SharedTensor,
};
pub use tensor::{Tensor, check_bytes, strings};

/// Name of the header with the length of the JSON part of a body; the rest are binary tensors.
pub const JSON_LENGTH_HEADER: &str = "inference-header-content-length";

/// The version of models that have no version numbers.
pub const MODEL_VERSION: &str = "1";
