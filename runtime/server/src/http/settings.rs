//! Log and trace settings. They are read-only: set when the daemon starts, so a request that would
//! change one is refused.

use super::body::small_json;
use super::error::ApiError;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use atoll_protocol::{LogSettings, TraceSettings};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

fn current_logging() -> LogSettings {
    let level = LevelFilter::current();
    LogSettings {
        log_file: String::new(),
        log_info: level >= LevelFilter::INFO,
        log_warning: level >= LevelFilter::WARN,
        log_error: level >= LevelFilter::ERROR,
        log_verbose_level: u32::from(level >= LevelFilter::DEBUG),
        log_format: "default".into(),
    }
}

pub(super) async fn logging() -> Json<LogSettings> {
    Json(current_logging())
}

pub(super) async fn set_logging(State(app): State<Arc<App>>, body: Body) -> Result<Json<LogSettings>, ApiError> {
    unchanged(&app, body, current_logging(), "start the daemon with --log").await
}

pub(super) async fn trace() -> Json<TraceSettings> {
    Json(TraceSettings::default())
}

pub(super) async fn set_trace(State(app): State<Arc<App>>, body: Body) -> Result<Json<TraceSettings>, ApiError> {
    unchanged(&app, body, TraceSettings::default(), "request traces are not supported").await
}

pub(super) async fn model_trace(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
) -> Result<Json<TraceSettings>, ApiError> {
    app.find(&caller, &path.name, path.version.as_deref())?;
    Ok(trace().await)
}

pub(super) async fn set_model_trace(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    body: Body,
) -> Result<Json<TraceSettings>, ApiError> {
    app.find(&caller, &path.name, path.version.as_deref())?;
    set_trace(State(app), body).await
}

/// Answers with the settings if the body changes none of them. A null asks for the default.
async fn unchanged<T: Serialize>(app: &App, body: Body, current: T, remedy: &str) -> Result<Json<T>, ApiError> {
    let wanted: Map<String, Value> = small_json(app, body).await?;
    let settings = serde_json::to_value(&current).unwrap_or_default();
    for (name, value) in wanted.iter().filter(|(_, value)| !value.is_null()) {
        match settings.get(name) {
            Some(now) if now == value => {}
            Some(now) => {
                return Err(ApiError::bad_request(format!(
                    "setting `{name}` is {now} and cannot be changed by a request; {remedy}"
                )));
            }
            None => return Err(ApiError::bad_request(format!("there is no setting `{name}`"))),
        }
    }
    Ok(Json(current))
}
