//! Runs a request through a graph. A stage starts as soon as its inputs exist; independent stages
//! run at the same time. Intermediate tensors stay in the daemon, or on the devices.

mod prices;
mod start;

use super::budget::Budget;
use super::calls::Stages;
use super::costs::{Decision, Ran, Rejected};
use super::desk::{Call, Limits, Ticket, Turn, next_call};
use super::intermediates::{Held, Intermediate};
use super::stage::{StageResult, StageWork, check_form, check_input, no_room};
use super::work::GraphWork;
use crate::bodies::BodyRoom;
use crate::inference::{invoke, passed};
use crate::model::Model;
use crate::running::Permit;
use atoll_core::graphs::{Condition, Cost, GraphOutput, Next, Progress, Source};
use atoll_engine::{Class, DeviceId, InvocationRequest, InvocationResult, InvocationTiming, InvokeError, OutputTensor};
use atoll_fleet::Inference;
use atoll_protocol::{DataType, TensorMetadata, to_f64};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The parameters of a request that matter only for graphs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked<'a> {
    pub(crate) price_max: Option<Cost>,
    /// The id of the request, by which a version of each function is chosen; may be empty.
    pub(crate) id: &'a str,
}

/// Runs a request whose model is a graph. Stages in flight are cancelled if the future is dropped.
///
/// # Errors
/// [`Rejected`] if the request is not admitted. No stage has run then.
pub(crate) async fn run_graph(
    stages: Arc<dyn Stages>,
    engine: &Arc<dyn Inference>,
    permit: &Permit,
    model: &Model,
    request: InvocationRequest,
    class: Class,
    asked: Asked<'_>,
) -> Result<Result<InvocationResult, InvokeError>, Rejected> {
    let Some(work) = model.graph.clone() else { return Ok(invoke(engine, permit, request.into()).await) };
    let begun = Instant::now();
    let first = request.inputs.first().filter(|_| model.has_rows()).and_then(|input| input.shape.first());
    let rows = first.map_or(1, |rows| u64::try_from(*rows).unwrap_or(1));
    for (metadata, input) in model.inputs.iter().zip(&request.inputs) {
        if let Err(error) = check_input(metadata, input) {
            let refused = Err(InvokeError::BadInput(error));
            work.shared.counts.note(&refused, rows, begun.elapsed());
            return Ok(refused);
        }
    }
    let own = work.graph.deadline().map(|after| Duration::from_nanos(after.0));
    let deadline = request.deadline.or(own);
    let price_max = asked.price_max.or(work.graph.price_max());
    let is_bound = price_max.is_some();
    let waited = if deadline.is_some() || is_bound { work.prepare(deadline).await } else { Duration::ZERO };
    let left = deadline.map(|deadline| deadline.saturating_sub(waited));
    let limits = Limits { deadline: left, price_max: asked.price_max };
    let (ticket, measures) = match work.costs.decide(&work.graph, &work.works, limits) {
        Decision::Free => (None, false),
        Decision::Measure => (None, true),
        Decision::Planned(ticket) => (Some(ticket), false),
        Decision::Rejected(rejected) => {
            work.shared.counts.note_rejection(begun.elapsed());
            return Err(rejected);
        }
    };
    let InvocationRequest { inputs, priority, .. } = request;
    let ends = deadline.and_then(|after| begun.checked_add(after));
    let (terms, is_planned) = (Terms { class, priority, ends, is_bound }, ticket.is_some());
    let (progress, next) = Progress::new(&work.graph);
    let id = match asked.id {
        "" => work.unnamed.fetch_add(1, Ordering::Relaxed).to_string(),
        id => id.to_owned(),
    };
    let run = Run {
        stages,
        engine,
        permit,
        id,
        room: work.shared.bodies.room(class),
        held_bytes: 0,
        terms,
        inputs: inputs.into_iter().map(Arc::new).collect(),
        outputs: vec![Vec::new(); work.works.len()],
        remaking: BTreeSet::new(),
        remade: BTreeSet::new(),
        unbound: BTreeSet::new(),
        stalled: BTreeSet::new(),
        progress,
        budget: price_max.filter(|_| is_planned).map(Budget::new),
        ticket,
        measures,
        ready: BTreeSet::new(),
        called: BTreeMap::new(),
        tasks: JoinSet::new(),
        timing: InvocationTiming::default(),
        preemptions: 0,
        cold_start: false,
        work: work.clone(),
    };
    let ended = run.run(next).await;
    match ended {
        Err(InvokeError::DeadlineExceeded) if is_planned => work.costs.note_end(true),
        Ok(_) if is_planned => work.costs.note_end(false),
        _ => {}
    }
    work.shared.counts.note(&ended, rows, begun.elapsed());
    Ok(ended)
}

/// Parameters that apply to all stages of a request.
#[derive(Clone, Copy)]
struct Terms {
    class: Class,
    priority: u32,
    /// The deadline as a point in time.
    ends: Option<Instant>,
    /// Whether there is a price limit.
    is_bound: bool,
}

/// A stage that has ended.
struct Ended {
    stage: usize,
    /// The version of its function.
    version: usize,
    /// The device that the stage was bound to; `None` if any could run it.
    given_to: Option<DeviceId>,
    is_planned: bool,
    /// Whether it was bound to the device because an input was there.
    follows_input: bool,
    /// Bytes of its inputs that other functions made.
    intermediate_bytes: u64,
    took: Duration,
    result: Result<StageResult, InvokeError>,
}

/// Where a stage runs: the device, if it is bound to one, and the reservation.
#[derive(Default)]
struct Place {
    device: Option<DeviceId>,
    turn: Option<Turn>,
}

struct Run<'a> {
    stages: Arc<dyn Stages>,
    engine: &'a Arc<dyn Inference>,
    permit: &'a Permit,
    id: String,
    /// Memory reserved for the tensors that the run has made: copies for stages and outputs.
    room: BodyRoom,
    held_bytes: usize,
    work: Arc<GraphWork>,
    terms: Terms,
    inputs: Vec<Held>,
    /// The outputs by stage and index. Only outputs that are used are kept.
    outputs: Vec<Vec<Intermediate>>,
    /// Stages that run again, since their outputs are lost.
    remaking: BTreeSet<usize>,
    /// Stages whose inputs were made again.
    remade: BTreeSet<usize>,
    /// Stages that are not bound to the device of an input any more.
    unbound: BTreeSet<usize>,
    /// Stages that wait for inputs that are made again.
    stalled: BTreeSet<usize>,
    progress: Progress,
    /// Its price limit, if it was planned with one.
    budget: Option<Budget>,
    /// Its reservations, if it has any. Dropped before `tasks`, so that the end of a stage in
    /// flight starts no further stage.
    ticket: Option<Ticket>,
    /// Whether its stages run on the devices where they are still to be measured.
    measures: bool,
    /// Stages whose inputs exist and that wait for their turns.
    ready: BTreeSet<usize>,
    /// Turns of stages whose inputs do not exist yet.
    called: BTreeMap<usize, Place>,
    tasks: JoinSet<Ended>,
    /// Sums over all stages.
    timing: InvocationTiming,
    preemptions: u32,
    cold_start: bool,
}

impl Run<'_> {
    async fn run(mut self, mut next: Vec<Next>) -> Result<InvocationResult, InvokeError> {
        loop {
            while let Some(step) = next.pop() {
                match step {
                    Next::Decide(stage) => {
                        let runs = self.condition(stage).map_err(|error| self.of_stage(stage, error))?;
                        self.ticket.iter().for_each(|ticket| ticket.decided(stage, runs));
                        self.progress.decided(&self.work.graph, stage, runs, &mut next);
                        self.release_inputs(stage);
                    }
                    Next::Run(stage) => self.begin(stage)?,
                }
            }
            if self.progress.is_done() {
                return self.result();
            }
            let ended = self.next_end().await?;
            if let StageWork::Function(callee) = &self.work.works[ended.stage] {
                callee.version(ended.version).note(ended.result.is_ok(), ended.took);
            }
            self.pay(&ended);
            if self.runs_again(&ended) {
                self.start(ended.stage, Place::default())?;
                continue;
            }
            let Ended { stage, given_to, is_planned, intermediate_bytes, took, result, .. } = ended;
            let result = result.map_err(|error| self.of_stage(stage, error))?;
            let StageResult { outputs, timing, preemptions, cold_start, device, handed_over_bytes } = result;
            self.work.note_moved(handed_over_bytes, intermediate_bytes.saturating_sub(handed_over_bytes));
            let ran = Ran { stage, device, given_to, took, timing, cold_start, is_planned };
            self.work.costs.note(&self.work.works[stage], &ran);
            self.hold(outputs.iter().map(Intermediate::bytes).sum())?;
            self.outputs[stage] = outputs;
            self.preemptions += preemptions;
            self.cold_start |= cold_start;
            self.timing.queue_ns += timing.queue_ns;
            self.timing.input_ns += timing.input_ns;
            self.timing.compute_ns += timing.compute_ns;
            self.timing.output_ns += timing.output_ns;
            if self.remaking.remove(&stage) {
                self.start_stalled()?;
                continue;
            }
            self.progress.ended(&self.work.graph, stage, &mut next);
            self.release_inputs(stage);
        }
    }

    /// Waits for a stage to end. Starts stages that get their turns meanwhile.
    async fn next_end(&mut self) -> Result<Ended, InvokeError> {
        loop {
            if self.tasks.is_empty() && self.ticket.is_none() {
                return Err(InvokeError::Device("internal error: a graph has stages that never start".into()));
            }
            let ends = self.terms.ends.filter(|_| self.ticket.is_some());
            tokio::select! {
                biased;
                ended = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    // The panic hook has reported the panic.
                    let panicked = || InvokeError::Device("internal error: a stage panicked".into());
                    return ended.and_then(Result::ok).ok_or_else(panicked);
                }
                call = next_call(&mut self.ticket) => match call {
                    Some(Call::Run { stage, device, turn }) => {
                        self.called.insert(stage, Place { device, turn: Some(turn) });
                        self.pair(stage)?;
                    }
                    // All stages have had their turns, or the reservations are lost.
                    Some(Call::Free) | None => {
                        self.ticket = None;
                        for stage in std::mem::take(&mut self.ready) {
                            self.start(stage, Place::default())?;
                        }
                    }
                },
                () = passed(ends) => return Err(InvokeError::DeadlineExceeded),
            }
        }
    }

    /// Starts a stage whose inputs exist, or lets it wait for its turn.
    fn begin(&mut self, stage: usize) -> Result<(), InvokeError> {
        self.ready.insert(stage);
        match self.ticket {
            Some(_) => self.pair(stage),
            None => {
                self.ready.remove(&stage);
                let device = if self.measures { self.place_to_measure(stage) } else { None };
                let place = self.called.remove(&stage).unwrap_or(Place { device, turn: None });
                self.start(stage, place)
            }
        }
    }

    fn place_to_measure(&self, stage: usize) -> Option<DeviceId> {
        self.work.costs.place_to_measure(stage, &self.work.works[stage])
    }

    /// Starts a stage if its inputs exist and it has its turn.
    fn pair(&mut self, stage: usize) -> Result<(), InvokeError> {
        if !self.ready.contains(&stage) {
            return Ok(());
        }
        let Some(place) = self.called.remove(&stage) else { return Ok(()) };
        self.ready.remove(&stage);
        self.start(stage, place)
    }

    /// Whether a stage that has ended has failed and runs again: on another device, or with inputs
    /// that are made again.
    fn runs_again(&mut self, ended: &Ended) -> bool {
        let Err(error) = &ended.result else { return false };
        // A pool would have sent it to another device.
        let is_given_back = matches!(error, InvokeError::Unavailable(_) | InvokeError::ExecutorLost(_));
        if ended.follows_input && is_given_back {
            return self.unbound.insert(ended.stage);
        }
        self.may_run_elsewhere(ended.given_to, ended.is_planned) || self.lost_its_inputs(ended.stage)
    }

    /// Whether a failed stage may run on another device. True if the device that it was bound to is
    /// now lost, or is drained and the request has no reservation under a price limit.
    fn may_run_elsewhere(&self, given_to: Option<DeviceId>, is_planned: bool) -> bool {
        let (Some(device), Some(desk)) = (given_to, self.work.costs.desk()) else { return false };
        desk.look();
        let states = self.engine.devices_state().devices;
        let is_kept = is_planned && self.terms.is_bound;
        states.get(usize::from(device.0)).is_some_and(|state| state.is_lost || (state.is_drained && !is_kept))
    }

    /// Reserves memory for more tensors of the run.
    fn hold(&mut self, bytes: usize) -> Result<(), InvokeError> {
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        if self.room.grow_to(self.held_bytes) { Ok(()) } else { Err(no_room()) }
    }

    fn tensor(&self, source: Source) -> Held {
        match self.progress.resolve(&self.work.graph, source) {
            Source::Input(input) => self.inputs[input].clone(),
            Source::Output { stage, output } => {
                let made = self.outputs[stage][output].host.clone();
                made.expect("an output that the daemon needs is in its memory")
            }
        }
    }

    fn condition(&self, stage: usize) -> Result<bool, InvokeError> {
        let Some(condition): Option<Condition> = self.work.graph.stages()[stage].when else { return Ok(true) };
        let tensor = self.tensor(condition.value);
        // 8 bytes is the size of the largest element.
        if tensor.bytes.len() > 8 {
            let text = format!("the tensor of its condition has shape {:?}; it must have one element", tensor.shape);
            return Err(InvokeError::BadInput(text));
        }
        let values = self.datatype_of(condition.value).map(|datatype| to_f64(datatype, &tensor.bytes));
        let values = values.unwrap_or_default();
        let [value] = values[..] else {
            let text = format!("the tensor of its condition has {} elements; it must have one", values.len());
            return Err(InvokeError::BadInput(text));
        };
        condition.holds(value).map_err(|_| InvokeError::BadInput("the value of its condition is NaN".into()))
    }

    fn datatype_of(&self, source: Source) -> Option<DataType> {
        match source {
            Source::Input(input) => self.work.graph.inputs()[input].form.element.parse().ok(),
            Source::Output { stage, output } => match &self.work.works[stage] {
                StageWork::Function(callee) => Some(callee.first().outputs[output].datatype),
                StageWork::Builtin(builtin) => builtin.output_types().get(output).copied(),
                StageWork::Program(stage) => stage.output_type(output),
            },
        }
    }

    /// Adds the name of the stage to an error that the client sees.
    fn of_stage(&self, stage: usize, error: InvokeError) -> InvokeError {
        match error {
            InvokeError::BadInput(text) => {
                InvokeError::BadInput(format!("stage `{}`: {text}", self.work.graph.stages()[stage].name))
            }
            other => other,
        }
    }

    fn result(mut self) -> Result<InvocationResult, InvokeError> {
        let outputs = self.work.clone();
        let outputs = outputs.graph.outputs().iter().map(|wanted| self.tensor(wanted.source).bytes.len());
        let bytes = outputs.sum();
        self.hold(bytes)?;
        if self.terms.ends.is_some_and(|ends| Instant::now() > ends) {
            return Err(InvokeError::DeadlineExceeded);
        }
        let output = |(wanted, metadata): (&GraphOutput, TensorMetadata)| {
            let tensor = self.tensor(wanted.source);
            // A substitute of a skipped stage may have other sizes where the stage's output has
            // variable ones.
            check_form("output", &metadata, &tensor)?;
            Ok(OutputTensor { shape: tensor.shape.clone(), bytes: tensor.bytes.clone() })
        };
        let wanted = self.work.graph.outputs().iter().zip(self.work.outputs());
        let outputs = wanted.map(output).collect::<Result<_, String>>();
        Ok(InvocationResult {
            outputs: outputs.map_err(InvokeError::BadInput)?,
            retained: Vec::new(),
            handed_over_bytes: 0,
            timing: self.timing,
            entered_ns: 0,
            preemptions: self.preemptions,
            device: self.work.devices().first().copied().unwrap_or_default(),
            task: None,
            placed: None,
            cold_start: self.cold_start,
            load_ns: 0,
            batch: 1,
            launches: Vec::new(),
        })
    }
}
