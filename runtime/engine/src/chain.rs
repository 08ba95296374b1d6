//! Functions called one after the other as one task. Their steps are concatenated; a stage that
//! takes outputs of earlier stages begins with a host step that copies them on the device.
//!
//! A single call is a chain of one. The memory of all stages is bound before the first step, so
//! that a chain that waits for memory holds none, like every other invocation.

use crate::binding::Binding;
use crate::config::FunctionKey;
use crate::error::InvokeError;
use crate::function::{Function, FunctionId, QueueSlot};
use crate::limits::CHAIN_STAGES_MAX;
use crate::request::{ChainRequest, Retain, StageInput};
use crate::retained::RetainedTensor;
use crate::session::{Session, StateForm};
use atoll_core::limits::TASK_STEPS_MAX;
use atoll_core::{Class, DeviceOffset, Fork, Step, Tenant};
use atoll_kgraph::{BufferKind, DType, InputForm};
use std::sync::Arc;

/// One call of a function in a chain, checked.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) function: Arc<Function>,
    pub(crate) binding: Arc<Binding>,
    /// Its queue slot, until the invocation is prepared.
    pub(crate) slot: Option<QueueSlot>,
    /// The source of each input of the function.
    pub(crate) inputs: Vec<Source>,
    /// The outputs to return, as indices of the function's outputs.
    pub(crate) outputs: Vec<usize>,
    /// Those of them to leave on the device.
    pub(crate) retain: Vec<Retain>,
    /// The index of its first step in the task: the copy of its inputs, if it takes any from
    /// earlier stages.
    first_step: u32,
}

/// The source of an input.
#[derive(Debug)]
pub(crate) enum Source {
    /// The client.
    Bytes(Vec<u8>),
    /// An earlier stage, by index, and the index of its output.
    Output { stage: usize, output: usize },
    /// An earlier invocation, which left it on the device.
    Retained(RetainedTensor),
    /// The requests of a batch: each supplies its rows.
    Rows,
}

/// The contents of an input before an invocation begins.
pub(crate) enum Given<'a> {
    Bytes(&'a [u8]),
    /// An output that an earlier invocation left on the device.
    OnDevice {
        at: DeviceOffset,
        bytes: u64,
    },
    /// Such an output that is lost.
    Lost,
    /// The invocation computes it, or it consists of the rows of a batch.
    Later,
}

impl Source {
    /// The contents; `place_of` finds outputs of earlier invocations on the device.
    pub(crate) fn given(&self, place_of: impl FnOnce(&RetainedTensor) -> Option<DeviceOffset>) -> Given<'_> {
        match self {
            Source::Bytes(bytes) => Given::Bytes(bytes),
            Source::Retained(tensor) => match tensor.saved() {
                Some(bytes) => Given::Bytes(bytes),
                None => {
                    let at = place_of(tensor);
                    at.map_or(Given::Lost, |at| Given::OnDevice { at, bytes: tensor.bytes() })
                }
            },
            Source::Output { .. } | Source::Rows => Given::Later,
        }
    }
}

/// A step of the task, as a step of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagePlace {
    /// Index of the stage.
    pub(crate) stage: usize,
    /// Index in the stage's work; `None` for the copy of outputs of earlier stages.
    pub(crate) step: Option<u32>,
}

impl Stage {
    /// Whether it takes outputs of earlier stages.
    fn takes_outputs(&self) -> bool {
        self.inputs.iter().any(|source| matches!(source, Source::Output { .. }))
    }

    /// Whether to leave an output on the device.
    pub(crate) fn retain_of(&self, output: usize) -> Option<Retain> {
        self.retain.iter().copied().find(|retain| retain.output == output)
    }

    /// The element type of an output.
    pub(crate) fn output_dtype(&self, output: usize) -> Option<DType> {
        output_dtype(&self.function, output)
    }

    /// The form of an output as the input of a later stage; `None` if there is no such output.
    fn output_form(&self, output: usize) -> Option<InputForm<'_>> {
        let dtype = self.output_dtype(output)?;
        let made = self.binding.outputs.get(output)?;
        Some(InputForm { dtype: Some(dtype), shape: &made.shape, bytes: made.place.bytes, data: None })
    }
}

/// The stages of a chain in order; at least one.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) stages: Vec<Stage>,
    pub(crate) steps: Arc<[Step]>,
    /// The forks of the task.
    pub(crate) forks: Option<Arc<[Fork]>>,
}

impl Chain {
    /// Finds the functions, binds shapes stage by stage, and takes a queue slot of each function. A
    /// refusal is counted for the function that refuses.
    pub(crate) fn new(
        request: ChainRequest,
        session: Option<&Session>,
        find: impl Fn(&FunctionKey) -> Option<Arc<Function>>,
    ) -> Result<Chain, InvokeError> {
        if request.stages.is_empty() || request.stages.len() > CHAIN_STAGES_MAX {
            return Err(InvokeError::BadInput(format!(
                "a chain has to call 1 to {CHAIN_STAGES_MAX} functions, but this one calls {}",
                request.stages.len()
            )));
        }
        let mut stages: Vec<Stage> = Vec::with_capacity(request.stages.len());
        let is_single = request.stages.len() == 1;
        for stage in request.stages {
            let function = match session {
                Some(session) if is_single => Arc::clone(&session.function),
                Some(_) => return Err(InvokeError::BadInput("a step of a session calls exactly one function".into())),
                None => find(&stage.function).ok_or(InvokeError::UnknownFunction)?,
            };
            if session.is_none() && !function.graph().session.is_empty() {
                function.note_rejected();
                return Err(InvokeError::BadInput(format!(
                    "function `{}` keeps state between invocations; begin a session with sequence_id and \
                     sequence_start",
                    function.key
                )));
            }
            if stages.first().is_some_and(|first| first.function.key.tenant != function.key.tenant) {
                return Err(InvokeError::BadInput("all functions of a chain have to belong to one tenant".into()));
            }
            if !is_single && !function.graph().read_backs.is_empty() {
                let text =
                    format!("function `{}` computes sizes at run time, so it cannot be part of a chain", function.key);
                function.note_rejected();
                return Err(InvokeError::BadInput(text));
            }
            let class =
                request.class.unwrap_or_else(|| stages.first().map_or(function.class, |first| first.function.class));
            let bound = bind(&function, &stage.inputs, &stages, session)
                .and_then(|binding| function.enqueue(class).map(|slot| (binding, slot)));
            let (binding, slot) = bound.inspect_err(|_| function.note_rejected())?;
            let outputs = stage.outputs.unwrap_or_else(|| (0..binding.outputs.len()).collect());
            if let Some(unknown) = outputs.iter().find(|&&output| output >= binding.outputs.len()) {
                function.note_rejected();
                return Err(InvokeError::BadInput(format!("function `{}` has no output {unknown}", function.key)));
            }
            let retain = to_retain(&function, &outputs, stage.retain).inspect_err(|_| function.note_rejected())?;
            let inputs = stage.inputs.into_iter().map(Source::from).collect();
            stages.push(Stage { function, binding, slot: Some(slot), inputs, outputs, retain, first_step: 0 });
        }
        let steps: usize =
            stages.iter().map(|stage| stage.binding.steps.len() + usize::from(stage.takes_outputs())).sum();
        if steps > TASK_STEPS_MAX {
            stages[0].function.note_rejected();
            return Err(InvokeError::BadInput(format!(
                "the functions of the chain have {steps} steps together, but at most {TASK_STEPS_MAX} are possible"
            )));
        }
        Ok(Chain::flatten(stages))
    }

    /// A single call for a batch of requests of a function. The requests supply the inputs.
    pub(crate) fn of_batch(function: &Arc<Function>, binding: Arc<Binding>) -> Chain {
        let inputs = binding.inputs.iter().map(|_| Source::Rows).collect();
        let outputs = (0..binding.outputs.len()).collect();
        let (function, retain) = (Arc::clone(function), Vec::new());
        Chain::flatten(vec![Stage { function, binding, slot: None, inputs, outputs, retain, first_step: 0 }])
    }

    /// A flush of a CUDA session, as a call of the session's function.
    pub(crate) fn of_flush(function: Arc<Function>, slot: QueueSlot, binding: Binding, inputs: Vec<Vec<u8>>) -> Chain {
        let inputs = inputs.into_iter().map(Source::Bytes).collect();
        let outputs = (0..binding.outputs.len()).collect();
        let (binding, retain) = (Arc::new(binding), Vec::new());
        Chain::flatten(vec![Stage { function, binding, slot: Some(slot), inputs, outputs, retain, first_step: 0 }])
    }

    /// Whether it is a single call that may run in a batch.
    pub(crate) fn gathers(&self, class: Class, has_deadline: bool) -> bool {
        let [Stage { function, binding, .. }] = self.stages.as_slice() else { return false };
        let batching = function.batching.as_ref();
        batching.is_some_and(|batching| batching.gathers(class, has_deadline) && batching.rows(binding) > 0)
    }

    fn flatten(mut stages: Vec<Stage>) -> Chain {
        if let [only] = stages.as_slice() {
            let steps = Arc::clone(&only.binding.steps);
            let forks = only.function.forks(&only.binding);
            return Chain { stages, steps, forks };
        }
        let (mut steps, mut forks): (Vec<Step>, Vec<Fork>) = (Vec::new(), Vec::new());
        for stage in &mut stages {
            stage.first_step = steps.len() as u32;
            steps.extend(stage.takes_outputs().then_some(Step::Host));
            let base = steps.len() as u32;
            steps.extend(stage.binding.steps.iter().map(|step| offset_by(*step, base)));
            forks.extend(
                stage
                    .function
                    .forks(&stage.binding)
                    .iter()
                    .flat_map(|forks| forks.iter())
                    .map(|fork| fork.offset_by(base)),
            );
        }
        let forks = (!forks.is_empty()).then(|| forks.into());
        Chain { stages, steps: steps.into(), forks }
    }

    /// The stage of a step of the task, and the step's index in the stage.
    pub(crate) fn locate(&self, step: u32) -> StagePlace {
        let stage =
            self.stages.iter().rposition(|stage| stage.first_step <= step && stage.step_count() > 0).unwrap_or(0);
        let within = step - self.stages[stage].first_step;
        let step = if self.stages[stage].takes_outputs() { within.checked_sub(1) } else { Some(within) };
        StagePlace { stage, step }
    }

    /// The owner of the functions it calls.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.stages[0].function.key.tenant
    }

    /// Whether it calls a function.
    pub(crate) fn calls(&self, function: FunctionId) -> bool {
        self.stages.iter().any(|stage| stage.function.id == function)
    }

    /// Whether it still has queue slots.
    pub(crate) fn is_waiting(&self) -> bool {
        self.stages.iter().any(|stage| stage.slot.is_some())
    }

    /// Releases its queue slots.
    pub(crate) fn release_slots(&mut self) {
        self.stages.iter_mut().for_each(|stage| stage.slot = None);
    }
}

/// A step of a function as a step of a task in which `base` steps come before the function's.
fn offset_by(step: Step, base: u32) -> Step {
    match step {
        Step::Restartable { restore_point } => Step::Restartable { restore_point: base + restore_point },
        Step::Preemptible | Step::NotPreemptible | Step::Host => step,
    }
}

impl Stage {
    fn step_count(&self) -> usize {
        self.binding.steps.len() + usize::from(self.takes_outputs())
    }
}

impl From<StageInput> for Source {
    fn from(input: StageInput) -> Source {
        match input {
            StageInput::Tensor(tensor) => Source::Bytes(tensor.bytes),
            StageInput::Output { stage, output } => Source::Output { stage, output },
            StageInput::Retained(tensor) => Source::Retained(tensor),
        }
    }
}

/// The outputs of a stage to leave on the device. Strings are only returned, since their codes mean
/// nothing to other functions.
fn to_retain(function: &Function, outputs: &[usize], mut retain: Vec<Retain>) -> Result<Vec<Retain>, InvokeError> {
    if let Some(Retain { output, .. }) = retain.iter().find(|retain| !outputs.contains(&retain.output)) {
        let text =
            format!("output {output} of function `{}` is to stay on the device, but not asked for", function.key);
        return Err(InvokeError::BadInput(text));
    }
    retain.retain(|retain| output_dtype(function, retain.output) != Some(DType::Strings));
    Ok(retain)
}

/// The element type of an output.
fn output_dtype(function: &Function, output: usize) -> Option<DType> {
    Some(function.graph().buffers_of(BufferKind::Output).nth(output)?.1.dtype)
}

/// Checks the inputs of a stage and returns the binding for their shapes, cached or new.
fn bind(
    function: &Function,
    inputs: &[StageInput],
    earlier: &[Stage],
    session: Option<&Session>,
) -> Result<Arc<Binding>, InvokeError> {
    let bad = |text: String| InvokeError::BadInput(format!("function `{}`: {text}", function.key));
    let mut forms = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        forms.push(match input {
            StageInput::Tensor(tensor) => tensor.form(),
            StageInput::Retained(tensor) if *tensor.tenant() != function.key.tenant => {
                return Err(bad(format!("input {index} is an output of another tenant's function")));
            }
            StageInput::Retained(tensor) => tensor.form(),
            StageInput::Output { stage, output } => {
                let from = earlier
                    .get(*stage)
                    .ok_or_else(|| bad(format!("input {index} comes from stage {stage}, which is not before it")))?;
                let made = from.output_form(*output);
                let made = made.ok_or_else(|| {
                    bad(format!("input {index} comes from output {output} of stage {stage}, which does not exist"))
                })?;
                if made.dtype == Some(DType::Strings) {
                    return Err(bad(format!(
                        "input {index} comes from output {output} of stage {stage}, which has strings; strings have \
                         to pass through the client or a graph"
                    )));
                }
                made
            }
        });
    }
    let Some(session) = session else { return function.bind(&forms, &[]) };
    let binding = function.bind(&forms, &session.values())?;
    let kept = &function.graph().session;
    let after = kept.next(&binding.symbols).and_then(|next| Ok((next, kept.form(&binding.symbols)?)));
    let (next, dimensions) = after.map_err(|error| bad(format!("the session cannot continue: {error}")))?;
    session.note_next(next, StateForm { bytes: binding.layout.state_bytes, dimensions })?;
    Ok(binding)
}
