//! The routes of KServe v2 and of Triton's extensions, one file per concern.

mod body;
mod callers;
mod error;
mod health;
mod infer;
mod metadata;
mod repository;
mod settings;
mod shared_memory;
mod statistics;

use crate::app::App;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
pub(crate) use callers::Callers;
use callers::check_caller;
use error::ApiError;
use serde::Deserialize;
use std::sync::Arc;

/// The part of a route that names a model.
#[derive(Deserialize)]
struct ModelPath {
    name: String,
    version: Option<String>,
}

/// The routes that tell whether the server is alive and ready.
fn health_routes() -> Router<Arc<App>> {
    Router::new().route("/v2/health/live", get(health::live)).route("/v2/health/ready", get(health::ready))
}

/// The routes of the metrics port: metrics, and health, which a flood of requests on the protocol's
/// port does not reach here.
pub(crate) fn beside_metrics(metrics: Router, app: Arc<App>, callers: Arc<Callers>) -> Router {
    metrics.merge(health_routes().with_state(app)).layer(from_fn_with_state(callers, check_caller))
}

/// All routes of the protocol.
pub(crate) fn router(app: Arc<App>, callers: Arc<Callers>) -> Router {
    let model = Router::new()
        .route("/", get(metadata::model))
        .route("/ready", get(health::model_ready))
        .route("/config", get(metadata::config))
        .route("/stats", get(statistics::model))
        .route("/infer", post(infer::infer))
        .route("/trace/setting", get(settings::model_trace).post(settings::set_model_trace));
    Router::new()
        .route("/v2", get(metadata::server))
        .route("/v2/", get(metadata::server))
        .merge(health_routes())
        .route("/v2/models/stats", get(statistics::all))
        .nest("/v2/models/{name}", model.clone())
        .nest("/v2/models/{name}/versions/{version}", model)
        .route("/v2/repository/index", post(repository::index))
        .route("/v2/repository/models/{name}/load", post(repository::load))
        .route("/v2/repository/models/{name}/unload", post(repository::unload))
        .route("/v2/logging", get(settings::logging).post(settings::set_logging))
        .route("/v2/trace/setting", get(settings::trace).post(settings::set_trace))
        .merge(shared_memory::routes("systemsharedmemory"))
        .merge(shared_memory::routes("cudasharedmemory"))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(callers, check_caller))
        .layer(from_fn_with_state(app.clone(), count))
        .with_state(app)
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!("there is no {}; the protocol's routes start with /v2", request.uri().path()),
    )
}

async fn wrong_method(request: Request) -> ApiError {
    let text = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, text)
}

/// Counts answers by status.
async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.recorder.note_response(response.status());
    response
}
