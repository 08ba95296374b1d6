//! KServe v1: models, their readiness, and `:predict`.

use super::body::{self, Received};
use super::identify::Caller;
use crate::app::App;
use crate::bodies::BodyRoom;
use crate::identity::Principal;
use crate::model::Model;
use crate::otlp::Arrival;
use crate::requests::error::{Kind, RequestError};
use crate::requests::health::model_is_ready;
use crate::requests::infer::{Checked, finish, offload, run};
use crate::requests::shared_memory::Shared;
use atoll_protocol::{
    InferRequest, ModelReady, PredictForm, PredictRequest, ProtocolError, TensorMetadata, encode_predictions,
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
    let arrival = Arrival::now("http", &headers);
    let Untyped { model, form, checked, room: _room } =
        untyped(&app, &caller, (name, None), &headers, body, predict_request).await?;
    let done = run(&app, &caller, &model, checked, arrival).await?;
    let bytes = finish(&app, &model, done, move |answer| encode_predictions(form, &answer)).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

fn predict_request(body: &[u8], inputs: &[TensorMetadata]) -> Result<(PredictForm, InferRequest), ProtocolError> {
    PredictRequest::decode(body, inputs).map(|PredictRequest { form, request }| (form, request))
}

/// Decodes a body for a model with these inputs. Returns what the encoder needs, and the request.
type Decode<T> = fn(&[u8], &[TensorMetadata]) -> Result<(T, InferRequest), ProtocolError>;

/// A request that states no types, checked against its model.
pub(super) struct Untyped<T> {
    pub(super) model: Arc<Model>,
    /// What the encoder of its answer needs.
    pub(super) form: T,
    pub(super) checked: Checked,
    /// The place of its body, until it is answered.
    pub(super) room: BodyRoom,
}

/// Receives and checks a request that states no types, so that those of the model apply.
pub(super) async fn untyped<T: Send + 'static>(
    app: &Arc<App>,
    caller: &Principal,
    (name, version): (&str, Option<&str>),
    headers: &HeaderMap,
    body: Body,
    decode: Decode<T>,
) -> Result<Untyped<T>, RequestError> {
    app.find(caller, name, version)?;
    let Received { bytes, room } = body::receive(app, caller, headers, body).await?;
    // Again: versions may have been exchanged while the body arrived.
    let model = app.find(caller, name, version)?;
    model.note_request();
    offload(bytes.len(), move || {
        let (form, request) = decode(&bytes, &model.client_inputs)?;
        let checked = Checked::new(&model, request, Shared::default())?;
        Ok::<_, RequestError>(Untyped { model, form, checked, room })
    })
    .await?
}
