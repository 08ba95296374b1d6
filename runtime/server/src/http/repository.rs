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
    let mut index = index
        .map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the repository cannot be read: {e}")))?;
    index.retain(|entry| !request.ready || entry.state == ModelState::Ready);
    Ok(Json(index))
}

pub(super) async fn load(State(app): State<Arc<App>>, Path(name): Path<String>, body: Body) -> Result<(), ApiError> {
    let request: LoadRequest = small_json(&app, body).await?;
    if !request.parameters.is_empty() {
        return Err(ApiError::bad_request(
            "models are loaded from the repository as they are; `config` and `file:` parameters are not supported",
        ));
    }
    // A load goes on when its client does not wait for it.
    let load = tokio::spawn(async move { app.repository.load(&name).await });
    Ok(load.await.map_err(|_| ApiError::panicked())??)
}

/// `unload_dependents` is ignored: no model depends on another.
pub(super) async fn unload(State(app): State<Arc<App>>, Path(name): Path<String>, body: Body) -> Result<(), ApiError> {
    let _: LoadRequest = small_json(&app, body).await?;
    let unload = tokio::spawn(async move { app.repository.unload(&name).await });
    Ok(unload.await.map_err(|_| ApiError::panicked())??)
}
