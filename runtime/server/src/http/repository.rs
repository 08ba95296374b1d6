//! The model repository: index, load, unload.

use super::body::small_json;
use super::error::ApiError;
use super::identify::Caller;
use crate::app::App;
use crate::config::ModelControl;
use crate::identity::{Principal, Reason};
use crate::repository::LoadError;
use atoll_engine::Class;
use atoll_protocol::{IndexEntry, IndexRequest, LoadRequest, ModelState};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

pub(super) async fn index(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<Vec<IndexEntry>>, ApiError> {
    let request: IndexRequest = small_json(&app, body).await?;
    let index = app.index(&caller);
    let mut index = index.map_err(|e| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot read the model repository: {e}"))
    })?;
    index.retain(|entry| !request.ready || entry.state == ModelState::Ready);
    Ok(Json(index))
}

/// Refuses to change a model in a mode that excludes it, or for a tenant that may not. If the tenant
/// may not even call the model, the answer is the one for a model that does not exist.
fn check(app: &App, caller: &Principal, name: &str) -> Result<(), ApiError> {
    let refuse = |denial: &_| app.refuse(denial, caller, Class::BestEffort);
    caller.may_control_models().inspect_err(refuse)?;
    let mode = match &app.model_control {
        ModelControl::Explicit { .. } => None,
        ModelControl::None => Some("loads its models at start only (--model-control-mode none)"),
        ModelControl::Poll { .. } => Some("follows the files of its repository (--model-control-mode poll)"),
    };
    if let Some(mode) = mode {
        app.refuse_unknown(Reason::ModelControlMode);
        let text = format!("this daemon {mode}; to load and unload models by request, start it with mode explicit");
        return Err(ApiError::denied(Reason::ModelControlMode, text));
    }
    caller.may_call_name(name).inspect_err(refuse).map_err(|_| LoadError::Unknown(name.into()))?;
    Ok(())
}

pub(super) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    body: Body,
) -> Result<(), ApiError> {
    check(&app, &caller, &name)?;
    let request: LoadRequest = small_json(&app, body).await?;
    if !request.parameters.is_empty() {
        return Err(ApiError::bad_request(
            "the load parameters `config` and `file:` are not supported; models are loaded from the repository as they \
            are",
        ));
    }
    // The load continues even if the client disconnects.
    let load = tokio::spawn(async move { app.repository.load(&name).await });
    Ok(load.await.map_err(|_| ApiError::panicked())??)
}

/// `unload_dependents` is ignored, since models do not depend on each other.
pub(super) async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    body: Body,
) -> Result<(), ApiError> {
    check(&app, &caller, &name)?;
    let _: LoadRequest = small_json(&app, body).await?;
    let unload = tokio::spawn(async move { app.repository.unload(&name).await });
    Ok(unload.await.map_err(|_| ApiError::panicked())??)
}
