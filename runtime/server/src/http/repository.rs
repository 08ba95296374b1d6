//! The model repository: index, load, unload.

use super::base64;
use super::body::{Received, parse, receive, small_json};
use super::identify::Caller;
use crate::app::App;
use crate::repository::LoadError;
use crate::repository::overrides::{LoadValue, Overrides};
use crate::requests::error::RequestError;
use crate::requests::infer::offload;
use crate::requests::repository;
use atoll_protocol::{IndexEntry, IndexRequest, LoadRequest, ModelExplanation};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use serde_json::Value;
use std::sync::Arc;

pub(super) async fn index(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    body: Body,
) -> Result<Json<Vec<IndexEntry>>, RequestError> {
    let request: IndexRequest = small_json(&app, body).await?;
    repository::index(&app, &caller, request.ready).await.map(Json)
}

/// What the daemon reads of the folder of a model.
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
) -> Result<Json<ModelExplanation>, RequestError> {
    repository::explain(&app, &caller, name).await.map(Json)
}

/// The body may have a configuration and files, in base64.
pub(super) async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<(), RequestError> {
    repository::check(&app, &caller, &name, LoadError::Unknown)?;
    let Received { bytes, room: _room } = receive(&app, &caller, &headers, body).await?;
    let overrides = offload(bytes.len(), move || overrides(&bytes)).await??;
    repository::load(app, &caller, name, overrides).await
}

fn overrides(body: &[u8]) -> Result<Overrides, RequestError> {
    let request: LoadRequest = parse(body)?;
    let mut overrides = Overrides::default();
    for (name, value) in request.parameters.iter() {
        let value = match value {
            Value::String(text) if name.starts_with("file:") => {
                LoadValue::Bytes(base64::decode(text).ok_or_else(|| {
                    RequestError::bad_request(format!("the load parameter `{name}` is not valid base64"))
                })?)
            }
            Value::String(text) => LoadValue::Text(text.clone()),
            _ => LoadValue::Other,
        };
        overrides.add(name.clone(), value)?;
    }
    Ok(overrides)
}

pub(super) async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
    body: Body,
) -> Result<(), RequestError> {
    repository::check(&app, &caller, &name, LoadError::NotServed)?;
    let request: LoadRequest = small_json(&app, body).await?;
    let dependents = request.parameters.boolean("unload_dependents")?.unwrap_or(false);
    repository::unload(app, &caller, name, dependents).await
}
