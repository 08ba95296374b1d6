//! The answers to a request, one after the other. A model that generates tokens has one for each
//! token; others have one.

use super::error::RequestError;
use super::infer::{Checked, finish, run};
use crate::app::App;
use crate::generation::{GENERATED, Token};
use crate::identity::Principal;
use crate::model::Model;
use crate::otlp::Arrival;
use atoll_protocol::{DataType, InferResponse, OutputTensor, Parameters, Tensor};
use futures_util::stream::{BoxStream, PollNext, Stream, StreamExt, once, select_with_strategy};
use std::future::ready;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// One of the answers to a request.
pub(crate) struct Part {
    pub(crate) answer: InferResponse,
    /// Whether it is the last one.
    pub(crate) is_last: bool,
}

/// The answers to a request. An error is the last of them. Dropping them cancels the request.
pub(crate) type Answers = BoxStream<'static, Result<Part, RequestError>>;

/// Runs a request while its answers are awaited.
pub(crate) fn answers(
    app: Arc<App>,
    caller: Arc<Principal>,
    model: Arc<Model>,
    checked: Checked,
    arrival: Arrival,
) -> Answers {
    if model.decoder.is_some() {
        return generated(app, caller, model, checked, arrival).boxed();
    }
    let only = async move {
        let done = run(&app, &caller, &model, checked, arrival).await?;
        finish(&app, &model, done, |answer| Part { answer, is_last: true }).await
    };
    once(only).boxed()
}

/// The tokens of an answer. At most one of them waits for the client, so that the model runs no
/// faster than the client reads.
fn generated(
    app: Arc<App>,
    caller: Arc<Principal>,
    model: Arc<Model>,
    mut checked: Checked,
    arrival: Arrival,
) -> impl Stream<Item = Result<Part, RequestError>> {
    let (sender, receiver) = mpsc::channel(1);
    let form = Form { model: model.clone(), id: checked.terms.id.clone(), binary: checked.is_binary() };
    checked.tokens = Some(sender.clone());
    let running = async move {
        // The last token, or the error, follows when the request has been counted.
        let last = run(&app, &caller, &model, checked, arrival).await.map(|done| done.last_token());
        // The receiver is dropped only together with this future.
        let _ = sender.send(last).await;
    };
    // The request runs as a stream without elements beside that of the tokens, which comes first.
    let running = once(running).filter_map(|()| ready(None::<Result<Token, RequestError>>));
    let tokens = ReceiverStream::new(receiver);
    let first = |_: &mut ()| PollNext::Left;
    select_with_strategy(tokens, running, first).map(move |token| token.and_then(|token| form.part(token)))
}

/// What all answers of a request have in common.
struct Form {
    model: Arc<Model>,
    id: String,
    binary: bool,
}

impl Form {
    fn part(&self, token: Token) -> Result<Part, RequestError> {
        let tensor = Tensor::new(GENERATED, DataType::Int64, vec![1, 1], token.id.to_le_bytes().to_vec())?;
        let answer = InferResponse {
            model_name: self.model.name.clone(),
            model_version: self.model.version.clone(),
            id: self.id.clone(),
            parameters: Parameters::default(),
            outputs: vec![OutputTensor { tensor, binary: self.binary, shared: None }],
        };
        Ok(Part { answer, is_last: token.is_last })
    }
}
