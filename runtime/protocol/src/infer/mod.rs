//! Inference requests and answers, decoded and encoded in both formats: pure JSON, or JSON followed
//! by the tensors' bytes.

mod body;
mod raw;
mod request;
mod response;

pub use body::Encoded;
pub use request::{InferRequest, RequestedOutput};
pub use response::{InferResponse, OutputTensor};
