//! The shared-memory extension is not supported: shared memory by name over an open port has been
//! an attack vector in other servers. No region can be registered, so every list is empty.

use super::error::ApiError;
use axum::Json;
use axum::extract::Path;
use serde_json::Value;

pub(super) async fn status() -> Json<Vec<Value>> {
    Json(Vec::new())
}

pub(super) async fn region_status(Path(region): Path<String>) -> ApiError {
    ApiError::bad_request(format!("unknown shared memory region `{region}`"))
}

pub(super) async fn register(Path(region): Path<String>) -> ApiError {
    ApiError::bad_request(format!(
        "cannot register shared memory region `{region}`: shared memory is not supported; send the tensors in the \
        request"
    ))
}

/// Unregistering an unknown region succeeds.
pub(super) async fn unregister() {}
