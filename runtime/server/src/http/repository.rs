//! The model repository: index, load, unload.

use super::body::small_json;
use super::identify::Caller;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::repository;
use atoll_protocol::{IndexEntry, IndexRequest, LoadRequest};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

pub(super) async fn index(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<Vec<IndexEntry>>, RequestError> {
    let request: IndexRequest = small_json(&app, body).await?;
    repository::index(&app, &caller, request.ready).await.map(Json)
}

pub(super) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    repository::check(&app, &caller, &name)?;
    let request: LoadRequest = small_json(&app, body).await?;
    repository::load(app, name, !request.parameters.is_empty()).await
}

/// `unload_dependents` is ignored, since models do not depend on each other.
pub(super) async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    repository::check(&app, &caller, &name)?;
    let _: LoadRequest = small_json(&app, body).await?;
    repository::unload(app, name).await
}
