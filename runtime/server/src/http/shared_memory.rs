//! The extensions for shared memory.

use super::body::small_json;
use super::identify::Caller;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::shared_memory;
use atoll_protocol::RegionStatus;
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use serde_json::Value;
use std::sync::Arc;

pub(super) async fn status(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Vec<RegionStatus>>, RequestError> {
    shared_memory::status(&app, &caller, "").map(Json)
}

pub(super) async fn region_status(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(region): Path<String>,
) -> Result<Json<Vec<RegionStatus>>, RequestError> {
    shared_memory::status(&app, &caller, &region).map(Json)
}

pub(super) async fn register(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(region): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    let request = small_json(&app, body).await?;
    shared_memory::register(&app, &caller, region, request).await
}

pub(super) async fn unregister(State(app): State<Arc<App>>, Extension(caller): Caller, Path(region): Path<String>) {
    shared_memory::unregister(&app, &caller, &region);
}

pub(super) async fn unregister_all(State(app): State<Arc<App>>, Extension(caller): Caller) {
    shared_memory::unregister(&app, &caller, "");
}

pub(super) async fn cuda_status() -> Json<Vec<Value>> {
    Json(Vec::new())
}

pub(super) async fn cuda_region_status(Path(region): Path<String>) -> RequestError {
    shared_memory::unknown_cuda(&region)
}

pub(super) async fn cuda_register(Path(region): Path<String>) -> RequestError {
    shared_memory::refused_cuda(&region)
}

/// Succeeds and does nothing: there are no CUDA regions, and unregistering an unknown region is not
/// an error.
pub(super) async fn cuda_unregister() {}
