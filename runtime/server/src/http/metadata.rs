//! Metadata of the server and of models.

use super::error::ApiError;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use atoll_protocol::{ModelConfig, ModelMetadata, ServerMetadata};
use axum::Json;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

/// The implemented extensions of the protocol; clients rely on this list.
const EXTENSIONS: [&str; 9] = [
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
    "trace",
];

pub(super) async fn server() -> Json<ServerMetadata> {
    let extensions = EXTENSIONS.map(String::from).to_vec();
    Json(ServerMetadata { name: "atoll".into(), version: env!("CARGO_PKG_VERSION").into(), extensions })
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelMetadata>, ApiError> {
    Ok(Json(app.find(&caller, &path.name, path.version.as_deref())?.metadata()))
}

pub(super) async fn config(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelConfig>, ApiError> {
    Ok(Json(app.find(&caller, &path.name, path.version.as_deref())?.config()))
}
