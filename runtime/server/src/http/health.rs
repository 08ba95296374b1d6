//! Whether the server, and a model, is alive and ready. KServe's client reads the bodies, Triton's
//! the status.

use super::ModelPath;
use super::error::ApiError;
use crate::app::App;
use crate::repository::FindError;
use atoll_engine::EngineStatistics;
use atoll_protocol::{Live, ModelReady, Ready};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn live() -> Json<Live> {
    Json(Live { live: true })
}

/// Ready is a server that loaded every model (that looked at every model, where readiness is not
/// strict) and has a device that is there, not lost and not being replaced. One of several that
/// fails takes its own models with it ([`model_ready`]) and leaves the others their requests.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let engine = app.engine.clone();
    let is_there = move || engine.statistics().iter().any(is_there);
    let ready = app.is_ready() && crate::inference::blocking(is_there).await.unwrap_or(false);
    (status(ready), Json(Ready { ready })).into_response()
}

pub(super) async fn model_ready(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<Response, ApiError> {
    let ready = match app.find(&path.name, path.version.as_deref()) {
        Ok(model) => {
            let engine = app.engine.clone();
            let is_there = move || engine.statistics().get(usize::from(model.device.0)).is_some_and(is_there);
            crate::inference::blocking(is_there).await.unwrap_or(false)
        }
        Err(FindError::NotReady { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    Ok((status(ready), Json(ModelReady { name: path.name, ready })).into_response())
}

fn is_there(engine: &EngineStatistics) -> bool {
    engine.device.lost.is_none() && !engine.device.is_away
}

fn status(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
