//! The shared-memory extension, which is not supported.

use crate::requests::error::RequestError;
use crate::requests::shared_memory;
use axum::Json;
use axum::extract::Path;
use serde_json::Value;

pub(super) async fn status() -> Json<Vec<Value>> {
    Json(Vec::new())
}

pub(super) async fn region_status(Path(region): Path<String>) -> RequestError {
    shared_memory::unknown(&region)
}

pub(super) async fn register(Path(region): Path<String>) -> RequestError {
    shared_memory::refused(&region)
}

/// Unregistering an unknown region succeeds.
pub(super) async fn unregister() {}
