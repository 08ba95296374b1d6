//! KServe v1: models, their readiness, and `:predict`.

use super::body::{self, Received};
use super::identify::Caller;
use crate::app::App;
use crate::otlp::Arrival;
use crate::requests::error::{Kind, RequestError};
use crate::requests::health::model_is_ready;
use crate::requests::infer::{Checked, finish, offload, run};
use crate::requests::shared_memory::Shared;
use atoll_protocol::{ModelReady, PredictRequest, encode_predictions};
use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::sync::Arc;

/// The suffix of a path that runs a model.
const VERB: &str = ":predict";

#[derive(Serialize)]
pub(super) struct Models {
    models: Vec<String>,
}

pub(super) async fn models(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Models>, RequestError> {
    let index = crate::requests::repository::index(&app, &caller, false).await?;
    Ok(Json(Models { models: index.into_iter().map(|entry| entry.name).collect() }))
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(name): Path<String>,
) -> Result<Json<ModelReady>, RequestError> {
    if model_is_ready(&app, &caller, &name, None).await? {
        return Ok(Json(ModelReady { name, ready: true }));
    }
    Err(RequestError::new(Kind::Unavailable, format!("model `{name}` is not ready")))
}

pub(super) async fn predict(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let arrival = Arrival::now("http", &headers);
    let Some(name) = path.strip_suffix(VERB) else {
        let text = format!("unknown route /v1/models/{path}; a POST runs a model, as /v1/models/NAME{VERB}");
        return Err(RequestError::new(Kind::NotFound, text));
    };
    let model = app.find(&caller, name, None)?;
    model.note_request();
    let Received { bytes, room: _room } = body::receive(&app, &headers, body).await?;
    let (form, checked) = offload(bytes.len(), {
        let model = model.clone();
        move || {
            let PredictRequest { form, request } = PredictRequest::decode(&bytes, &model.inputs)?;
            Ok::<_, RequestError>((form, Checked::new(&model, request, Shared::default())?))
        }
    })
    .await??;
    let done = run(&app, &caller, &model, checked, arrival).await?;
    let bytes = finish(&app, &model, done, move |answer| encode_predictions(form, &answer)).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}
