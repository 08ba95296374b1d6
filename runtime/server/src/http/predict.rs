//! KServe v1: models, their readiness, and `:predict`.

use super::body::{self, Received};
use super::identify::Caller;
use crate::app::App;
use crate::identity::Principal;
use crate::otlp::Arrival;
use crate::requests::error::{Kind, RequestError};
use crate::requests::health::model_is_ready;
use crate::requests::infer::{Checked, finish, offload, run};
use crate::requests::shared_memory::Shared;
use atoll_protocol::{
    InferRequest, InferResponse, ModelReady, PredictForm, PredictRequest, ProtocolError, TensorMetadata,
    encode_predictions,
};
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
pub(super) struct Alive {
    status: &'static str,
}

/// Whether the daemon runs, as clients of KServe v1 ask for it.
pub(super) async fn alive() -> Json<Alive> {
    Json(Alive { status: "alive" })
}

#[derive(Serialize)]
pub(super) struct Models {
    models: Vec<String>,
}

pub(super) async fn models(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
) -> Result<Json<Models>, RequestError> {
    let index = crate::requests::repository::index(&app, &caller, false).await?;
    let mut models: Vec<String> = index.into_iter().map(|entry| entry.name).collect();
    // The index has an entry for each version.
    models.dedup();
    Ok(Json(Models { models }))
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
    let Some(name) = path.strip_suffix(VERB) else {
        let text = format!("unknown route /v1/models/{path}; a POST runs a model, as /v1/models/NAME{VERB}");
        return Err(RequestError::new(Kind::NotFound, text));
    };
    let bytes = run_untyped(&app, &caller, (name, None), &headers, body, (predict_request, encode_predictions)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

fn predict_request(body: &[u8], inputs: &[TensorMetadata]) -> Result<(PredictForm, InferRequest), ProtocolError> {
    PredictRequest::decode(body, inputs).map(|PredictRequest { form, request }| (form, request))
}

/// Decodes a body for a model with these inputs. Returns what the encoder needs, and the request.
type Decode<T> = fn(&[u8], &[TensorMetadata]) -> Result<(T, InferRequest), ProtocolError>;

/// Encodes an answer.
type Encode<T> = fn(T, &InferResponse) -> Result<Vec<u8>, ProtocolError>;

/// Runs a request that states no types, so that those of the model apply, and encodes its answer.
pub(super) async fn run_untyped<T: Send + 'static>(
    app: &Arc<App>,
    caller: &Principal,
    (name, version): (&str, Option<&str>),
    headers: &HeaderMap,
    body: Body,
    (decode, encode): (Decode<T>, Encode<T>),
) -> Result<Vec<u8>, RequestError> {
    let arrival = Arrival::now("http", headers);
    app.find(caller, name, version)?;
    let Received { bytes, room: _room } = body::receive(app, caller, headers, body).await?;
    // Again: versions may have been exchanged while the body arrived.
    let model = app.find(caller, name, version)?;
    model.note_request();
    let (form, checked) = offload(bytes.len(), {
        let model = model.clone();
        move || {
            let (form, request) = decode(&bytes, &model.client_inputs)?;
            Ok::<_, RequestError>((form, Checked::new(&model, request, Shared::default())?))
        }
    })
    .await??;
    let done = run(app, caller, &model, checked, arrival).await?;
    Ok(finish(app, &model, done, move |answer| encode(form, &answer)).await??)
}
