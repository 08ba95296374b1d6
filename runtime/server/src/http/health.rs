//! Liveness and readiness of the server and of models. KServe's client reads the body, Triton's the
//! status.

use super::error::ApiError;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::repository::FindError;
use atoll_engine::EngineStatistics;
use atoll_protocol::{Live, ModelReady, Ready};
use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn live() -> Json<Live> {
    Json(Live { live: true })
}

/// Ready if all models are loaded (or have failed, if readiness is not strict) and at least one
/// device is available, that is, neither lost nor being replaced. If one of several devices fails,
/// only models that no other device has become unready ([`model_ready`]).
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let engine = app.engine.clone();
    let is_available = move || engine.statistics().iter().any(is_available);
    let ready = app.is_ready() && crate::inference::blocking(is_available).await.unwrap_or(false);
    (status(ready), Json(Ready { ready })).into_response()
}

pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Response, ApiError> {
    let ready = match app.find(&caller, &path.name, path.version.as_deref()) {
        Ok(model) => {
            let engine = app.engine.clone();
            let is_available = move || model.on_its_devices(&engine.statistics()).any(is_available);
            crate::inference::blocking(is_available).await.unwrap_or(false)
        }
        Err(FindError::NotReady { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    Ok((status(ready), Json(ModelReady { name: path.name, ready })).into_response())
}

fn is_available(engine: &EngineStatistics) -> bool {
    engine.device.lost.is_none() && !engine.device.is_unready
}

fn status(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
