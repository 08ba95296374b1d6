//! The generate extension: inputs and outputs are fields of JSON objects.

use super::identify::Caller;
use super::model_path::ModelPath;
use super::predict::run_untyped;
use crate::app::App;
use crate::identity::Principal;
use crate::requests::error::RequestError;
use atoll_protocol::{InferRequest, InferResponse, ProtocolError, TensorMetadata, decode_generate, encode_generated};
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let json = answer(&app, &caller, &path, &headers, body).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

/// The answer as server-sent events: one event, since models answer once. An error has its status,
/// as the first answer of a stream has in Triton.
pub(super) async fn generate_stream(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let json = answer(&app, &caller, &path, &headers, body).await?;
    let event = [b"data: ", &json[..], b"\n\n"].concat();
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, event).into_response())
}

async fn answer(
    app: &Arc<App>,
    caller: &Principal,
    path: &ModelPath,
    headers: &HeaderMap,
    body: Body,
) -> Result<Vec<u8>, RequestError> {
    let model = (path.name.as_str(), path.version.as_deref());
    run_untyped(app, caller, model, headers, body, (request, encoded)).await
}

fn request(body: &[u8], inputs: &[TensorMetadata]) -> Result<((), InferRequest), ProtocolError> {
    decode_generate(body, inputs).map(|request| ((), request))
}

fn encoded((): (), answer: &InferResponse) -> Result<Vec<u8>, ProtocolError> {
    encode_generated(answer)
}
