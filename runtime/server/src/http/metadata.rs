//! Metadata of the server and of models.

use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::inference::blocking;
use crate::requests::error::RequestError;
use crate::scaling::StoredProfile;
use atoll_protocol::{ModelConfig, ModelMetadata, ServerMetadata};
use axum::Json;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

pub(super) async fn server(State(app): State<Arc<App>>) -> Json<ServerMetadata> {
    Json(crate::requests::metadata::server(&app))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelMetadata>, RequestError> {
    Ok(Json(app.metadata(&caller, &path.name, path.version.as_deref())?))
}

pub(super) async fn config(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelConfig>, RequestError> {
    Ok(Json(app.find(&caller, &path.name, path.version.as_deref())?.config()))
}

pub(super) async fn profile(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<StoredProfile>, RequestError> {
    let model = app.find(&caller, &path.name, path.version.as_deref())?;
    // Reads a file.
    let found = blocking(move || StoredProfile::of(&app, &model)).await;
    found.map(Json).ok_or_else(RequestError::panicked)
}
