//! The work of stages: functions, built-ins and CPU stages, their tensors, and checks of tensors.

use super::builtin::{Builtin, View};
use super::counts::GraphCounts;
use super::intermediates::{Held, Intermediate};
use super::manifest::programs::ProgramWork;
use super::processes::{Numbered, StageProcesses, next_id};
use super::turns::BuiltinTurns;
use crate::bodies::Bodies;
use crate::limits::DECODE_INLINE_BYTES_MAX;
use crate::model::Model;
use crate::tensors::{datatype, dtype_of};
use crate::threads::for_tenant;
use atoll_core::graphs::Weights;
use atoll_engine::{Class, DeviceId, InputTensor, InvocationTiming, InvokeError, OutputTensor, Tenant};
use atoll_protocol::{DataType, TensorMetadata, check_bytes};
use atoll_stages::{CallError, Form};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a stage runs.
pub(crate) enum StageWork {
    Function(Arc<Callee>),
    Builtin(Builtin),
    Program(Arc<CpuStage>),
}

/// A CPU stage, with counts of its successful calls.
pub(crate) struct CpuStage {
    id: u64,
    pub(crate) work: ProgramWork,
    calls: AtomicU64,
    ns: AtomicU64,
}

impl CpuStage {
    pub(super) fn new(work: ProgramWork) -> CpuStage {
        CpuStage { id: next_id(), work, calls: AtomicU64::new(0), ns: AtomicU64::new(0) }
    }

    pub(super) fn numbered(&self) -> Numbered<'_> {
        Numbered { id: self.id, program: &self.work.program, file: &self.work.file }
    }

    /// The mean time of a successful call, without its time in the queue, in nanoseconds.
    pub(crate) fn mean_ns(&self) -> Option<u64> {
        self.ns.load(Ordering::Relaxed).checked_div(self.calls.load(Ordering::Relaxed))
    }

    /// The type of an output.
    pub(super) fn output_type(&self, output: usize) -> Option<DataType> {
        Some(self.work.signature.outputs.get(output)?.1.datatype)
    }
}

/// The versions of the function that a stage calls. Most stages have one.
pub(crate) struct Callee {
    /// Hashed with the id of a request, so that the choice of a version is independent of other
    /// stages.
    salt: String,
    versions: Vec<Version>,
    weights: Weights,
}

/// A version of a function, with counts of the requests that it served.
pub(crate) struct Version {
    pub(crate) model: Arc<Model>,
    success: AtomicU64,
    failure: AtomicU64,
    ns: AtomicU64,
}

/// Requests that a version served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionCounts {
    pub(crate) success: u64,
    pub(crate) failure: u64,
    /// Sum of the times of successful requests from start to answer, in nanoseconds.
    pub(crate) ns: u64,
}

impl Callee {
    /// The versions with their weights; `None` if the weights are not valid.
    pub(super) fn new(salt: String, versions: Vec<(Arc<Model>, u32)>) -> Option<Callee> {
        let weights = Weights::new(&versions.iter().map(|(_, weight)| *weight).collect::<Vec<_>>())?;
        let version = |(model, _)| Version {
            model,
            success: AtomicU64::new(0),
            failure: AtomicU64::new(0),
            ns: AtomicU64::new(0),
        };
        Some(Callee { salt, versions: versions.into_iter().map(version).collect(), weights })
    }

    /// The first version. All versions have the same tensors.
    pub(crate) fn first(&self) -> &Arc<Model> {
        &self.versions[0].model
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.versions.iter().map(|version| &version.model)
    }

    /// The versions with their weights.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&Version, u32)> {
        self.versions.iter().zip(self.weights.list().iter().copied())
    }

    /// The index of the version that serves a request with this id.
    pub(super) fn choose(&self, id: &str) -> usize {
        if self.versions.len() == 1 { 0 } else { self.weights.choose(&self.salt, id) }
    }

    pub(super) fn version(&self, index: usize) -> &Version {
        &self.versions[index]
    }

    /// The devices that hold all versions.
    pub(crate) fn devices(&self) -> Vec<DeviceId> {
        let is_common = |device: &DeviceId| self.models().all(|model| model.devices.contains(device));
        self.first().devices.iter().copied().filter(is_common).collect()
    }

    /// Whether a version takes sizes of other tensors from the elements of an input, which then has
    /// to be in host memory.
    pub(super) fn takes_sizes_from(&self, input: usize) -> bool {
        self.models().any(|model| model.sizing_inputs.contains(&input))
    }

    /// Bytes of the constants of the largest version.
    pub(super) fn constant_bytes(&self) -> u64 {
        self.models().map(|model| model.constant_bytes).max().unwrap_or(0)
    }
}

impl Version {
    /// Its model.
    ///
    /// # Errors
    /// If the model was unloaded since the graph was checked. Its key may belong to another version.
    pub(super) fn current(&self) -> Result<Arc<Model>, InvokeError> {
        self.model.check_current().map(|()| self.model.clone())
    }

    /// Counts a request that took this long.
    pub(super) fn note(&self, is_success: bool, took: Duration) {
        if is_success {
            self.success.fetch_add(1, Ordering::Relaxed);
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.ns.fetch_add(ns, Ordering::Relaxed);
        } else {
            self.failure.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> VersionCounts {
        VersionCounts {
            success: self.success.load(Ordering::Relaxed),
            failure: self.failure.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
        }
    }
}

/// Resources that all runs of a graph share.
pub(crate) struct Shared {
    /// The memory budget of requests, for the tensors of a run.
    pub(super) bodies: Bodies,
    /// Limits how many large built-in stages run at once.
    pub(super) turns: BuiltinTurns,
    pub(super) counts: Arc<GraphCounts>,
    /// The tenant of the graph, and the processes that run its CPU stages.
    pub(super) tenant: Tenant,
    pub(super) processes: Arc<StageProcesses>,
}

/// The result of a stage, with its outputs by index.
pub(super) struct StageResult {
    pub(super) outputs: Vec<Intermediate>,
    pub(super) timing: InvocationTiming,
    pub(super) preemptions: u32,
    pub(super) cold_start: bool,
    /// `None` for a built-in or CPU stage.
    pub(super) device: Option<DeviceId>,
    /// Bytes of its inputs that it took from memory of the device.
    pub(super) handed_over_bytes: u64,
}

pub(super) fn no_room() -> InvokeError {
    InvokeError::Unavailable("there is not enough memory for its tensors now; try again later".into())
}

/// Checks the datatype and the shape of an input or output of a graph. Sizes that the graph leaves
/// open are not checked.
pub(super) fn check_form(what: &str, metadata: &TensorMetadata, tensor: &InputTensor) -> Result<(), String> {
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
        tensor.dtype.map_or(DataType::Bytes, datatype),
        tensor.shape
    ))
}

/// Checks the datatype, the shape and the number of bytes of an input of a graph.
pub(super) fn check_input(metadata: &TensorMetadata, input: &InputTensor) -> Result<(), String> {
    check_form("input", metadata, input)?;
    if metadata.datatype == DataType::Bytes {
        let checked = check_bytes(&metadata.name, metadata.datatype, &input.shape, &input.bytes);
        return checked.map_err(|error| error.to_string());
    }
    let count = input.shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(usize::try_from(size).ok()?));
    let bytes = metadata.datatype.element_bytes().and_then(|element| count?.checked_mul(element));
    if bytes != Some(input.bytes.len()) {
        return Err(format!(
            "input `{}` has {} bytes, which do not match its shape {:?}",
            metadata.name,
            input.bytes.len(),
            input.shape
        ));
    }
    Ok(())
}

/// Most memory of a built-in stage as a multiple of its input bytes: copies of the inputs as
/// numbers, sums, 64-bit indices, and outputs.
const BUILTIN_COPIES: usize = 8;

pub(super) async fn run_builtin(
    builtin: Builtin,
    class: Class,
    shared: &Shared,
    inputs: Vec<Held>,
) -> Result<StageResult, InvokeError> {
    let bytes: usize = inputs.iter().map(|input| input.bytes.len()).sum();
    let mut room = shared.bodies.room(class);
    if !room.grow_to(bytes.saturating_mul(BUILTIN_COPIES)) {
        return Err(no_room());
    }
    // The computation owns both `room` and `turn`, since it continues if the client disconnects.
    let turn = match bytes <= DECODE_INLINE_BYTES_MAX {
        true => None,
        false => shared.turns.take(class).await,
    };
    let begun = Instant::now();
    let compute = move || {
        let _held = (room, turn);
        let views: Vec<View<'_>> =
            inputs.iter().map(|input| View { shape: &input.shape, bytes: &input.bytes }).collect();
        builtin.run(&views)
    };
    let outputs = match bytes <= DECODE_INLINE_BYTES_MAX {
        true => compute(),
        false => for_tenant(&shared.tenant, compute).await.unwrap_or_else(|| Err("internal error: it panicked".into())),
    };
    let outputs = outputs.map_err(InvokeError::BadInput)?;
    let held = |(OutputTensor { shape, bytes }, datatype): (OutputTensor, &DataType)| {
        Intermediate::in_host_memory(InputTensor { dtype: dtype_of(*datatype), shape, bytes })
    };
    let compute_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let timing = InvocationTiming { compute_ns, ..InvocationTiming::default() };
    let outputs = outputs.into_iter().zip(builtin.output_types()).map(held).collect();
    Ok(StageResult { outputs, timing, preemptions: 0, cold_start: false, device: None, handed_over_bytes: 0 })
}

/// Runs a CPU stage in the process of its tenant.
pub(super) async fn run_program(
    stage: Arc<CpuStage>,
    class: Class,
    shared: &Shared,
    inputs: Vec<Held>,
) -> Result<StageResult, InvokeError> {
    let forms: Option<Vec<Form>> = stage.work.signature.inputs.iter().zip(&inputs).map(form_of).collect();
    let forms = forms.ok_or_else(|| InvokeError::BadInput("an input has another type than the graph states".into()))?;
    let (arrived, slot) = (Instant::now(), shared.processes.slot(&shared.tenant));
    slot.watch();
    let mut running = slot.turn().await;
    let queue_ns = nanos(arrived.elapsed());
    let (processes, mut room, work) = (shared.processes.clone(), shared.bodies.room(class), stage.clone());
    // The call owns the turn, since it continues if the client disconnects.
    let call = move || {
        let begun = Instant::now();
        let bytes: Vec<&[u8]> = inputs.iter().map(|input| &input.bytes[..]).collect();
        let admit = |bytes| room.grow_to(bytes);
        let outputs = processes.run(&slot, &mut running, &work.numbered(), (forms, &bytes[..]), admit);
        (outputs, nanos(begun.elapsed()), room)
    };
    let panicked = || InvokeError::Device("internal error: a CPU stage panicked".into());
    let (outputs, compute_ns, _room) = for_tenant(&shared.tenant, call).await.ok_or_else(panicked)?;
    let outputs = outputs.map_err(|error| match error {
        CallError::NoRoom => no_room(),
        other => InvokeError::BadInput(other.to_string()),
    })?;
    let declared = &stage.work.signature.outputs;
    if outputs.len() != declared.len() {
        return Err(InvokeError::BadInput(format!("it gave {} outputs instead of {}", outputs.len(), declared.len())));
    }
    let mut held = Vec::with_capacity(outputs.len());
    for ((name, form), tensor) in declared.iter().zip(outputs) {
        if !form.admits(&tensor.form) {
            let text = format!("its output `{name}` is {}, and is declared as {form}", tensor.form);
            return Err(InvokeError::BadInput(text));
        }
        let dtype = dtype_of(form.datatype);
        let tensor = InputTensor { dtype, shape: tensor.form.shape, bytes: tensor.bytes };
        held.push(Intermediate::in_host_memory(tensor));
    }
    stage.calls.fetch_add(1, Ordering::Relaxed);
    stage.ns.fetch_add(compute_ns, Ordering::Relaxed);
    let timing = InvocationTiming { queue_ns, compute_ns, ..InvocationTiming::default() };
    Ok(StageResult { outputs: held, timing, preemptions: 0, cold_start: false, device: None, handed_over_bytes: 0 })
}

/// The form of an input; `None` if its type is not the declared one.
fn form_of(((_, declared), input): (&(String, Form), &Held)) -> Option<Form> {
    let is_same = dtype_of(declared.datatype) == input.dtype;
    is_same.then(|| Form { datatype: declared.datatype, shape: input.shape.clone() })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
