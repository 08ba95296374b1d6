//! One request of a ring: checked and executed like a request over HTTP.

use crate::app::App;
use crate::identity::{Principal, Reason};
use crate::model::Model;
use crate::otlp::Arrival;
use crate::requests::error::{Kind, RequestError};
use crate::requests::infer::{Checked, finish, run};
use crate::requests::shared_memory::{Shared, take_inputs};
use atoll_control::RefusalKind;
use atoll_engine::FunctionKey;
use atoll_protocol::{InferRequest, InferResponse, Parameters, RequestedOutput, SharedRange, SharedTensor};
use atoll_ring::{BadSpan, Call, DaemonEnd, Done, Failure, Place, Span};
use std::sync::Arc;

/// Alignment of outputs in bytes, so that clients can use them in place.
const OUTPUT_ALIGN: u64 = 64;

/// Finds the model of a request, copies its inputs, and checks them.
pub(super) fn prepare(
    app: &App,
    caller: &Principal,
    daemon: &DaemonEnd,
    call: Call,
) -> Result<(Arc<Model>, Checked), RequestError> {
    let model = find(app, caller, &call)?;
    model.note_request();
    let parameters = match call.parameters.as_str() {
        "" => Parameters::default(),
        json => serde_json::from_str(json)
            .map_err(|error| RequestError::bad_request(format!("the parameters are not a JSON object: {error}")))?,
    };
    let locate = |range: &SharedRange| {
        let span = Span { at: range.offset, bytes: range.byte_size };
        daemon.check(span).map(|()| span).map_err(outside)
    };
    let read = |span: &Span| daemon.read(*span).map_err(outside);
    let inputs = call.inputs.into_iter().map(shared).collect();
    let (inputs, room) = take_inputs(app, caller.limits.class, &model, inputs, locate, read)?;
    let output = |name| RequestedOutput::new(name, &Parameters::default());
    let outputs = call.outputs.into_iter().map(output).collect::<Result<_, _>>()?;
    let request = InferRequest { id: call.id, parameters, inputs, shared_inputs: Vec::new(), outputs };
    let checked = Checked::new(&model, request, Shared::holding(room))?;
    Ok((model, checked))
}

/// Runs a request. Cancels it if the future is dropped.
pub(super) async fn execute(
    app: Arc<App>,
    caller: Arc<Principal>,
    model: Arc<Model>,
    checked: Checked,
    arrival: Arrival,
) -> Result<InferResponse, RequestError> {
    let done = run(&app, &caller, &model, checked, arrival).await?;
    finish(&app, &model, done, |answer| answer).await
}

/// Copies the outputs into the window of the request, one after the other.
pub(super) fn place(daemon: &DaemonEnd, window: Span, answer: InferResponse) -> Result<Done, RequestError> {
    daemon.check(window).map_err(outside)?;
    let end = window.at + window.bytes;
    let mut at = window.at;
    let mut outputs = Vec::with_capacity(answer.outputs.len());
    for output in answer.outputs {
        let tensor = output.tensor;
        at = at.next_multiple_of(OUTPUT_ALIGN);
        let bytes = tensor.bytes.len() as u64;
        if at.checked_add(bytes).is_none_or(|behind| behind > end) {
            let name = tensor.name;
            return Err(RequestError::bad_request(format!(
                "output `{name}` has {bytes} bytes and does not fit the window of the request, which has {}; open the \
                ring with a larger arena, or request fewer outputs",
                window.bytes
            )));
        }
        daemon.write(at, &tensor.bytes).map_err(outside)?;
        let span = Span { at, bytes };
        outputs.push(Place { name: tensor.name, datatype: tensor.datatype, shape: tensor.shape, span });
        at += bytes;
    }
    let parameters = match answer.parameters.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&answer.parameters).unwrap_or_default(),
    };
    Ok(Done { version: answer.model_version, parameters, outputs })
}

/// An error as the ring sends it. The kinds are those of the control socket.
pub(super) fn failure(error: RequestError) -> Failure {
    let kind = match error.kind {
        Kind::BadRequest
        | Kind::Unsupported
        | Kind::TooLarge
        | Kind::UnknownEncoding
        | Kind::WrongMethod
        | Kind::Conflict => RefusalKind::BadRequest,
        Kind::Unidentified | Kind::Denied => RefusalKind::Denied,
        Kind::NotFound | Kind::Aborted => RefusalKind::NotFound,
        Kind::Exhausted if error.reason == Some(Reason::Invocations) => RefusalKind::Quota,
        Kind::Exhausted | Kind::Unavailable => RefusalKind::Busy,
        Kind::TooSlow | Kind::DeadlineExceeded => RefusalKind::Deadline,
        Kind::Internal => RefusalKind::Function,
    };
    Failure { kind, message: error.message }
}

/// A function of the caller, also a private one; otherwise a model by its name over HTTP.
fn find(app: &App, caller: &Principal, call: &Call) -> Result<Arc<Model>, RequestError> {
    let version = Some(&*call.version).filter(|version| !version.is_empty());
    let key = FunctionKey { tenant: caller.tenant.clone(), name: call.model.clone() };
    let own = app.deployed.as_ref().filter(|_| version.is_none()).and_then(|deployed| deployed.find(&key));
    match own {
        None => Ok(app.find(caller, &call.model, version)?),
        Some(function) => function.model.clone().map_err(|reason| {
            RequestError::new(Kind::Unavailable, format!("function `{}` is not loaded: {reason}", key.name))
        }),
    }
}

fn shared(place: Place) -> SharedTensor {
    let range = SharedRange { region: String::new(), offset: place.span.at, byte_size: place.span.bytes };
    SharedTensor { name: place.name, datatype: place.datatype, shape: place.shape, range }
}

fn outside(error: BadSpan) -> RequestError {
    RequestError::bad_request(error.to_string())
}
