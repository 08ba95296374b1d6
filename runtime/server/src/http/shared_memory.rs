//! The extensions for shared memory.

use super::base64;
use super::body::small_json;
use super::identify::Caller;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::shared_memory;
use crate::shared_memory::{CudaRegister, Sharing};
use atoll_protocol::{CudaRegionStatus, CudaRegisterRequest, RegionStatus};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
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
    shared_memory::unregister(&app, &caller, &region, Sharing::System);
}

pub(super) async fn unregister_all(State(app): State<Arc<App>>, Extension(caller): Caller) {
    shared_memory::unregister(&app, &caller, "", Sharing::System);
}

pub(super) async fn cuda_status(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Vec<CudaRegionStatus>>, RequestError> {
    shared_memory::cuda_status(&app, &caller, "").map(Json)
}

pub(super) async fn cuda_region_status(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(region): Path<String>,
) -> Result<Json<Vec<CudaRegionStatus>>, RequestError> {
    shared_memory::cuda_status(&app, &caller, &region).map(Json)
}

pub(super) async fn cuda_register(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(region): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    let CudaRegisterRequest { raw_handle, device_id, byte_size } = small_json(&app, body).await?;
    let handle = base64::decode(&raw_handle.b64);
    let handle = handle.ok_or_else(|| RequestError::bad_request("raw_handle.b64 is not valid Base64"))?;
    shared_memory::register_cuda(&app, &caller, region, CudaRegister { handle, device_id, byte_size }).await
}

pub(super) async fn cuda_unregister(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(region): Path<String>,
) {
    shared_memory::unregister(&app, &caller, &region, Sharing::Cuda);
}

pub(super) async fn cuda_unregister_all(State(app): State<Arc<App>>, Extension(caller): Caller) {
    shared_memory::unregister(&app, &caller, "", Sharing::Cuda);
}
