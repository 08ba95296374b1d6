//! Runs the steps of sequences: one for a request that belongs to a sequence, and one for each
//! token of an answer that a decoder generates.

use super::error::RequestError;
use crate::app::App;
use crate::generation::{Generation, Token};
use crate::instances::client;
use crate::model::Model;
use crate::routes::Urgency;
use crate::running::Permit;
use crate::sequences::Turn;
use atoll_engine::{FunctionKey, InvocationRequest, InvocationResult, InvokeError};
use std::time::Instant;
use tokio::sync::mpsc;

/// Takes the tokens of an answer one after the other.
pub(super) type Tokens = mpsc::Sender<Result<Token, RequestError>>;

/// Generates an answer: runs a step for each of its tokens, and sends each token but the last one
/// to `tokens`. The result has all tokens. The deadline of the invocation is that of all steps
/// together.
pub(super) async fn generate(
    app: &App,
    permit: &Permit,
    model: &Model,
    mut turn: Turn<'_>,
    invocation: InvocationRequest,
    urgency: Urgency,
    (mut generation, tokens): (Generation, Option<Tokens>),
) -> Result<InvocationResult, InvokeError> {
    // A deadline that the clock cannot represent never passes.
    let until = invocation.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
    let mut preemptions = 0;
    loop {
        let deadline = until.map(|until| until.saturating_duration_since(Instant::now()));
        if deadline.is_some_and(|left| left.is_zero()) {
            return Err(InvokeError::DeadlineExceeded);
        }
        let request = InvocationRequest { inputs: generation.inputs(), deadline, ..invocation.clone() };
        let result = step(app, permit, model, &mut turn, request, urgency).await?;
        preemptions += result.preemptions;
        let token = generation.note(&result.outputs)?;
        if token.is_last {
            return Ok(InvocationResult { outputs: vec![generation.output()], preemptions, ..result });
        }
        if let Some(tokens) = &tokens {
            // The receiver is dropped only together with this future.
            let _ = tokens.send(Ok(token)).await;
        }
    }
}

/// Runs a step of a sequence under the instance that it names; otherwise under that of the
/// sequence, which the first step chooses among those on the device of the session. A draining
/// instance is kept until its sequences have ended. If the instance was removed or its share is not
/// in force any more, the sequence goes on under another one: its state is on the device.
pub(super) async fn step(
    app: &App,
    permit: &Permit,
    model: &Model,
    turn: &mut Turn<'_>,
    mut invocation: InvocationRequest,
    urgency: Urgency,
) -> Result<InvocationResult, InvokeError> {
    let is_there = |name: &str| {
        let key = FunctionKey { name: name.into(), ..model.key.clone() };
        app.instance_of(model, Some(name)).is_ok() && app.engine.holds_share(&client(&key))
    };
    let device = turn.device();
    let choose = || app.instances.choose(&model.key, urgency, &[], device).map(|choice| choice.instance);
    let mut again = None;
    if invocation.instance.is_none() {
        invocation.instance = turn.instance(is_there, choose);
        again = invocation.instance.is_some().then(|| invocation.clone());
    }
    let result = step_once(app, permit, model, turn, invocation, urgency).await;
    match (result, again) {
        (Err(InvokeError::UnknownInstance(_)), Some(mut again)) => {
            again.instance = turn.instance(is_there, choose);
            step_once(app, permit, model, turn, again, urgency).await
        }
        (result, _) => result,
    }
}

async fn step_once(
    app: &App,
    permit: &Permit,
    model: &Model,
    turn: &mut Turn<'_>,
    invocation: InvocationRequest,
    urgency: Urgency,
) -> Result<InvocationResult, InvokeError> {
    model.check_current()?;
    let routed = app.instances.begin(&model.key, invocation.instance.as_deref(), urgency);
    let result = turn.step(permit, invocation.into()).await;
    routed.into_iter().for_each(|routed| routed.end(&result));
    result
}
