//! Inference requests: from the bytes of the request to the bytes of the answer.

use super::body::{self, Received};
use super::error::ApiError;
use super::identify::Caller;
use super::model_path::ModelPath;
use crate::app::App;
use crate::graphs::run_graph;
use crate::inference::{blocking, invoke};
use crate::limits::DECODE_INLINE_BYTES_MAX;
use crate::metrics::Outcome;
use crate::model::{Fitted, Model, Wanted, binary_by_default};
use crate::sequences::Place;
use atoll_engine::{Class, DeviceId, InvocationRequest, InvocationResult};
use atoll_protocol::{
    Encoded, InferRequest, InferResponse, JSON_LENGTH_HEADER, OutputTensor, Parameters, ProtocolError, Tensor,
    top_classes,
};
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The parameters of a request, besides its tensors.
struct Terms {
    id: String,
    class: Option<Class>,
    priority: u32,
    instance: Option<String>,
    deadline: Option<Duration>,
    sequence: Option<Place>,
}

pub(super) async fn infer(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Path(path): Path<ModelPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = app.find(&caller, &path.name, path.version.as_deref())?;
    model.note_request();
    let json_bytes = json_bytes(&headers)?;
    let Received { bytes, room: _room } = body::receive(&app, &headers, body).await?;
    let (terms, fitted) = offload(bytes.len(), {
        let model = model.clone();
        move || decode(&model, &bytes, json_bytes)
    })
    .await??;
    let Fitted { inputs, outputs } = fitted;
    let Terms { id, class: asked, priority, instance, deadline, sequence } = terms;
    let found = app.instance_of(&model, instance.as_deref()).map_err(ApiError::bad_request)?;
    let asked = asked.or(found.and_then(|instance| instance.class));
    let class = asked.unwrap_or(model.class());
    let function = model.key.clone();
    let invocation = InvocationRequest { function, inputs, class: asked, priority, instance, deadline };
    let mut record =
        Record { app: app.clone(), device: model.first_device(), class, arrived, outcome: Outcome::Refused };
    caller.may_run(class).inspect_err(|denial| app.refuse(denial, &caller, class))?;
    record.outcome = Outcome::Cancelled;
    let result = match sequence.filter(|_| model.keeps_state()) {
        None if model.graph.is_some() => run_graph(&app.engine, &model, invocation, class).await,
        None => invoke(&app.engine, invocation.into()).await,
        Some(place) => {
            let turn = app.sequences.turn(&app.engine, &model, &caller.tenant, place).await?;
            turn.step(invocation.into()).await
        }
    };
    record.outcome = Outcome::of(&result);
    let result = result?;
    record.device = result.device;
    let output_bytes = result.outputs.iter().map(|output| output.bytes.len()).sum();
    let encoded = offload(output_bytes, move || encode(&model, id, result, &outputs)).await??;
    Ok(response(encoded))
}

/// Runs work on `bytes` bytes directly, or on the pool of blocking threads if it would take long.
async fn offload<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    if bytes <= DECODE_INLINE_BYTES_MAX { Ok(work()) } else { blocking(work).await.ok_or_else(ApiError::panicked) }
}

fn json_bytes(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let Some(value) = headers.get(JSON_LENGTH_HEADER) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| ApiError::bad_request(format!("invalid Inference-Header-Content-Length {value:?}")))
}

fn decode(model: &Model, body: &[u8], json_bytes: Option<usize>) -> Result<(Terms, Fitted), ApiError> {
    let request = InferRequest::decode(body, json_bytes)?;
    let (class, priority) = class(&request.parameters)?;
    let terms = Terms {
        class,
        priority,
        instance: request.parameters.text("instance")?.map(str::to_owned),
        deadline: deadline(&request.parameters)?,
        sequence: Place::of(&request.parameters)?,
        id: request.id.clone(),
    };
    let binary = binary_by_default(&request)?;
    Ok((terms, model.fit(request.inputs, &request.outputs, binary)?))
}

/// Service class and priority within the class. `priority` 1 is real-time; 2 and above are
/// best-effort, lower numbers first; 0 or none selects the model's own class. `real_time_priority`
/// orders real-time requests.
fn class(parameters: &Parameters) -> Result<(Option<Class>, u32), ProtocolError> {
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let among_real_time = number(parameters.unsigned("real_time_priority")?.unwrap_or(0));
    Ok(match parameters.unsigned("priority")?.unwrap_or(0) {
        0 => (None, among_real_time),
        1 => (Some(Class::RealTime), among_real_time),
        level => (Some(Class::BestEffort), number(level - 2)),
    })
}

/// The earlier of Triton's `timeout` and our `deadline_us`, both in microseconds from now; 0 means
/// none.
fn deadline(parameters: &Parameters) -> Result<Option<Duration>, ProtocolError> {
    let given = [parameters.unsigned("timeout")?, parameters.unsigned("deadline_us")?];
    Ok(given.into_iter().flatten().filter(|us| *us > 0).min().map(Duration::from_micros))
}

/// Records a request in the metrics when dropped, so that requests of disconnected clients count,
/// too.
struct Record {
    app: Arc<App>,
    device: DeviceId,
    class: Class,
    arrived: Instant,
    outcome: Outcome,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.app.recorder.note_request(self.device, self.class, self.outcome, self.arrived.elapsed());
    }
}

fn encode(model: &Model, id: String, mut result: InvocationResult, wanted: &[Wanted]) -> Result<Encoded, ApiError> {
    let mut outputs = Vec::with_capacity(wanted.len());
    for wanted in wanted {
        let (metadata, output) =
            (&model.outputs[wanted.index], std::mem::take(&mut result.outputs[wanted.index].bytes));
        let tensor =
            Tensor::new(metadata.name.clone(), metadata.datatype, result.outputs[wanted.index].shape.clone(), output)?;
        let tensor = match wanted.classes {
            Some(count) => top_classes(&tensor, count)?,
            None => tensor,
        };
        outputs.push(OutputTensor { tensor, binary: wanted.binary });
    }
    let mut parameters = Parameters::default();
    if result.preemptions > 0 {
        parameters.set("preemptions", result.preemptions);
    }
    let response =
        InferResponse { model_name: model.name.clone(), model_version: model.version.clone(), id, parameters, outputs };
    Ok(response.encode())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(json: &str) -> Parameters {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn priorities_are_classes() {
        for (json, expected) in [
            ("{}", None),
            (r#"{"priority":0}"#, None),
            (r#"{"priority":1}"#, Some(Class::RealTime)),
            (r#"{"priority":1.0}"#, Some(Class::RealTime)),
            (r#"{"priority":2}"#, Some(Class::BestEffort)),
            (r#"{"priority":18446744073709551615}"#, Some(Class::BestEffort)),
        ] {
            assert_eq!(class(&parameters(json)).map(|(class, _)| class), Ok(expected), "{json}");
        }
        assert!(class(&parameters(r#"{"priority":-1}"#)).is_err());
    }

    #[test]
    fn within_a_class_a_priority_is_what_is_left_of_it() {
        for (json, expected) in [
            (r#"{"priority":1}"#, 0),
            (r#"{"priority":1,"real_time_priority":3}"#, 3),
            (r#"{"priority":2}"#, 0),
            (r#"{"priority":7,"real_time_priority":3}"#, 5),
            (r#"{"priority":18446744073709551615}"#, u32::MAX),
        ] {
            assert_eq!(class(&parameters(json)).map(|(_, priority)| priority), Ok(expected), "{json}");
        }
    }

    #[test]
    fn the_sooner_deadline_counts() {
        for (json, expected) in [
            (r#"{"timeout":0}"#, None),
            (r#"{"timeout":500}"#, Some(500)),
            (r#"{"timeout":500,"deadline_us":20}"#, Some(20)),
            (r#"{"timeout":0,"deadline_us":20}"#, Some(20)),
        ] {
            assert_eq!(deadline(&parameters(json)), Ok(expected.map(Duration::from_micros)), "{json}");
        }
    }
}
