//! The model repository: index, load, unload.

use super::body::small_json;
use super::error::ApiError;
use crate::app::App;
use atoll_protocol::{IndexEntry, IndexRequest, LoadRequest, ModelState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

pub(super) async fn index(State(app): State<Arc<App>>, body: Body) -> Result<Json<Vec<IndexEntry>>, ApiError> {
    let request: IndexRequest = small_json(&app, body).await?;
    let index = app.index();
    let mut index = index.map_err(|e| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the model repository: {e}"))
    })?;
    index.retain(|entry| !request.ready || entry.state == ModelState::Ready);
    Ok(Json(index))
}

pub(super) async fn load(State(app): State<Arc<App>>, Path(name): Path<String>, body: Body) -> Result<(), ApiError> {
    let request: LoadRequest = small_json(&app, body).await?;
    if !request.parameters.is_empty() {
        return Err(ApiError::bad_request(
            "the load parameters `config` and `file:` are not supported; models are loaded from the repository as they \
            are",
        ));
    }
    // The load continues even if the client disconnects.
    let load = tokio::spawn(async move { app.repository.load(&name).await });
    Ok(load.await.map_err(|_| ApiError::panicked())??)
}

/// `unload_dependents` is ignored, since models do not depend on each other.
pub(super) async fn unload(State(app): State<Arc<App>>, Path(name): Path<String>, body: Body) -> Result<(), ApiError> {
    let _: LoadRequest = small_json(&app, body).await?;
    let unload = tokio::spawn(async move { app.repository.unload(&name).await });
    Ok(unload.await.map_err(|_| ApiError::panicked())??)
}
