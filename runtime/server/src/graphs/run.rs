//! The run of a request through a graph. A stage starts as soon as its inputs are there, and stages
//! that do not need each other run at the same time. Intermediate tensors stay in the daemon.

use super::builtin::Builtin;
use super::counts::{Counts, GraphCounts};
use super::manifest::metadata;
use crate::bodies::{Bodies, BodyRoom};
use crate::inference::{blocking, invoke};
use crate::limits::DECODE_INLINE_BYTES_MAX;
use crate::model::{Model, dtype_of};
use atoll_core::graphs::{Condition, Graph, GraphOutput, Next, Progress, Source};
use atoll_engine::{
    ChainRequest, Class, DeviceId, InputTensor, InvocationRequest, InvocationResult, InvocationTiming, InvokeError,
    OutputTensor, StageInput, StageRequest,
};
use atoll_fleet::Inference;
use atoll_protocol::{DataType, TensorMetadata, to_f64};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What a stage runs.
pub(crate) enum StageWork {
    Function(Arc<Model>),
    Builtin(Builtin),
}

/// A checked graph with what its stages run.
pub(crate) struct GraphWork {
    pub(crate) graph: Graph,
    pub(crate) works: Vec<StageWork>,
    /// For each stage the outputs that are used, ascending.
    used: Vec<Vec<usize>>,
    shared: Shared,
}

/// What all runs of a graph share.
pub(crate) struct Shared {
    /// The memory budget of requests, for the tensors of a run.
    pub(super) bodies: Bodies,
    /// The right to run a built-in stage of more than a few bytes.
    pub(super) turns: Arc<Semaphore>,
    pub(super) counts: Arc<GraphCounts>,
}

impl GraphWork {
    pub(super) fn new(graph: Graph, works: Vec<StageWork>, shared: Shared) -> GraphWork {
        let mut used = vec![Vec::new(); works.len()];
        let within = graph.stages().iter().flat_map(|stage| {
            let value = stage.when.iter().map(|condition| &condition.value);
            stage.inputs.iter().chain(stage.otherwise.iter().flatten()).chain(value)
        });
        for source in within.chain(graph.outputs().iter().map(|output| &output.source)) {
            if let Source::Output { stage, output } = *source {
                used[stage].push(output);
            }
        }
        for outputs in &mut used {
            outputs.sort_unstable();
            outputs.dedup();
        }
        GraphWork { graph, works, used, shared }
    }

    /// The functions that it calls.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.works.iter().filter_map(|work| match work {
            StageWork::Function(model) => Some(model),
            StageWork::Builtin(_) => None,
        })
    }

    /// The devices of its first function. Its requests are counted for the first of them.
    pub(crate) fn devices(&self) -> Vec<DeviceId> {
        self.models().next().map_or_else(|| vec![DeviceId(0)], |model| model.devices.clone())
    }

    /// The requests so far.
    pub(crate) fn counts(&self) -> Counts {
        self.shared.counts.get()
    }

    pub(crate) fn inputs(&self) -> Vec<TensorMetadata> {
        self.graph.inputs().iter().map(metadata).collect()
    }

    pub(crate) fn outputs(&self) -> Vec<TensorMetadata> {
        self.graph.outputs().iter().map(|output| metadata(&output.tensor)).collect()
    }
}

/// A tensor of a run.
type Held = Arc<InputTensor>;

/// Runs a request whose model is a graph. Stages in flight are cancelled if the future is dropped.
pub(crate) async fn run_graph(
    engine: &Arc<dyn Inference>,
    model: &Model,
    request: InvocationRequest,
    class: Class,
) -> Result<InvocationResult, InvokeError> {
    let Some(work) = model.graph.clone() else { return invoke(engine, request.into()).await };
    let ended = run_stages(engine, model, &work, request, class).await;
    work.shared.counts.note(&ended);
    ended
}

async fn run_stages(
    engine: &Arc<dyn Inference>,
    model: &Model,
    work: &Arc<GraphWork>,
    request: InvocationRequest,
    class: Class,
) -> Result<InvocationResult, InvokeError> {
    let InvocationRequest { inputs, priority, deadline, .. } = request;
    for (metadata, input) in model.inputs.iter().zip(&inputs) {
        check_input(metadata, input).map_err(InvokeError::BadInput)?;
    }
    let deadline = deadline.or(work.graph.deadline().map(|after| Duration::from_nanos(after.0)));
    let terms = Terms { class, priority, ends: deadline.and_then(|after| Instant::now().checked_add(after)) };
    let inputs = inputs.into_iter().map(Arc::new).collect();
    let outputs = vec![Vec::new(); work.works.len()];
    let (progress, next) = Progress::new(&work.graph);
    let timing = InvocationTiming::default();
    let room = work.shared.bodies.room();
    let run = Run {
        engine,
        room,
        held_bytes: 0,
        work: work.clone(),
        terms,
        inputs,
        outputs,
        progress,
        tasks: JoinSet::new(),
        timing,
        preemptions: 0,
        cold_start: false,
    };
    run.run(next).await
}

/// What all stages of a request have in common.
#[derive(Clone, Copy)]
struct Terms {
    class: Class,
    priority: u32,
    /// The deadline.
    ends: Option<Instant>,
}

/// The outputs of a stage by index, with the result they are of.
type Ended = Result<(Vec<Option<Held>>, InvocationTiming, u32, bool), InvokeError>;

struct Run<'a> {
    engine: &'a Arc<dyn Inference>,
    /// Room for the tensors that the run made so far: copies for stages, outputs of stages.
    room: BodyRoom,
    held_bytes: usize,
    work: Arc<GraphWork>,
    terms: Terms,
    inputs: Vec<Held>,
    /// Stage by stage, the outputs that are used.
    outputs: Vec<Vec<Option<Held>>>,
    progress: Progress,
    tasks: JoinSet<(usize, Ended)>,
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
                        self.progress.decided(&self.work.graph, stage, runs, &mut next);
                    }
                    Next::Run(stage) => self.start(stage)?,
                }
            }
            if self.progress.is_done() {
                return self.result();
            }
            let (stage, ended) = match self.tasks.join_next().await {
                Some(Ok(ended)) => ended,
                // The panic hook has reported the panic.
                Some(Err(_)) | None => return Err(InvokeError::Device("internal error: a stage panicked".into())),
            };
            let (outputs, timing, preemptions, cold_start) = ended.map_err(|error| self.of_stage(stage, error))?;
            self.hold(outputs.iter().flatten().map(|tensor| tensor.bytes.len()).sum())?;
            self.outputs[stage] = outputs;
            self.preemptions += preemptions;
            self.cold_start |= cold_start;
            self.timing.queue_ns += timing.queue_ns;
            self.timing.input_ns += timing.input_ns;
            self.timing.compute_ns += timing.compute_ns;
            self.timing.output_ns += timing.output_ns;
            self.progress.ended(&self.work.graph, stage, &mut next);
        }
    }

    fn start(&mut self, stage: usize) -> Result<(), InvokeError> {
        let inputs = &self.work.graph.stages()[stage].inputs;
        let inputs: Vec<Held> = inputs.iter().map(|source| self.tensor(*source)).collect();
        let (work, used) = (self.work.clone(), self.work.used[stage].clone());
        let remaining = self.terms.ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        if remaining == Some(Duration::ZERO) {
            return Err(InvokeError::DeadlineExceeded);
        }
        if let StageWork::Function(_) = &self.work.works[stage] {
            self.hold(inputs.iter().map(|input| input.bytes.len()).sum())?;
        }
        match &self.work.works[stage] {
            StageWork::Builtin(_) => {
                self.tasks.spawn(async move { (stage, run_builtin(&work, stage, inputs).await) });
            }
            StageWork::Function(model) => {
                let inputs = inputs.into_iter().map(|held| StageInput::Tensor(Arc::unwrap_or_clone(held)));
                let request = ChainRequest {
                    stages: vec![StageRequest {
                        function: model.key.clone(),
                        inputs: inputs.collect(),
                        outputs: Some(used.clone()),
                    }],
                    class: Some(self.terms.class),
                    priority: self.terms.priority,
                    instance: None,
                    deadline: remaining,
                    times_launches: false,
                };
                let (engine, model) = (self.engine.clone(), model.clone());
                self.tasks.spawn(async move {
                    let ended = invoke(&engine, request).await.map(|result| {
                        let InvocationResult { outputs, timing, preemptions, cold_start, .. } = result;
                        (placed(&model.outputs, &used, outputs), timing, preemptions, cold_start)
                    });
                    (stage, ended)
                });
            }
        }
        Ok(())
    }

    /// Reserves memory for tensors that the run makes.
    fn hold(&mut self, bytes: usize) -> Result<(), InvokeError> {
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        if self.room.grow_to(self.held_bytes) { Ok(()) } else { Err(no_room()) }
    }

    fn tensor(&self, source: Source) -> Held {
        match self.progress.resolve(&self.work.graph, source) {
            Source::Input(input) => self.inputs[input].clone(),
            Source::Output { stage, output } => {
                self.outputs[stage][output].clone().expect("a used output of a stage that has ended is held")
            }
        }
    }

    fn condition(&self, stage: usize) -> Result<bool, InvokeError> {
        let Some(condition): Option<Condition> = self.work.graph.stages()[stage].when else { return Ok(true) };
        let tensor = self.tensor(condition.value);
        // The bytes of the largest element.
        if tensor.bytes.len() > 8 {
            let text = format!("its condition is on a tensor of shape {:?}; it has to have one element", tensor.shape);
            return Err(InvokeError::BadInput(text));
        }
        let values = self.datatype_of(condition.value).map(|datatype| to_f64(datatype, &tensor.bytes));
        let values = values.unwrap_or_default();
        let [value] = values[..] else {
            let text = format!("its condition is on a tensor of {} elements; it has to have one", values.len());
            return Err(InvokeError::BadInput(text));
        };
        condition.holds(value).map_err(|_| InvokeError::BadInput("its condition is on a value that is NaN".into()))
    }

    fn datatype_of(&self, source: Source) -> Option<DataType> {
        match source {
            Source::Input(input) => self.work.graph.inputs()[input].form.element.parse().ok(),
            Source::Output { stage, output } => match &self.work.works[stage] {
                StageWork::Function(model) => Some(model.outputs[output].datatype),
                StageWork::Builtin(builtin) => builtin.output_types().get(output).copied(),
            },
        }
    }

    /// Adds the name of the stage to what the client can read of an error.
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
            // A substitute may have another size where its stage leaves sizes open.
            check_form("output", &metadata, &tensor)?;
            Ok(OutputTensor { shape: tensor.shape.clone(), bytes: tensor.bytes.clone() })
        };
        let wanted = self.work.graph.outputs().iter().zip(self.work.outputs());
        let outputs = wanted.map(output).collect::<Result<_, String>>();
        Ok(InvocationResult {
            outputs: outputs.map_err(InvokeError::BadInput)?,
            timing: self.timing,
            entered_ns: 0,
            preemptions: self.preemptions,
            device: self.work.devices().first().copied().unwrap_or_default(),
            cold_start: self.cold_start,
            launches: Vec::new(),
        })
    }
}

/// Puts the outputs that were asked for in their places.
fn placed(metadata: &[TensorMetadata], used: &[usize], outputs: Vec<OutputTensor>) -> Vec<Option<Held>> {
    let mut places: Vec<Option<Held>> = vec![None; metadata.len()];
    for (&output, OutputTensor { shape, bytes }) in used.iter().zip(outputs) {
        places[output] = Some(Arc::new(InputTensor { dtype: dtype_of(metadata[output].datatype), shape, bytes }));
    }
    places
}

/// What a built-in stage needs at most, in sizes of its inputs: copies of them as bytes and numbers,
/// indices of 64 bits, and outputs.
const BUILTIN_COPIES: usize = 8;

fn no_room() -> InvokeError {
    InvokeError::Unavailable("its tensors need more memory than requests have left; try again later".into())
}

async fn run_builtin(work: &Arc<GraphWork>, stage: usize, inputs: Vec<Held>) -> Ended {
    let begun = Instant::now();
    let StageWork::Builtin(builtin) = work.works[stage] else {
        return Err(InvokeError::Device("internal error: a function is no built-in stage".into()));
    };
    let bytes: usize = inputs.iter().map(|input| input.bytes.len()).sum();
    let mut room = work.shared.bodies.room();
    if !room.grow_to(bytes.saturating_mul(BUILTIN_COPIES)) {
        return Err(no_room());
    }
    // Both stay with the computation, which goes on if its client leaves.
    let turn = match bytes <= DECODE_INLINE_BYTES_MAX {
        true => None,
        false => work.shared.turns.clone().acquire_owned().await.ok(),
    };
    let compute = move || {
        let _held = (room, turn);
        let tensors: Vec<OutputTensor> = inputs
            .iter()
            .map(|input| OutputTensor { shape: input.shape.clone(), bytes: input.bytes.clone() })
            .collect();
        builtin.run(&tensors.iter().collect::<Vec<_>>())
    };
    let outputs = match bytes <= DECODE_INLINE_BYTES_MAX {
        true => compute(),
        false => blocking(compute).await.unwrap_or_else(|| Err("internal error: it panicked".into())),
    };
    let outputs = outputs.map_err(InvokeError::BadInput)?;
    let held = |(OutputTensor { shape, bytes }, datatype): (OutputTensor, &DataType)| {
        Some(Arc::new(InputTensor { dtype: dtype_of(*datatype), shape, bytes }))
    };
    let compute_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let timing = InvocationTiming { compute_ns, ..InvocationTiming::default() };
    Ok((outputs.into_iter().zip(builtin.output_types()).map(held).collect(), timing, 0, false))
}

/// Checks type and shape of an input or output of a graph as far as the graph declares them.
fn check_form(what: &str, metadata: &TensorMetadata, tensor: &InputTensor) -> Result<(), String> {
    let name = &metadata.name;
    let is_size = |(given, declared): (&i64, &i64)| *given >= 0 && (*declared < 0 || given == declared);
    let is_shape = tensor.shape.len() == metadata.shape.len() && tensor.shape.iter().zip(&metadata.shape).all(is_size);
    if tensor.dtype == dtype_of(metadata.datatype) && is_shape {
        return Ok(());
    }
    Err(format!(
        "{what} `{name}` of the graph is {}{:?}, but here it is {}{:?}",
        metadata.datatype,
        metadata.shape,
        tensor.dtype.map_or("BYTES".into(), |dtype| format!("{dtype:?}")),
        tensor.shape
    ))
}

/// Checks an input of a graph.
fn check_input(metadata: &TensorMetadata, input: &InputTensor) -> Result<(), String> {
    check_form("input", metadata, input)?;
    let count = input.shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
    let bytes = metadata.datatype.element_bytes().and_then(|element| count?.checked_mul(element));
    if bytes != Some(input.bytes.len()) {
        return Err(format!(
            "input `{}` has {} bytes, which its shape {:?} does not",
            metadata.name,
            input.bytes.len(),
            input.shape
        ));
    }
    Ok(())
}
