//! Log and trace settings.

use super::body::small_json;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::settings;
use atoll_protocol::{LogSettings, TraceSettings};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;

pub(super) async fn logging() -> Json<LogSettings> {
    Json(settings::logging())
}

pub(super) async fn set_logging(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<LogSettings>, RequestError> {
    settings::set_logging(&app, &caller, &small_json(&app, body).await?).map(Json)
}

pub(super) async fn trace(State(app): State<Arc<App>>) -> Json<TraceSettings> {
    Json(settings::trace(&app))
}

pub(super) async fn set_trace(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<TraceSettings>, RequestError> {
    settings::set_trace(&app, &caller, &small_json(&app, body).await?, false).map(Json)
}

pub(super) async fn model_trace(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<TraceSettings>, RequestError> {
    app.find(&caller, &path.name, path.version.as_deref())?;
    Ok(Json(settings::trace(&app)))
}

pub(super) async fn set_model_trace(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    body: Body,
) -> Result<Json<TraceSettings>, RequestError> {
    app.find(&caller, &path.name, path.version.as_deref())?;
    settings::set_trace(&app, &caller, &small_json(&app, body).await?, true).map(Json)
}
