//! The generate extension: inputs and outputs are fields of JSON objects.

use super::identify::Caller;
use super::model_path::ModelPath;
use super::predict::{Untyped, untyped};
use crate::app::App;
use crate::identity::Principal;
use crate::otlp::Arrival;
use crate::requests::answers::{Part, answers};
use crate::requests::error::{Kind, RequestError};
use crate::requests::infer::{finish, run};
use atoll_protocol::{ErrorBody, InferRequest, ProtocolError, TensorMetadata, decode_generate, encode_generated};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{StreamExt, iter};
use std::convert::Infallible;
use std::sync::Arc;

/// One answer: the only one of a model, or all tokens that it generates.
pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let arrival = Arrival::now("http", &headers);
    let Untyped { model, checked, room: _room, .. } = receive(&app, &caller, &path, &headers, body).await?;
    let done = run(&app, &caller, &model, checked, arrival).await?;
    let json = finish(&app, &model, done, |answer| encode_generated(&answer)).await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// The answers as server-sent events. An error before the first answer has its status, as in
/// Triton; a later one is an event. If the client disconnects, the request is cancelled.
pub(super) async fn generate_stream(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let arrival = Arrival::now("http", &headers);
    let Untyped { model, checked, room, .. } = receive(&app, &caller, &path, &headers, body).await?;
    let mut answers = answers(app, caller, model, checked, arrival);
    let first = answers.next().await.ok_or_else(RequestError::panicked)??;
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    let (is_last, first) = (first.is_last, event(&first)?);
    if is_last {
        return Ok((headers, first).into_response());
    }
    let others = answers.map(move |answer| {
        let _until_the_end = &room;
        answer.and_then(|part| event(&part)).unwrap_or_else(|error| failure(&error))
    });
    let events = iter([first]).chain(others).map(|event| Ok::<Bytes, Infallible>(event.into()));
    Ok((headers, Body::from_stream(events)).into_response())
}

/// Receives and checks a request.
async fn receive(
    app: &Arc<App>,
    caller: &Principal,
    path: &ModelPath,
    headers: &HeaderMap,
    body: Body,
) -> Result<Untyped<()>, RequestError> {
    untyped(app, caller, (path.name.as_str(), path.version.as_deref()), headers, body, request).await
}

fn request(body: &[u8], inputs: &[TensorMetadata]) -> Result<((), InferRequest), ProtocolError> {
    decode_generate(body, inputs).map(|request| ((), request))
}

/// An answer as an event.
fn event(part: &Part) -> Result<Vec<u8>, RequestError> {
    Ok(sent(&encode_generated(&part.answer)?))
}

/// An error as the last event.
fn failure(error: &RequestError) -> Vec<u8> {
    if error.kind == Kind::Internal {
        tracing::error!(error = error.message, "a request failed after its first answer");
    }
    let body = ErrorBody { error: error.message.clone(), reason: None };
    sent(&serde_json::to_vec(&body).unwrap_or_default())
}

fn sent(json: &[u8]) -> Vec<u8> {
    [b"data: ", json, b"\n\n"].concat()
}
