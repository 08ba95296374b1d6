//! Runs an inference request, from its decoded form to its answer.

use super::error::{Kind, RequestError};
use super::shared_memory::Shared;
use super::steps::{Tokens, generate, step};
use super::terms::Terms;
use crate::access_log::note_inference;
use crate::app::App;
use crate::generation::{Generation, Token};
use crate::graphs::{self, run_graph};
use crate::identity::Principal;
use crate::instances::LEASE_PREFIX;
use crate::limits::DECODE_INLINE_BYTES_MAX;
use crate::metrics::Outcome;
use crate::model::{Fitted, InUse, Model, Wanted, binary_by_default};
use crate::otlp::{Arrival, Asked, Span};
use crate::routes::Urgency;
use crate::running::Permit;
use crate::scaling::wait;
use crate::sequences::place::Place;
use crate::shared_memory::Window;
use crate::threads::for_client;
use atoll_engine::{Class, DeviceId, InputTensor, InvocationRequest, InvocationResult, InvokeError, Tenant};
use atoll_protocol::{InferRequest, InferResponse, OutputTensor, Parameters, Tensor, top_classes};
use std::sync::Arc;
use std::time::Instant;

/// A request that was checked against its model.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) terms: Terms,
    inputs: Vec<InputTensor>,
    outputs: Vec<Wanted>,
    shared: Shared,
    /// The answer that a model generates.
    generation: Option<Generation>,
    /// Receives the tokens of that answer one after the other, if the client takes them so.
    pub(super) tokens: Option<Tokens>,
    /// Keeps the model loaded while it is exchanged.
    in_use: InUse,
}

impl Checked {
    /// Checks a request against its model. `shared` is the result of
    /// [`fetch`](super::shared_memory::fetch) for it.
    pub(crate) fn new(model: &Model, request: InferRequest, shared: Shared) -> Result<Checked, RequestError> {
        let in_use = model.used();
        let terms = Terms::of(&request.id, &request.parameters)?;
        let binary = binary_by_default(&request)?;
        let Fitted { mut inputs, outputs } = model.fit(request.inputs, &request.outputs, binary)?;
        let mut generation = None;
        if let Some(decoder) = &model.decoder {
            check_generation(model, &terms, &outputs, &shared)?;
            generation = Some(decoder.begin(std::mem::take(&mut inputs), &request.parameters)?);
        }
        Ok(Checked { terms, inputs, outputs, shared, generation, tokens: None, in_use })
    }

    /// Whether the output is to be sent in binary.
    pub(super) fn is_binary(&self) -> bool {
        self.outputs.first().is_some_and(|wanted| wanted.binary)
    }
}

/// Refuses what a request of a model that generates cannot have.
fn check_generation(model: &Model, terms: &Terms, outputs: &[Wanted], shared: &Shared) -> Result<(), RequestError> {
    let what = if terms.sequence.is_some() {
        "sequence_id: it is a sequence of its own"
    } else if outputs.iter().any(|output| output.classes.is_some()) {
        "classification"
    } else if shared.outputs.iter().any(Option::is_some) {
        "output in shared memory"
    } else {
        return Ok(());
    };
    Err(RequestError::bad_request(format!("model `{}` generates tokens, so a request has no {what}", model.name)))
}

/// A result that is not encoded yet.
pub(crate) struct Done {
    id: String,
    result: InvocationResult,
    outputs: Vec<Wanted>,
    shared: Shared,
    /// Its span, which ends when the answer is encoded.
    span: Option<Span>,
}

/// Runs a request. Cancels it if the future is dropped.
pub(crate) async fn run(
    app: &Arc<App>,
    caller: &Principal,
    model: &Model,
    request: Checked,
    arrival: Arrival,
) -> Result<Done, RequestError> {
    let asked = Asked {
        tenant: caller.tenant.as_str(),
        model: &model.name,
        version: &model.version,
        request_id: &request.terms.id,
    };
    let mut span = app.tracer.as_ref().and_then(|tracer| Span::begin(tracer, &asked, arrival));
    let done = run_within(app, caller, model, request, arrival.at, &mut span).await;
    match done {
        Ok(done) => Ok(Done { span, ..done }),
        Err(error) => {
            span.iter_mut().for_each(|span| span.note_error(error.kind.label(), &error.message));
            Err(error)
        }
    }
}

/// Runs a request that arrived at `arrived`, and notes the result in its span.
async fn run_within(
    app: &Arc<App>,
    caller: &Principal,
    model: &Model,
    request: Checked,
    arrived: Instant,
    span: &mut Option<Span>,
) -> Result<Done, RequestError> {
    let Checked { terms, mut inputs, outputs, shared, generation, tokens, in_use } = request;
    let mut in_use = Some(in_use);
    let Terms { id, class: asked, priority, instance, deadline, price_max, sequence } = terms;
    let deadline = deadline.into_iter().chain(model.timeout()).min();
    if price_max.is_some() && model.graph.is_none() {
        let name = &model.name;
        return Err(RequestError::bad_request(format!("price_max is for graphs, and `{name}` is a function")));
    }
    let found = app.instance_of(model, instance.as_deref()).map_err(|error| no_instance(instance.as_deref(), error))?;
    let asked = asked.or(found.as_ref().and_then(|instance| instance.class));
    let class = asked.unwrap_or(model.class());
    let priority = if asked.is_none() && class == Class::BestEffort { model.default_priority() } else { priority };
    app.check_slot(found.as_deref(), class).map_err(RequestError::bad_request)?;
    note_inference(&model.name, class, &id);
    span.iter_mut().for_each(|span| span.note_class(class));
    let sequence = match generation {
        Some(_) => Some(Place::own()),
        None => sequence.filter(|_| model.runs_sequences()),
    };
    model.add_controls(&mut inputs, sequence.as_ref())?;
    let function = model.key.clone();
    let mut invocation = InvocationRequest { function, inputs, class: asked, priority, instance, deadline };
    let mut record =
        Record { app: app.clone(), model, device: model.first_device(), class, arrived, outcome: Outcome::Refused };
    let permit = app.admit(caller, model, class)?;
    record.outcome = Outcome::Cancelled;
    let mut metered = None;
    if invocation.instance.is_none() {
        // A request that waits for an instance is served by the function that follows a reload.
        if model.scaled.is_some() {
            in_use = None;
        }
        let waited = wait::for_instance(app, model, class, deadline).await;
        (invocation.deadline, metered) =
            waited.inspect_err(|error| record.outcome = Outcome::of(&Err(error.clone())))?;
    }
    in_use.get_or_insert_with(|| model.used());
    let urgency = Urgency { class, priority, deadline: invocation.deadline };
    let result = match sequence {
        None if model.graph.is_some() => {
            let asked = graphs::Asked { price_max, id: &id };
            let run = run_graph(app.clone(), &app.engine, &permit, model, invocation, class, asked).await;
            run.inspect_err(|_| record.outcome = Outcome::Refused)?
        }
        // A kept response may answer it at once.
        None if invocation.instance.is_some() || model.keeps_responses() => {
            routed(app, &permit, &caller.tenant, model, invocation, urgency).await
        }
        None => match wait::in_time(app, model, urgency, &mut metered) {
            Ok(()) => routed(app, &permit, &caller.tenant, model, invocation, urgency).await,
            Err(late) => Err(late),
        },
        Some(place) => {
            let turn = app.sequences.turn(&app.engine, model, &caller.tenant, place).await;
            let mut turn = turn.inspect_err(|error| record.outcome = Outcome::of(&Err(error.clone())))?;
            match generation {
                Some(generation) => {
                    generate(app, &permit, model, turn, invocation, urgency, (generation, tokens)).await
                }
                None if model.keeps_state() => step(app, &permit, model, &mut turn, invocation, urgency).await,
                None => {
                    let result = routed(app, &permit, &caller.tenant, model, invocation, urgency).await;
                    turn.note(&result);
                    result
                }
            }
        }
    };
    record.outcome = Outcome::of(&result);
    let result = result?;
    record.device = result.device;
    span.iter_mut().for_each(|span| span.note_result(&result));
    Ok(Done { id, result, outputs, shared, span: None })
}

/// Runs a request that needs no session, under the instance that it names or one that has room. If
/// that instance refuses it, tries the next one.
async fn routed(
    app: &App,
    permit: &Permit,
    tenant: &Tenant,
    model: &Model,
    mut invocation: InvocationRequest,
    urgency: Urgency,
) -> Result<InvocationResult, InvokeError> {
    let mut route = app.instances.route(&model.key, urgency, invocation.instance.take(), 1);
    loop {
        invocation.instance = route.next();
        let (again, instance) = (route.keep(&invocation), invocation.instance.clone());
        let begun = app.instances.begin(&model.key, instance.as_deref(), urgency);
        let result = app.responses.answer(&app.engine, permit, tenant, model, invocation).await;
        begun.into_iter().for_each(|begun| begun.end(&result));
        match again {
            Some(again) if route.is_refused(&result) => invocation = again,
            _ => return result,
        }
    }
}

/// The error for an instance that does not exist. If the name is that of a lease's instance, the
/// kind is `Conflict`, so that clients look up the present leases.
fn no_instance(name: Option<&str>, error: String) -> RequestError {
    match name.is_some_and(|name| name.starts_with(LEASE_PREFIX)) {
        true => RequestError::new(Kind::Conflict, format!("{error}; a lease that has ended has no instance")),
        false => RequestError::bad_request(error),
    }
}

/// Builds the answer to a request and encodes it with `encode`. Writes outputs to shared memory. If
/// the future is dropped, no further outputs are written.
pub(crate) async fn finish<T: Send + 'static>(
    app: &Arc<App>,
    model: &Arc<Model>,
    done: Done,
    encode: impl FnOnce(InferResponse) -> T + Send + 'static,
) -> Result<T, RequestError> {
    let waiting = Arc::new(());
    let answered = offload(done.weight(), {
        let (app, model, waiting) = (app.clone(), model.clone(), Arc::downgrade(&waiting));
        move || done.answer(&app, &model, &|| waiting.strong_count() > 0).map(encode)
    });
    let answered = answered.await?;
    // Held until here, so that dropping the future drops it and stops the writes.
    drop(waiting);
    answered
}

impl Done {
    /// Bytes of all outputs of the model, by which the thread that builds the answer is chosen.
    /// `usize::MAX` if outputs go to shared memory, since writing a file may take any time.
    fn weight(&self) -> usize {
        let writes = self.shared.outputs.iter().any(Option::is_some);
        if writes { usize::MAX } else { self.result.outputs.iter().map(|output| output.bytes.len()).sum() }
    }

    /// The last token of a generated answer.
    pub(super) fn last_token(&self) -> Token {
        let bytes = self.result.outputs.first().and_then(|tokens| tokens.bytes.last_chunk());
        Token { id: bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes)), is_last: true }
    }

    /// The answer with the requested outputs. Writes outputs to shared memory while the client
    /// still waits for the answer.
    fn answer(self, app: &App, model: &Model, is_awaited: &dyn Fn() -> bool) -> Result<InferResponse, RequestError> {
        let Done { id, mut result, outputs: wanted, shared, mut span } = self;
        let write = |window: &Window, bytes: &[u8]| app.regions.write(window, bytes, is_awaited);
        let answer = assemble(model, id, &mut result, wanted, &shared, write);
        if let (Some(span), Err(error)) = (&mut span, &answer) {
            span.note_error(error.kind.label(), &error.message);
        }
        answer
    }
}

fn assemble(
    model: &Model,
    id: String,
    result: &mut InvocationResult,
    wanted: Vec<Wanted>,
    shared: &Shared,
    write: impl Fn(&Window, &[u8]) -> Result<(), RequestError>,
) -> Result<InferResponse, RequestError> {
    let mut outputs = Vec::with_capacity(wanted.len());
    let windows = shared.outputs.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    for (wanted, window) in wanted.into_iter().zip(windows) {
        let metadata = &model.client_outputs[wanted.index];
        let output = &mut result.outputs[wanted.index];
        let (shape, bytes) = (model.outward(wanted.index, output.shape.clone()), std::mem::take(&mut output.bytes));
        let tensor = Tensor::new(metadata.name.clone(), metadata.datatype, shape, bytes)?;
        let tensor = match wanted.classes {
            Some(count) => top_classes(&tensor, count, model.labels_of(wanted.index), model.score_groups())?,
            None => tensor,
        };
        if let Some(window) = window {
            write(window, &tensor.bytes)?;
        }
        outputs.push(OutputTensor { tensor, binary: wanted.binary, shared: window.map(|it| it.range().clone()) });
    }
    let mut parameters = Parameters::default();
    if result.preemptions > 0 {
        parameters.set("preemptions", result.preemptions);
    }
    let (model_name, model_version) = (model.name.clone(), model.version.clone());
    Ok(InferResponse { model_name, model_version, id, parameters, outputs })
}

/// Runs work on `bytes` bytes directly, or on the pool of blocking threads if it would take long.
pub(crate) async fn offload<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RequestError> {
    if bytes <= DECODE_INLINE_BYTES_MAX {
        Ok(work())
    } else {
        for_client(work).await.ok_or_else(RequestError::panicked)
    }
}

/// Records a request in the metrics when dropped, so that requests of disconnected clients count,
/// too.
struct Record<'m> {
    app: Arc<App>,
    model: &'m Model,
    device: DeviceId,
    class: Class,
    arrived: Instant,
    outcome: Outcome,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let duration = self.arrived.elapsed();
        self.app.recorder.note_request(self.device, self.class, self.outcome, duration);
        match self.outcome {
            Outcome::Success => self.model.latencies.note(self.class, duration),
            _ => self.model.latencies.note_failure(duration),
        }
    }
}
