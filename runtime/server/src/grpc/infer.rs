//! One inference request over gRPC.

use super::codec::in_place;
use super::convert;
use super::proto::inference::ModelInferRequest;
use crate::app::App;
use crate::identity::Principal;
use crate::model::Model;
use crate::otlp::Arrival;
use crate::requests::answers::{Answers, answers};
use crate::requests::error::RequestError;
use crate::requests::infer::{Checked, finish, run};
use crate::requests::shared_memory::{fetch, fetch_weight};
use atoll_protocol::InferResponse;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The sender of a request or of a stream of requests, and until when it waits for answers.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) app: Arc<App>,
    pub(super) caller: Arc<Principal>,
    /// For a stream, the arrival of the stream itself.
    pub(super) arrival: Arrival,
    pub(super) deadline: Option<Instant>,
}

/// Checks a request.
pub(super) fn prepare(sender: &Sender, message: ModelInferRequest) -> Result<(Arc<Model>, Checked), RequestError> {
    let version = Some(&*message.model_version).filter(|version| !version.is_empty());
    let model = sender.app.find(&sender.caller, &message.model_name, version)?;
    model.note_request();
    let bytes = if message.raw_input_contents.is_empty() { prost::Message::encoded_len(&message) } else { 0 };
    let mut request = in_place(bytes, || convert::request(message))?;
    let shared = in_place(fetch_weight(&request), || fetch(&sender.app, &sender.caller, &model, &mut request))?;
    let mut checked = Checked::new(&model, request, shared)?;
    let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
    checked.terms.limit(sender.deadline.map(left).map(|left| left.max(Duration::from_nanos(1))));
    Ok((model, checked))
}

/// Runs a request with several answers.
pub(super) fn several(sender: Sender, model: Arc<Model>, checked: Checked, arrival: Arrival) -> Answers {
    answers(sender.app, sender.caller, model, checked, arrival)
}

/// Runs a request.
pub(super) async fn answer(
    sender: &Sender,
    model: &Arc<Model>,
    checked: Checked,
    arrival: Arrival,
) -> Result<InferResponse, RequestError> {
    let done = run(&sender.app, &sender.caller, model, checked, arrival).await?;
    finish(&sender.app, model, done, |answer| answer).await
}
