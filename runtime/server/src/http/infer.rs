//! Inference requests: from the bytes of the request to the bytes of the answer.

use super::body::{self, Received};
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::otlp::Arrival;
use crate::requests::error::{Kind, RequestError};
use crate::requests::infer::{Checked, finish, offload, run};
use crate::requests::shared_memory::{fetch, fetch_weight};
use atoll_protocol::{Encoded, InferRequest, JSON_LENGTH_HEADER};
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

pub(super) async fn infer(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestError> {
    let arrival = Arrival::now("http", &headers);
    app.find(&caller, &path.name, path.version.as_deref())?;
    let json_bytes = json_bytes(&headers)?;
    let Received { bytes, room: _room } = body::receive(&app, &caller, &headers, body).await?;
    // Again: versions may have been exchanged while the body arrived.
    let model = app.find(&caller, &path.name, path.version.as_deref())?;
    if model.is_decoupled() {
        // The text is Triton's, up to the semicolon.
        let text = "HTTP end point doesn't support models with decoupled transaction policy; use generate_stream, or \
                    a stream over gRPC";
        return Err(RequestError::new(Kind::Unsupported, text));
    }
    model.note_request();
    let mut request = offload(bytes.len(), {
        let model = model.clone();
        move || match json_bytes {
            Some(0) => InferRequest::of_raw(&model.client_inputs, model.has_rows(), &bytes),
            json_bytes => InferRequest::decode(&bytes, json_bytes),
        }
    })
    .await??;
    let (request, shared) = offload(fetch_weight(&request), {
        let (app, caller, model) = (app.clone(), caller.clone(), model.clone());
        move || fetch(&app, &caller, &model, &mut request).map(|shared| (request, shared))
    })
    .await??;
    let checked = Checked::new(&model, request, shared)?;
    let done = run(&app, &caller, &model, checked, arrival).await?;
    Ok(finish(&app, &model, done, |answer| answer.encode().map(response)).await??)
}

fn json_bytes(headers: &HeaderMap) -> Result<Option<usize>, RequestError> {
    let Some(value) = headers.get(JSON_LENGTH_HEADER) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| RequestError::bad_request(format!("invalid Inference-Header-Content-Length {value:?}")))
}

fn response(encoded: Encoded) -> Response {
    let Encoded { bytes, json_bytes } = encoded;
    match json_bytes {
        None => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Some(json_bytes) => {
            let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response();
            response.headers_mut().insert(JSON_LENGTH_HEADER, HeaderValue::from(json_bytes));
            response
        }
    }
}
