//! `ModelStreamInfer`: requests and answers on one stream.
//!
//! Up to [`REQUESTS_PER_STREAM_MAX`] requests run at the same time. Answers are sent in the order
//! of the requests. A request that starts a sequence waits until all earlier requests with one
//! answer are answered, because it might restart the sequence that they belong to. As in Triton, an
//! error is sent as an answer and the stream continues. With the metadata `triton_grpc_error:
//! true`, an error ends the stream with a status.
//!
//! A request has one answer, unless its model generates tokens: then it has one for each token, and
//! these are sent as soon as they are made, between the answers to other requests. The last answer
//! to a request is marked. Clients of a decoupled model may ask for the mark in an answer of its
//! own, without outputs.

use super::convert;
use super::frames::Rooms;
use super::infer::{Sender, answer, prepare, several};
use super::proto::inference::infer_parameter::ParameterChoice;
use super::proto::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use crate::bodies::BodyRoom;
use crate::limits::REQUESTS_PER_STREAM_MAX;
use crate::model::Model;
use crate::otlp::Arrival;
use crate::progress::{Answering, Progress};
use crate::requests::answers::Part;
use crate::requests::error::RequestError;
use crate::requests::infer::Checked;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, FuturesOrdered, SelectAll, StreamExt, unfold};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

/// The parameter of an answer that marks the last answer to a request.
const FINAL: &str = "triton_final_response";

/// The parameter of a request that asks for the mark in an answer without outputs.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// The answers of a stream.
pub(super) type Answers = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

/// An answer to a request.
struct Outcome {
    id: String,
    answer: Result<ModelInferResponse, RequestError>,
    /// Whether it is the last one. An error always is.
    is_last: bool,
    /// Whether an answer without outputs follows the last one.
    has_empty_final: bool,
}

/// A request that is about to run, and what its answers need.
struct Beginning {
    sender: Sender,
    arrival: Arrival,
    id: String,
    has_empty_final: bool,
    /// Held until the last answer.
    held: (Option<BodyRoom>, Answering),
}

/// A stream of requests.
pub(super) struct Requests {
    pub(super) sender: Sender,
    pub(super) rooms: Rooms,
    /// Tracks which requests of the stream run.
    pub(super) progress: Arc<Progress>,
    /// Whether an error ends the stream.
    pub(super) ends_with_error: bool,
    pub(super) messages: Streaming<ModelInferRequest>,
}

/// Answers a stream of requests. Dropping the answers cancels the requests that run.
pub(super) fn answers(requests: Requests) -> Answers {
    let running = Running {
        requests,
        in_order: FuturesOrdered::new(),
        generating: SelectAll::new(),
        waiting: None,
        empty_final: None,
        end: None,
    };
    Box::pin(unfold(Some(running), |running| async move {
        let mut running = running?;
        match running.next().await? {
            Ok(answer) => Some((Ok(answer), Some(running))),
            Err(status) => Some((Err(status), None)),
        }
    }))
}

/// A stream of requests and those of them that run.
struct Running {
    requests: Requests,
    /// Requests with one answer, which are answered in this order.
    in_order: FuturesOrdered<BoxFuture<'static, Outcome>>,
    /// Requests with several answers. Each is a sequence of its own, so none of them waits.
    generating: SelectAll<BoxStream<'static, Outcome>>,
    /// A request that starts a sequence and waits until those in order are answered.
    waiting: Option<BoxFuture<'static, Outcome>>,
    /// The last answer to a request whose other answers have been sent.
    empty_final: Option<ModelStreamInferResponse>,
    /// How the stream ends once all requests are answered; `None` while the client may send more.
    end: Option<Result<(), Status>>,
}

impl Running {
    /// The next answer; `None` at the end.
    async fn next(&mut self) -> Option<Result<ModelStreamInferResponse, Status>> {
        if let Some(last) = self.empty_final.take() {
            return Some(Ok(last));
        }
        loop {
            if self.in_order.is_empty() {
                if let Some(request) = self.waiting.take() {
                    self.in_order.push_back(request);
                } else if self.generating.is_empty()
                    && let Some(end) = self.end.take()
                {
                    return end.err().map(Err);
                }
            }
            let count = self.in_order.len() + self.generating.len();
            let reads = self.end.is_none() && self.waiting.is_none() && count < REQUESTS_PER_STREAM_MAX;
            tokio::select! {
                biased;
                Some(outcome) = self.in_order.next() => return Some(self.message(outcome)),
                Some(outcome) = self.generating.next() => return Some(self.message(outcome)),
                message = self.requests.messages.message(), if reads => match message {
                    Ok(Some(message)) => self.begin(message),
                    Ok(None) => self.end = Some(Ok(())),
                    Err(status) => self.end = Some(Err(status)),
                },
                // The last request with several answers has ended.
                else => {}
            }
        }
    }

    fn begin(&mut self, message: ModelInferRequest) {
        let sender = self.requests.sender.clone();
        let held = (self.requests.rooms.take(), self.requests.progress.answer());
        let arrival = Arrival { at: Instant::now(), ..sender.arrival };
        let (id, asks_for_empty_final) = (message.id.clone(), asks_for_empty_final(&message));
        let prepared = prepare(&sender, message);
        let is_decoupled = prepared.as_ref().is_ok_and(|(model, _)| model.is_decoupled());
        let starts = prepared.as_ref().is_ok_and(|(_, checked)| checked.terms.starts_sequence());
        let has_empty_final = is_decoupled && asks_for_empty_final;
        let beginning = Beginning { sender, arrival, id, has_empty_final, held };
        let request = match prepared {
            Ok((model, checked)) if model.decoder.is_some() => {
                return self.generating.push(beginning.generate(model, checked));
            }
            prepared => beginning.run(prepared),
        };
        if starts && !self.in_order.is_empty() {
            self.waiting = Some(request);
        } else {
            self.in_order.push_back(request);
        }
    }

    /// The message with an answer. If an answer without outputs has to follow, it is kept for the
    /// next call of [`Running::next`].
    fn message(&mut self, outcome: Outcome) -> Result<ModelStreamInferResponse, Status> {
        let Outcome { id, answer, is_last, has_empty_final } = outcome;
        let (error_message, mut response) = match answer {
            Ok(mut response) if has_empty_final || !is_last => {
                mark(&mut response, false);
                self.empty_final = is_last.then(|| empty_final(&response));
                return Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) });
            }
            Ok(response) => (String::new(), response),
            Err(error) if self.requests.ends_with_error => return Err(error.into()),
            // The conversion to a status logs errors of the server.
            Err(error) => (Status::from(error).message().into(), ModelInferResponse { id, ..Default::default() }),
        };
        mark(&mut response, true);
        Ok(ModelStreamInferResponse { error_message, infer_response: Some(response) })
    }
}

impl Beginning {
    /// Runs a request with one answer.
    fn run(self, prepared: Result<(Arc<Model>, Checked), RequestError>) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            let Beginning { sender, arrival, id, has_empty_final, held: _held } = self;
            let answered = async {
                let (model, checked) = prepared?;
                answer(&sender, &model, checked, arrival).await
            };
            let answer = answered.await.map(convert::response);
            Outcome { id, answer, is_last: true, has_empty_final }
        })
    }

    /// Runs a request with several answers.
    fn generate(self, model: Arc<Model>, checked: Checked) -> BoxStream<'static, Outcome> {
        let Beginning { sender, arrival, id, has_empty_final, held } = self;
        let outcome = move |part: Result<Part, RequestError>| {
            let _until_the_end = &held;
            let is_last = part.as_ref().map_or(true, |part| part.is_last);
            let answer = part.map(|part| convert::response(part.answer));
            Outcome { id: id.clone(), answer, is_last, has_empty_final }
        };
        several(sender, model, checked, arrival).map(outcome).boxed()
    }
}

/// Whether a request asks for the mark of the last answer in an answer without outputs.
fn asks_for_empty_final(message: &ModelInferRequest) -> bool {
    let choice = message.parameters.get(EMPTY_FINAL).and_then(|parameter| parameter.parameter_choice.as_ref());
    matches!(choice, Some(ParameterChoice::BoolParam(true)))
}

/// Says whether an answer is the last one to its request.
fn mark(response: &mut ModelInferResponse, is_final: bool) {
    let is_final = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(is_final)) };
    response.parameters.insert(FINAL.into(), is_final);
}

/// The answer without outputs that follows another one.
fn empty_final(answer: &ModelInferResponse) -> ModelStreamInferResponse {
    let mut response = ModelInferResponse {
        model_name: answer.model_name.clone(),
        model_version: answer.model_version.clone(),
        id: answer.id.clone(),
        ..ModelInferResponse::default()
    };
    mark(&mut response, true);
    ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
}
