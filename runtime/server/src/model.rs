//! A loaded model: its metadata, and the check of requests against it.

use crate::cache_counts::CacheCounts;
use crate::graphs::GraphWork;
use crate::hedging::Hedging;
use crate::latency::Latencies;
use crate::repository::settings::Settings;
use crate::scaling::meter::Meter;
use atoll_engine::limits::SESSION_IDLE_DEFAULT;
use atoll_engine::{Class, DeviceId, FunctionKey, InputTensor};
use atoll_kgraph::{BufferKind, BufferSpec, Bundle, DType, Expr, KernelGraph, StateSpec};
use atoll_protocol::{
    ConfigState, ConfigTensor, DataType, DynamicBatching, InferRequest, MODEL_VERSION, ModelConfig, ModelMetadata,
    RequestedOutput, SequenceBatching, Tensor, TensorMetadata,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The `platform` in the metadata of models.
const PLATFORM: &str = "atoll_kgraph";

/// The `platform` in the metadata of graphs of functions.
const GRAPH_PLATFORM: &str = "atoll_graph";

/// A loaded model.
pub(crate) struct Model {
    pub(crate) key: FunctionKey,
    /// The key as text: the model name in the protocol.
    pub(crate) name: String,
    pub(crate) version: String,
    /// The devices that hold the model; at least one. The first keeps the state of its sequences.
    pub(crate) devices: Vec<DeviceId>,
    settings: Settings,
    digest: String,
    /// Bytes of its constants; 0 for a graph.
    pub(crate) constant_bytes: u64,
    /// The stages, if it is a graph of functions.
    pub(crate) graph: Option<Arc<GraphWork>>,
    pub(crate) inputs: Vec<TensorMetadata>,
    pub(crate) outputs: Vec<TensorMetadata>,
    /// Whether the rows of a batch are the first dimension of every input and output, as clients of
    /// Triton expect.
    rows_first: bool,
    /// Inputs and outputs that are state buffers of a session.
    states: Vec<ConfigState>,
    /// Names of classes by output; an empty list for outputs without labels.
    labels: Vec<Vec<String>>,
    /// Time of the last request, in milliseconds since 1970.
    last_inference_ms: AtomicU64,
    /// Hedging of its requests; `None` if they are never sent to a second device.
    pub(crate) hedging: Option<Hedging>,
    /// Meters its requests for the autoscaler; `None` if it is not autoscaled.
    pub(crate) scaled: Option<Arc<Meter>>,
    /// Counts of its lookups in the response cache.
    pub(crate) cache_counts: CacheCounts,
    /// Latencies of its successful requests.
    pub(crate) latencies: Latencies,
}

/// A request whose tensor names match the model. The engine checks datatypes and shapes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fitted {
    /// In the order of the model's inputs.
    pub(crate) inputs: Vec<InputTensor>,
    /// In the order of the request.
    pub(crate) outputs: Vec<Wanted>,
}

/// A requested output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Index among the model's outputs.
    pub(crate) index: usize,
    pub(crate) binary: bool,
    pub(crate) classes: Option<usize>,
}

/// Why a request does not match the model. The client is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FitError {
    #[error("model `{model}` has no {what} `{name}`; it has {known}")]
    UnknownTensor { model: String, what: &'static str, name: String, known: String },
    #[error("model `{model}` needs input `{missing}`, which is missing in the request")]
    MissingInput { model: String, missing: String },
    #[error("{what} `{name}` is given twice")]
    Twice { what: &'static str, name: String },
    #[error("input `{given}` does not fit model `{model}`, which takes `{known}`")]
    Shape { model: String, given: String, known: String },
}

impl Model {
    pub(crate) fn new(
        key: FunctionKey,
        version: String,
        bundle: &Bundle,
        settings: Settings,
        devices: Vec<DeviceId>,
    ) -> Model {
        let graph = bundle.graph();
        // A model with state is not hedged, since the state of a session is on one device.
        let keeps_state = graph.buffers_of(BufferKind::State).next().is_some();
        Model {
            hedging: settings.hedging().filter(|_| !keeps_state).map(Hedging::new),
            scaled: settings.scaling.map(|scaling| Arc::new(Meter::new(scaling))),
            name: key.to_string(),
            key,
            version,
            devices,
            settings,
            digest: bundle.digest().into(),
            constant_bytes: bundle.weights().len() as u64,
            graph: None,
            inputs: tensor_metadata(graph, BufferKind::Input),
            outputs: tensor_metadata(graph, BufferKind::Output),
            rows_first: rows_first(graph),
            states: states(graph),
            labels: vec![Vec::new(); graph.buffers_of(BufferKind::Output).count()],
            last_inference_ms: AtomicU64::new(0),
            cache_counts: CacheCounts::default(),
            latencies: Latencies::default(),
        }
    }

    /// The model with names of classes for some of its outputs.
    pub(crate) fn with_labels(mut self, mut labels: BTreeMap<String, Vec<String>>) -> Model {
        let of = |output: &TensorMetadata| labels.remove(&output.name).unwrap_or_default();
        self.labels = self.outputs.iter().map(of).collect();
        self
    }

    /// Whether its names of classes are equal to these.
    pub(crate) fn has_labels(&self, labels: &BTreeMap<String, Vec<String>>) -> bool {
        let of = |output: &TensorMetadata| labels.get(&output.name).map_or(&[][..], Vec::as_slice);
        self.outputs.iter().enumerate().all(|(at, output)| self.labels_of(at) == of(output))
    }

    /// The names of an output's classes.
    pub(crate) fn labels_of(&self, output: usize) -> &[String] {
        self.labels.get(output).map_or(&[], Vec::as_slice)
    }

    /// The first device that holds the model.
    pub(crate) fn first_device(&self) -> DeviceId {
        self.devices.first().copied().unwrap_or_default()
    }

    /// The elements of `all`, which has one for each device, that belong to this model's devices.
    pub(crate) fn on_its_devices<'s, T>(&self, all: &'s [T]) -> impl Iterator<Item = &'s T> {
        self.devices.iter().filter_map(|device| all.get(usize::from(device.0)))
    }

    /// A model that stands for a graph of functions.
    pub(crate) fn of_graph(key: FunctionKey, graph: GraphWork) -> Model {
        Model {
            name: key.to_string(),
            key,
            version: MODEL_VERSION.into(),
            devices: graph.devices(),
            settings: Settings::default(),
            digest: String::new(),
            constant_bytes: 0,
            inputs: graph.inputs(),
            outputs: graph.outputs(),
            graph: Some(Arc::new(graph)),
            hedging: None,
            scaled: None,
            rows_first: false,
            states: Vec::new(),
            labels: Vec::new(),
            last_inference_ms: AtomicU64::new(0),
            cache_counts: CacheCounts::default(),
            latencies: Latencies::default(),
        }
    }

    fn platform(&self) -> String {
        if self.graph.is_some() { GRAPH_PLATFORM.into() } else { PLATFORM.into() }
    }

    /// The class of requests that state no class.
    pub(crate) fn class(&self) -> Class {
        self.settings.class
    }

    /// Whether loading this bundle with these settings would change nothing.
    pub(crate) fn is_made_of(&self, bundle: &Bundle, settings: &Settings) -> bool {
        self.digest == bundle.digest() && self.settings == *settings
    }

    pub(crate) fn note_request(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_inference_ms.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn last_inference_ms(&self) -> u64 {
        self.last_inference_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn metadata(&self) -> ModelMetadata {
        ModelMetadata {
            name: self.name.clone(),
            versions: vec![self.version.clone()],
            platform: self.platform(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
        }
    }

    pub(crate) fn config(&self) -> ModelConfig {
        ModelConfig {
            name: self.name.clone(),
            platform: self.platform(),
            backend: "atoll".into(),
            max_batch_size: self.max_batch_size(),
            dynamic_batching: self.dynamic_batching(),
            input: self.inputs.iter().map(|tensor| self.config_tensor(tensor)).collect(),
            output: self.outputs.iter().map(|tensor| self.config_tensor(tensor)).collect(),
            sequence_batching: self.keeps_state().then(|| SequenceBatching {
                max_sequence_idle_microseconds: self.session_idle().as_micros().try_into().unwrap_or(u64::MAX),
                state: self.states.clone(),
            }),
        }
    }

    /// Triton's `max_batch_size`; 0 if the model has none or its rows are not the first dimension.
    /// Shapes in the configuration then include the rows.
    fn max_batch_size(&self) -> u32 {
        let rows = self.settings.max_batch_size.filter(|_| self.rows_first);
        rows.map_or(0, std::num::NonZeroU32::get)
    }

    fn dynamic_batching(&self) -> Option<DynamicBatching> {
        let options = self.settings.batching().filter(|options| options.gathers)?;
        Some(DynamicBatching {
            preferred_batch_size: options.preferred,
            max_queue_delay_microseconds: options
                .max_queue_delay
                .map_or(0, |delay| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)),
        })
    }

    /// A tensor as in Triton's configuration: without the rows if the model has a `max_batch_size`.
    fn config_tensor(&self, tensor: &TensorMetadata) -> ConfigTensor {
        let mut config = ConfigTensor::from(tensor);
        if self.max_batch_size() > 0 {
            config.dims.remove(0);
        }
        config
    }

    /// Whether the response cache keeps its responses: its settings enable it, it has no state, and
    /// it is not a graph.
    pub(crate) fn keeps_responses(&self) -> bool {
        self.settings.response_cache && !self.keeps_state() && self.graph.is_none()
    }

    /// The digest of its bundle; empty for a graph.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether the model keeps state, so that its requests belong to sequences.
    pub(crate) fn keeps_state(&self) -> bool {
        !self.states.is_empty()
    }

    /// How long an idle sequence is kept.
    pub(crate) fn session_idle(&self) -> Duration {
        self.settings.session_idle_ms.map_or(SESSION_IDLE_DEFAULT, |ms| Duration::from_millis(ms.get()))
    }

    /// Sorts the tensors of a request in the order of the model's inputs. `binary` applies to
    /// outputs that choose no format.
    pub(crate) fn fit(
        &self,
        tensors: Vec<Tensor>,
        outputs: &[RequestedOutput],
        binary: bool,
    ) -> Result<Fitted, FitError> {
        let mut inputs: Vec<Option<InputTensor>> = self.inputs.iter().map(|_| None).collect();
        for tensor in tensors {
            let index = self.position(&self.inputs, "input", &tensor.name)?;
            if inputs[index].is_some() {
                return Err(FitError::Twice { what: "input", name: tensor.name });
            }
            inputs[index] =
                Some(InputTensor { dtype: dtype_of(tensor.datatype), shape: tensor.shape, bytes: tensor.bytes });
        }
        if let Some(missing) = inputs.iter().position(Option::is_none) {
            return Err(FitError::MissingInput {
                model: self.name.clone(),
                missing: describe(&self.inputs[missing..=missing]),
            });
        }
        Ok(Fitted { inputs: inputs.into_iter().flatten().collect(), outputs: self.wanted(outputs, binary)? })
    }

    /// Checks the name, datatype and shape of an input before its bytes are read.
    pub(crate) fn fit_shape(&self, name: &str, datatype: DataType, shape: &[i64]) -> Result<(), FitError> {
        let known = &self.inputs[self.position(&self.inputs, "input", name)?];
        let is_size = |(known, given): (&i64, &i64)| *known < 0 || known == given;
        let fits = known.shape.len() == shape.len() && known.shape.iter().zip(shape).all(is_size);
        if fits && known.datatype == datatype {
            return Ok(());
        }
        let given = TensorMetadata { datatype, shape: shape.to_vec(), ..known.clone() };
        let describe = |tensor| describe(std::slice::from_ref(tensor));
        Err(FitError::Shape { model: self.name.clone(), given: describe(&given), known: describe(known) })
    }

    fn wanted(&self, outputs: &[RequestedOutput], binary: bool) -> Result<Vec<Wanted>, FitError> {
        if outputs.is_empty() {
            return Ok((0..self.outputs.len()).map(|index| Wanted { index, binary, classes: None }).collect());
        }
        let mut wanted: Vec<Wanted> = Vec::with_capacity(outputs.len());
        for output in outputs {
            let index = self.position(&self.outputs, "output", &output.name)?;
            if wanted.iter().any(|other| other.index == index) {
                return Err(FitError::Twice { what: "output", name: output.name.clone() });
            }
            wanted.push(Wanted { index, binary: output.binary.unwrap_or(binary), classes: output.classes });
        }
        Ok(wanted)
    }

    fn position(&self, tensors: &[TensorMetadata], what: &'static str, name: &str) -> Result<usize, FitError> {
        tensors.iter().position(|tensor| tensor.name == name).ok_or_else(|| FitError::UnknownTensor {
            model: self.name.clone(),
            what,
            name: name.into(),
            known: describe(tensors),
        })
    }
}

/// Whether outputs that do not choose a format are sent in binary.
pub(crate) fn binary_by_default(request: &InferRequest) -> Result<bool, atoll_protocol::ProtocolError> {
    Ok(request.parameters.boolean("binary_data_output")?.unwrap_or(false))
}

/// Metadata of a graph's inputs or outputs; symbolic sizes are -1.
pub fn tensor_metadata(graph: &KernelGraph, kind: BufferKind) -> Vec<TensorMetadata> {
    let dimension = |size: &Expr| size.as_const().unwrap_or(-1);
    let metadata = |buffer: &BufferSpec| TensorMetadata {
        name: buffer.name.clone(),
        datatype: datatype(buffer.dtype),
        shape: buffer.shape.iter().map(dimension).collect(),
        symbols: symbol_names(graph, &buffer.shape),
    };
    graph.buffers_of(kind).map(|(_, buffer)| metadata(buffer)).collect()
}

/// Whether the rows of a batch are the first dimension of every input and output.
fn rows_first(graph: &KernelGraph) -> bool {
    let Some(batch) = &graph.batch else { return false };
    let mut tensors = graph.buffers_of(BufferKind::Input).chain(graph.buffers_of(BufferKind::Output));
    tensors.all(|(id, _)| batch.axes[id.0 as usize] == Some(0))
}

/// Metadata of a graph's state buffers.
fn states(graph: &KernelGraph) -> Vec<ConfigState> {
    let state = |state: &StateSpec| ConfigState {
        input_name: state.input.clone(),
        output_name: state.output.clone(),
        data_type: datatype(graph.buffers[state.buffer.0 as usize].dtype).config_name(),
        dims: state.shape.iter().map(|size| size.as_const().unwrap_or(-1)).collect(),
    };
    graph.session.states.iter().map(state).collect()
}

/// The name of the symbol in each dimension (empty for a constant size). An empty list if no
/// dimension is a symbol.
fn symbol_names(graph: &KernelGraph, shape: &[Expr]) -> Vec<String> {
    let name = |size: &Expr| match size {
        Expr::Symbol(id) => graph.symbols[id.0 as usize].name.clone(),
        _ => String::new(),
    };
    let names: Vec<String> = shape.iter().map(name).collect();
    if names.iter().all(String::is_empty) { Vec::new() } else { names }
}

/// The protocol's data type of a kernel graph's type.
fn datatype(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Bool,
        DType::U8 => DataType::Uint8,
        DType::I8 => DataType::Int8,
        DType::U16 => DataType::Uint16,
        DType::I16 => DataType::Int16,
        DType::U32 => DataType::Uint32,
        DType::I32 => DataType::Int32,
        DType::U64 => DataType::Uint64,
        DType::I64 => DataType::Int64,
        DType::F16 => DataType::Fp16,
        DType::Bf16 => DataType::Bf16,
        DType::F32 => DataType::Fp32,
        DType::F64 => DataType::Fp64,
    }
}

/// The kernel graph's type of a protocol data type; `None` for strings.
pub fn dtype_of(datatype: DataType) -> Option<DType> {
    Some(match datatype {
        DataType::Bool => DType::Bool,
        DataType::Uint8 => DType::U8,
        DataType::Int8 => DType::I8,
        DataType::Uint16 => DType::U16,
        DataType::Int16 => DType::I16,
        DataType::Uint32 => DType::U32,
        DataType::Int32 => DType::I32,
        DataType::Uint64 => DType::U64,
        DataType::Int64 => DType::I64,
        DataType::Fp16 => DType::F16,
        DataType::Bf16 => DType::Bf16,
        DataType::Fp32 => DType::F32,
        DataType::Fp64 => DType::F64,
        DataType::Bytes => return None,
    })
}

/// Describes tensors for messages, as in `bytes: INT32[-1, 2048], mask: BOOL[]`.
fn describe(tensors: &[TensorMetadata]) -> String {
    let one = |tensor: &TensorMetadata| {
        let shape: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
        format!("{}: {}[{}]", tensor.name, tensor.datatype, shape.join(", "))
    };
    tensors.iter().map(one).collect::<Vec<_>>().join(", ")
}
