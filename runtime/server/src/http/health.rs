//! Liveness and readiness of the server and of models. KServe's client reads the body, Triton's the
//! status.

use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::requests::error::RequestError;
use crate::requests::health::{is_ready, model_is_ready};
use atoll_protocol::{Live, ModelReady, Ready};
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn live() -> Json<Live> {
    Json(Live { live: true })
}

pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let ready = is_ready(&app).await;
    (status(ready), Json(Ready { ready })).into_response()
}

pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Response, RequestError> {
    let ready = model_is_ready(&app, &caller, &path.name, path.version.as_deref()).await?;
    Ok((status(ready), Json(ModelReady { name: path.name, ready })).into_response())
}

fn status(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
