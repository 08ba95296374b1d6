//! Shared memory by name over an open port has been the way into other servers; here no region can
//! be registered, and so none is there.

use super::error::ApiError;
use crate::app::App;
use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use std::sync::Arc;

/// The routes of one kind of shared memory.
pub(super) fn routes(kind: &str) -> Router<Arc<App>> {
    Router::new()
        .route(&format!("/v2/{kind}/status"), get(status))
        .route(&format!("/v2/{kind}/region/{{region}}/status"), get(region_status))
        .route(&format!("/v2/{kind}/region/{{region}}/register"), post(register))
        .route(&format!("/v2/{kind}/unregister"), post(unregister))
        .route(&format!("/v2/{kind}/region/{{region}}/unregister"), post(unregister))
}

async fn status() -> Json<Vec<Value>> {
    Json(Vec::new())
}

async fn region_status(Path(region): Path<String>) -> ApiError {
    ApiError::bad_request(format!("there is no shared memory region `{region}`"))
}

async fn register(Path(region): Path<String>) -> ApiError {
    ApiError::bad_request(format!(
        "shared memory region `{region}` is not registered: shared memory is not supported; send tensors in the request"
    ))
}

/// What is not registered is as good as unregistered.
async fn unregister() {}
