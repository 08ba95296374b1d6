//! The routes of KServe v2 and v1, of Triton's extensions and of the dashboard; one file per
//! concern.

mod base64;
mod body;
mod dashboard;
mod error;
mod generate;
mod health;
mod identify;
mod infer;
mod leases;
mod metadata;
mod model_path;
mod predict;
mod repository;
mod routes;
mod settings;
mod shared_memory;
mod statistics;

use crate::app::App;
use crate::callers::Callers;
use crate::dashboard::{Hub, Snapshot};
use crate::requests::error::{Kind, RequestError};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use identify::identify;
pub use routes::{RouteDescription, RoutePort, routes};
use routes::{health_routes, inference_routes, page_routes};
use std::sync::Arc;

/// The routes of the metrics port: metrics and health. Health checks on this port still work when
/// the inference port is flooded.
pub(crate) fn beside_metrics(metrics: Router, app: Arc<App>, callers: Arc<Callers>) -> Router {
    let checked = from_fn_with_state((app.clone(), callers), check_caller);
    metrics.merge(health_routes().with_state(app)).layer(checked)
}

/// All routes of the inference port. Every request is identified before it is routed, except those
/// for the files of the dashboard.
pub(crate) fn router(app: Arc<App>, callers: Arc<Callers>) -> Router {
    health_routes()
        .merge(inference_routes())
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(Arc::new(Hub::<Snapshot>::new())))
        .layer(from_fn_with_state(app.clone(), identify))
        .merge(page_routes().method_not_allowed_fallback(wrong_method))
        .layer(from_fn_with_state((app.clone(), callers), check_caller))
        .layer(from_fn_with_state(app.clone(), count))
        .layer(from_fn_with_state(app.clone(), log))
        .with_state(app)
}

async fn unknown_route(request: Request) -> RequestError {
    RequestError::new(
        Kind::NotFound,
        format!("unknown route {}; the routes of the protocol start with /v2 or /v1", request.uri().path()),
    )
}

async fn wrong_method(request: Request) -> RequestError {
    let text = format!("{} does not support method {}", request.uri().path(), request.method());
    RequestError::new(Kind::WrongMethod, text)
}

/// Counts answers by status.
async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    app.recorder.note_response(response.status());
    response
}

async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match &app.access_log {
        Some(log) => log.around("http", request, next).await,
        None => next.run(request).await,
    }
}

/// Refuses requests that the rules on hosts and origins do not allow.
async fn check_caller(
    State((app, callers)): State<(Arc<App>, Arc<Callers>)>,
    request: Request,
    next: Next,
) -> Response {
    match callers.check(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}
