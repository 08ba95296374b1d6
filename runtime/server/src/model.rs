//! A loaded model: its metadata, and the check of requests against it.

mod config;
mod fit;

pub(crate) use fit::{FitError, Fitted, Wanted};

use crate::cache_counts::CacheCounts;
use crate::generation::Decoder;
use crate::graphs::work::GraphWork;
use crate::hedging::Hedging;
use crate::latency::Latencies;
use crate::repository::settings::Settings;
use crate::reshape::{self, Reshapes};
use crate::scaling::meter::Meter;
use crate::sequences::control::ControlInput;
use crate::tensors::{row_fits_in_front, rows_first, states, tensor_metadata};
use atoll_engine::limits::SESSION_IDLE_DEFAULT;
use atoll_engine::{Class, DeviceId, FunctionKey, InvokeError};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::{
    ConfigState, EnsembleScheduling, InferRequest, MODEL_VERSION, ModelMetadata, ScoreGroups, TensorMetadata,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The `platform` in the metadata of models.
const PLATFORM: &str = "atoll_kgraph";

/// The `platform` in the metadata of graphs of functions.
const GRAPH_PLATFORM: &str = "atoll_graph";

/// A loaded model.
pub(crate) struct Model {
    pub(crate) key: FunctionKey,
    /// The model name in the protocol: the key as text, unless several versions have one name.
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
    /// The steps in Triton's form, if it is an ensemble.
    ensemble: Option<EnsembleScheduling>,
    /// The tensors of the function.
    pub(crate) inputs: Vec<TensorMetadata>,
    pub(crate) outputs: Vec<TensorMetadata>,
    /// The inputs whose elements are sizes of tensors, by index.
    pub(crate) sizing_inputs: Vec<usize>,
    /// The inputs that the daemon fills in for requests of a sequence, in the order of the inputs.
    controls: Vec<ControlInput>,
    /// The tensors that clients send and get, as they see them.
    pub(crate) client_inputs: Vec<TensorMetadata>,
    pub(crate) client_outputs: Vec<TensorMetadata>,
    reshapes: Reshapes,
    /// How it generates tokens; `None` if it does not.
    pub(crate) decoder: Option<Arc<Decoder>>,
    /// Whether the rows of a batch are the first dimension of every input and output, as clients of
    /// Triton expect.
    rows_first: bool,
    /// Inputs and outputs that are state buffers of a session.
    states: Vec<ConfigState>,
    /// Names of classes by output; an empty list for outputs without labels.
    labels: Vec<Vec<String>>,
    /// Cloned by each request that has found the model.
    in_use: Arc<()>,
    /// Set before its function is unloaded. The key may then belong to another version.
    retired: AtomicBool,
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

/// Counts a request of a model.
#[derive(Debug)]
pub(crate) struct InUse {
    _models: Vec<Arc<()>>,
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
        let is_step = settings.runs_sequences;
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
            ensemble: None,
            client_inputs: tensor_metadata(graph, BufferKind::Input),
            client_outputs: tensor_metadata(graph, BufferKind::Output),
            inputs: tensor_metadata(graph, BufferKind::Input),
            outputs: tensor_metadata(graph, BufferKind::Output),
            sizing_inputs: graph.elements.iter().map(|element| element.input as usize).collect(),
            controls: Vec::new(),
            reshapes: Reshapes::default(),
            decoder: None,
            rows_first: rows_first(graph) || is_step && row_fits_in_front(graph),
            states: states(graph),
            labels: vec![Vec::new(); graph.buffers_of(BufferKind::Output).count()],
            in_use: Arc::new(()),
            retired: AtomicBool::new(false),
            last_inference_ms: AtomicU64::new(0),
            cache_counts: CacheCounts::default(),
            latencies: Latencies::default(),
        }
    }

    /// The model under another name than that of its key, which all its versions have.
    pub(crate) fn named(self, name: &str) -> Model {
        Model { name: name.into(), ..self }
    }

    /// The model with names of classes for some of its outputs.
    pub(crate) fn with_labels(mut self, mut labels: BTreeMap<String, Vec<String>>) -> Model {
        let of = |output: &TensorMetadata| labels.remove(&output.name).unwrap_or_default();
        self.labels = self.outputs.iter().map(of).collect();
        self
    }

    /// The model with inputs that the daemon fills in, so that clients do not send them.
    pub(crate) fn with_controls(self, controls: Vec<ControlInput>) -> Model {
        let is_sent = |(index, _): &(usize, &TensorMetadata)| !controls.iter().any(|control| control.index == *index);
        let client_inputs = self.inputs.iter().enumerate().filter(is_sent).map(|(_, input)| input.clone()).collect();
        Model { client_inputs, controls, ..self }
    }

    /// The model with the tensors of a decoder for clients, if it is one.
    pub(crate) fn with_decoder(self, decoder: Option<Arc<Decoder>>) -> Model {
        if decoder.is_none() {
            return self;
        }
        let (client_inputs, client_outputs) = (Decoder::client_inputs(&self.inputs), vec![Decoder::client_output()]);
        Model { client_inputs, client_outputs, reshapes: Reshapes::default(), decoder, ..self }
    }

    /// The model with other shapes of some of its tensors for clients.
    pub(crate) fn with_reshapes(self, reshapes: Reshapes) -> Model {
        Model {
            client_inputs: reshape::seen(&self.client_inputs, &reshapes.inputs),
            client_outputs: reshape::seen(&self.client_outputs, &reshapes.outputs),
            reshapes,
            ..self
        }
    }

    /// The shape of an output for clients.
    pub(crate) fn outward(&self, output: usize, shape: Vec<i64>) -> Vec<i64> {
        match self.reshapes.outputs.get(output) {
            Some(Some(reshape)) => reshape.outward(&shape),
            _ => shape,
        }
    }

    /// Counts a request until the result is dropped; for a graph also as one of its models.
    pub(crate) fn used(&self) -> InUse {
        let stages = self.graph.iter().flat_map(|graph| graph.models());
        InUse { _models: stages.map(|model| model.in_use.clone()).chain([self.in_use.clone()]).collect() }
    }

    /// Whether there are requests that [`Model::used`] counts.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.in_use) > 1
    }

    /// Rejects requests from now on, because the function is about to be unloaded.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Checks that its key still belongs to this version, just before an invocation.
    ///
    /// # Errors
    /// If the function is being unloaded, or was.
    pub(crate) fn check_current(&self) -> Result<(), InvokeError> {
        if self.retired.load(Ordering::Acquire) { Err(InvokeError::Unloaded) } else { Ok(()) }
    }

    /// Whether clients put the rows of a batch in front of each tensor.
    pub(crate) fn has_rows(&self) -> bool {
        self.max_batch_size() > 0
    }

    /// The scores that a classification ranks together. Models with a configuration of Triton
    /// follow its rule.
    pub(crate) fn score_groups(&self) -> ScoreGroups {
        match (self.settings.notes.is_empty(), self.has_rows()) {
            (true, _) => ScoreGroups::LastDimension,
            (false, true) => ScoreGroups::Rows,
            (false, false) => ScoreGroups::All,
        }
    }

    /// The deadline of requests that state none or a later one.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.settings.timeout_us.map(|us| Duration::from_micros(us.get()))
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
            client_inputs: graph.inputs(),
            client_outputs: graph.outputs(),
            inputs: graph.inputs(),
            outputs: graph.outputs(),
            reshapes: Reshapes::default(),
            graph: Some(Arc::new(graph)),
            ensemble: None,
            sizing_inputs: Vec::new(),
            controls: Vec::new(),
            decoder: None,
            hedging: None,
            scaled: None,
            rows_first: false,
            states: Vec::new(),
            labels: Vec::new(),
            in_use: Arc::new(()),
            retired: AtomicBool::new(false),
            last_inference_ms: AtomicU64::new(0),
            cache_counts: CacheCounts::default(),
            latencies: Latencies::default(),
        }
    }

    /// A graph with the settings of its ensemble.
    pub(crate) fn of_ensemble(self, settings: Settings, scheduling: EnsembleScheduling) -> Model {
        // The configuration leaves the rows out only if all tensors have them in front.
        let mut tensors = self.client_inputs.iter().chain(&self.client_outputs);
        let rows_first = tensors.all(|tensor| tensor.shape.first() == Some(&-1));
        Model { settings, rows_first, ensemble: Some(scheduling), ..self }
    }

    /// Names of classes by output.
    pub(crate) fn labels(&self) -> BTreeMap<String, Vec<String>> {
        self.outputs.iter().map(|output| output.name.clone()).zip(self.labels.iter().cloned()).collect()
    }

    /// The most rows of a request, if the model has a limit.
    pub(crate) fn rows_max(&self) -> Option<NonZeroU32> {
        self.settings.max_batch_size
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

    /// Whether it is this version of its model, made of this bundle, with whatever settings.
    pub(crate) fn is_version(&self, number: u64, bundle: &Bundle) -> bool {
        self.digest == bundle.digest() && self.version == number.to_string()
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
            inputs: self.client_inputs.clone(),
            outputs: self.client_outputs.clone(),
        }
    }

    /// Triton's `max_batch_size`; 0 if the model has none or its rows are not the first dimension.
    /// Shapes in the configuration then include the rows.
    fn max_batch_size(&self) -> u32 {
        let rows = self.settings.max_batch_size.filter(|_| self.rows_first);
        rows.map_or(0, NonZeroU32::get)
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

    /// Whether the model keeps state between the requests of a sequence.
    pub(crate) fn keeps_state(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether its requests belong to sequences.
    pub(crate) fn runs_sequences(&self) -> bool {
        self.keeps_state() || self.settings.runs_sequences
    }

    /// Whether its requests are answered on streams only: a request may have several answers, or
    /// the settings say so. Ensembles do not honour the setting.
    pub(crate) fn is_decoupled(&self) -> bool {
        self.decoder.is_some() || self.settings.decoupled && self.ensemble.is_none()
    }

    /// The priority of best-effort requests that state none.
    pub(crate) fn default_priority(&self) -> u32 {
        self.settings.default_priority
    }

    /// How long an idle sequence is kept.
    pub(crate) fn session_idle(&self) -> Duration {
        self.settings.session_idle_ms.map_or(SESSION_IDLE_DEFAULT, |ms| Duration::from_millis(ms.get()))
    }
}

/// Whether outputs that do not choose a format are sent in binary.
pub(crate) fn binary_by_default(request: &InferRequest) -> Result<bool, atoll_protocol::ProtocolError> {
    Ok(request.parameters.boolean("binary_data_output")?.unwrap_or(false))
}
