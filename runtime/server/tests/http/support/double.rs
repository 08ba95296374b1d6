//! A scripted engine.

use super::VOCABULARY;
use atoll_core::placement::Why;
use atoll_core::{Epoch, Nanos, TaskId};
use atoll_engine::{
    ChainRequest, Class, ComputeUnitUse, DeviceId, DeviceStatistics, EngineError, EngineStatistics, FunctionInfo,
    FunctionKey, FunctionName, FunctionOptions, FunctionStatistics, Imports, InvocationId, InvocationRequest,
    InvocationResult, InvocationTiming, InvokeError, OutputTensor, Reply, SessionId, ShareClient, ShareError,
    ShareSpec, StageInput, TenantBytes, TenantMemory, TraceBatch, Usage, UsageRow,
};
use atoll_fleet::{Inference, Placed};
use atoll_kgraph::{Bundle, DType, InputForm, bind_symbols};
use atoll_trace::{EventKind, Raise, Record};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

/// How the engine answers the next invocations.
#[derive(Clone, Default)]
pub(crate) enum Behaviour {
    /// The inputs are returned as outputs.
    #[default]
    Echo,
    /// As `Echo`, and the device was busy for so many nanoseconds.
    Computed(u64),
    Fail(InvokeError),
    /// The answers wait for [`Double::answer_all`].
    Hold,
}

/// The bundle of a function, its options, and the index of its device.
type OnDevice = (Arc<Bundle>, FunctionOptions, usize);

#[derive(Default)]
pub(crate) struct Double {
    behaviour: Mutex<Behaviour>,
    functions: Mutex<BTreeMap<FunctionKey, OnDevice>>,
    lost: Mutex<[bool; 2]>,
    requests: Mutex<Vec<InvocationRequest>>,
    held: Mutex<Vec<(InvocationRequest, Reply)>>,
    cancelled: Mutex<Vec<InvocationId>>,
    opened_sessions: AtomicU64,
    closed_sessions: AtomicU64,
    ids: AtomicU64,
    preempts: AtomicBool,
    refuses_shares: AtomicBool,
    /// Shares that were set, and whether each is still in force.
    shares: Mutex<BTreeMap<ShareClient, bool>>,
    trace_reads: AtomicU64,
    /// Device memory that its device can open.
    client_memory: Mutex<Option<Arc<dyn Imports>>>,
}

impl Double {
    /// Sets whether new shares are refused.
    pub(crate) fn refuse_shares(&self, refuses: bool) {
        self.refuses_shares.store(refuses, Ordering::Relaxed);
    }

    /// Ends the force of all shares that were set before.
    pub(crate) fn lose_shares(&self) {
        self.shares.lock().unwrap().values_mut().for_each(|holds| *holds = false);
    }

    /// From now on, a device can open memory of clients.
    pub(crate) fn import(&self, memory: Arc<dyn Imports>) {
        *self.client_memory.lock().unwrap() = Some(memory);
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn last_request(&self) -> InvocationRequest {
        self.requests.lock().unwrap().last().expect("a request").clone()
    }

    /// Invocations so far.
    pub(crate) fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Marks a device as permanently failed.
    pub(crate) fn lose(&self, device: usize) {
        self.lost.lock().unwrap()[device] = true;
    }

    /// The engines do not answer questions until the guard is dropped.
    pub(crate) fn block(&self) -> MutexGuard<'_, [bool; 2]> {
        self.lost.lock().unwrap()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.lock().unwrap().len()
    }

    pub(crate) fn options(&self, name: &str) -> Option<FunctionOptions> {
        self.functions.lock().unwrap().get(&FunctionKey::local(name)).map(|(_, options, _)| options.clone())
    }

    /// The bundle of a loaded function.
    pub(crate) fn bundle(&self, name: &str) -> Option<Arc<Bundle>> {
        self.functions.lock().unwrap().get(&FunctionKey::local(name)).map(|(bundle, ..)| bundle.clone())
    }

    /// From now on, each read of the trace shows that `toy` was preempted by a request of `urgent`.
    pub(crate) fn preempt(&self) {
        self.preempts.store(true, Ordering::Relaxed);
    }

    /// Number of reads of all traces together.
    pub(crate) fn trace_reads(&self) -> u64 {
        self.trace_reads.load(Ordering::Relaxed)
    }

    /// Answers the held requests of one function. Returns how many there were.
    pub(crate) fn answer_of(&self, function: &str) -> usize {
        let is_its = |(request, _): &(InvocationRequest, Reply)| request.function.name == function;
        let mut held = self.held.lock().unwrap();
        let (answered, others): (Vec<_>, Vec<_>) = std::mem::take(&mut *held).into_iter().partition(is_its);
        *held = others;
        drop(held);
        let count = answered.len();
        answered.into_iter().for_each(|(request, reply)| reply(Ok(echo(request))));
        count
    }

    /// Sessions that are open.
    pub(crate) fn sessions(&self) -> u64 {
        let closed = self.closed_sessions.load(Ordering::Relaxed);
        self.opened_sessions.load(Ordering::Relaxed) - closed
    }

    /// Answers the held requests with an error.
    pub(crate) fn fail_all(&self, error: &InvokeError) {
        for (_, reply) in std::mem::take(&mut *self.held.lock().unwrap()) {
            reply(Err(error.clone()));
        }
    }

    pub(crate) fn answer_all(&self) {
        for (request, reply) in std::mem::take(&mut *self.held.lock().unwrap()) {
            reply(Ok(echo(request)));
        }
    }
}

fn echo(request: InvocationRequest) -> InvocationResult {
    let outputs = match request.function.name == "decoder" {
        true => vec![logits(&request)],
        false => {
            request.inputs.into_iter().map(|input| OutputTensor { shape: input.shape, bytes: input.bytes }).collect()
        }
    };
    InvocationResult {
        outputs,
        retained: Vec::new(),
        handed_over_bytes: 0,
        timing: InvocationTiming::default(),
        entered_ns: 0,
        preemptions: 0,
        device: DeviceId(0),
        task: Some(TaskId(0)),
        placed: None,
        cold_start: false,
        load_ns: 0,
        batch: 1,
        launches: Vec::new(),
    }
}

/// The logits of a decoder: the token after each one is its successor.
fn logits(request: &InvocationRequest) -> OutputTensor {
    let tokens = &request.inputs[1];
    let next = tokens.bytes.as_chunks().0.iter().map(|token| (i64::from_le_bytes(*token) + 1) % VOCABULARY);
    let row = |next: i64| (0..VOCABULARY).flat_map(move |token| f32::from(u8::from(token == next)).to_le_bytes());
    OutputTensor { shape: vec![1, tokens.shape[1], VOCABULARY], bytes: next.flat_map(row).collect() }
}

/// The only stage of a chain. These tests send no chains with several stages.
fn single(mut chain: ChainRequest) -> InvocationRequest {
    let stage = chain.stages.remove(0);
    let input = |input| match input {
        StageInput::Tensor(tensor) => tensor,
        StageInput::Output { .. } | StageInput::Retained(_) => panic!("a chain, or an output of another engine"),
    };
    let inputs = stage.inputs.into_iter().map(input).collect();
    InvocationRequest {
        function: stage.function,
        inputs,
        class: chain.class,
        priority: chain.priority,
        instance: chain.instance,
        deadline: chain.deadline,
    }
}

impl Inference for Double {
    fn set_share(&self, client: &ShareClient, _: Option<&FunctionKey>, _: ShareSpec) -> Result<(), EngineError> {
        if self.refuses_shares.load(Ordering::Relaxed) {
            return Err(EngineError::Share(ShareError::Clients(0)));
        }
        self.shares.lock().unwrap().insert(client.clone(), true);
        Ok(())
    }

    fn remove_share(&self, client: &ShareClient) -> bool {
        self.shares.lock().unwrap().remove(client).is_some()
    }

    fn holds_share(&self, client: &ShareClient) -> bool {
        self.shares.lock().unwrap().get(client).copied().unwrap_or(true)
    }

    fn devices(&self) -> &[String] {
        static NAMES: LazyLock<[String; 2]> = LazyLock::new(|| ["host:0", "host:1"].map(str::to_owned));
        &*NAMES
    }

    fn imports(&self) -> Vec<Arc<dyn Imports>> {
        self.client_memory.lock().unwrap().iter().cloned().collect()
    }

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions, device: Option<&str>) -> Result<Placed, EngineError> {
        let device =
            match device {
                None => 0,
                Some(name) => self.devices().iter().position(|known| known == name).ok_or_else(|| {
                    EngineError::UnknownDevice { name: name.into(), known: self.devices().join(", ") }
                })?,
            };
        let (key, class) = (options.key.clone(), options.class);
        if self.functions.lock().unwrap().insert(key.clone(), (bundle.clone(), options, device)).is_some() {
            return Err(EngineError::AlreadyLoaded(key));
        }
        let weights_bytes = bundle.weights().len() as u64;
        let info = FunctionInfo {
            key,
            target: "test".into(),
            class,
            queue_capacity: 1,
            weights_bytes,
            weights_shared: false,
            weights_resident: true,
            occupancy: Vec::new(),
        };
        Ok(Placed { devices: vec![DeviceId(device as u16)], info })
    }

    fn unload(&self, key: &FunctionKey) -> Result<(), EngineError> {
        self.functions.lock().unwrap().remove(key).map(drop).ok_or_else(|| EngineError::NotLoaded(key.clone()))
    }

    fn submit(&self, chain: ChainRequest, reply: Reply) -> InvocationId {
        let request = single(chain);
        let bundle = self.functions.lock().unwrap().get(&request.function).map(|(bundle, ..)| bundle.clone());
        let fits = bundle.map(|bundle| {
            // As in the engine, strings are codes if the model takes strings.
            let inputs = bundle.graph().client_inputs().map(|(_, spec)| spec.dtype == DType::Strings);
            let takes_strings = inputs.chain(std::iter::repeat(false));
            let forms = request.inputs.iter().zip(takes_strings).map(|(input, takes_strings)| match input.dtype {
                None if takes_strings => {
                    let bytes = 4 * atoll_protocol::strings(&input.bytes).count() as u64;
                    InputForm { dtype: Some(DType::Strings), shape: &input.shape, bytes, data: None }
                }
                _ => input.form(),
            });
            let forms: Vec<InputForm<'_>> = forms.collect();
            bind_symbols(bundle.graph(), &forms)
        });
        if let Some(Err(error)) = fits {
            reply(Err(InvokeError::BadInput(error.to_string())));
            return InvocationId(self.ids.fetch_add(1, Ordering::Relaxed));
        }
        self.requests.lock().unwrap().push(request.clone());
        match self.behaviour.lock().unwrap().clone() {
            Behaviour::Echo => reply(Ok(echo(request))),
            Behaviour::Computed(compute_ns) => {
                let timing = InvocationTiming { compute_ns, ..InvocationTiming::default() };
                reply(Ok(InvocationResult { timing, ..echo(request) }));
            }
            Behaviour::Fail(error) => reply(Err(error)),
            Behaviour::Hold => self.held.lock().unwrap().push((request, reply)),
        }
        InvocationId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn open_session(&self, _: &FunctionKey, _: Duration) -> Result<SessionId, InvokeError> {
        self.opened_sessions.fetch_add(1, Ordering::Relaxed);
        Ok(SessionId(self.ids.fetch_add(1, Ordering::Relaxed)))
    }

    fn close_session(&self, _: SessionId) {
        self.closed_sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Echoes the inputs if the behaviour is `Hold`, as a second device that is not slow.
    fn submit_to(&self, _device: DeviceId, _why: Why, chain: ChainRequest, reply: Reply) -> InvocationId {
        if matches!(*self.behaviour.lock().unwrap(), Behaviour::Hold) {
            reply(Ok(echo(single(chain))));
            return InvocationId(self.ids.fetch_add(1, Ordering::Relaxed));
        }
        self.submit(chain, reply)
    }

    fn other_device(&self, _function: &FunctionKey, beside: DeviceId) -> Option<DeviceId> {
        Some(DeviceId(1 - beside.0))
    }

    fn cancel(&self, id: InvocationId) {
        self.cancelled.lock().unwrap().push(id);
    }

    fn trace(&self, device: DeviceId, from: Option<u64>) -> Option<TraceBatch> {
        self.trace_reads.fetch_add(1, Ordering::Relaxed);
        let next = from.map_or(0, |from| from + 2);
        let is_told = from.is_some() && device == DeviceId(0) && self.preempts.load(Ordering::Relaxed);
        let name = |name: &str| {
            let (tenant, name) = ("local".into(), name.into());
            Arc::new(FunctionName { tenant, name, class: Class::BestEffort, nodes: Vec::new() })
        };
        let record = |function, kind| Record { at: Nanos(0), task: TaskId(0), function, kind };
        let records = [
            record(2, EventKind::Arrived { class: Class::RealTime, ready: true }),
            record(1, EventKind::Raised { epoch: Epoch(1), why: Raise::Preempted }),
        ];
        Some(TraceBatch {
            records: if is_told { records.into() } else { Vec::new() },
            next,
            more: false,
            lost: 0,
            chunks_lost: 0,
            functions: vec![(1, name("toy")), (2, name("urgent"))],
            separate: false,
            device: self.devices()[usize::from(device.0)].clone(),
            compute_units: 2,
        })
    }

    fn statistics(&self) -> Vec<EngineStatistics> {
        let function = |key: &FunctionKey| FunctionStatistics {
            key: key.clone(),
            success: self.requests.lock().unwrap().len() as u64,
            compute_ns: 1_500,
            queue_ns: 500,
            ..FunctionStatistics::default()
        };
        let row = |key: &FunctionKey| {
            let FunctionKey { tenant, name } = key.clone();
            let (function, usage) = (Some(name), Usage::default());
            UsageRow { tenant, function, class: Class::BestEffort, usage, is_billed_by_cpu: false }
        };
        let loaded = self.functions.lock().unwrap();
        let engine = |(at, name): (usize, &String)| {
            let on_it = || loaded.iter().filter(move |(_, (.., device))| *device == at).map(|(key, _)| key);
            let (units, queue_depths) = (vec![ComputeUnitUse::default(); 2], vec![0; 2]);
            let lost = self.lost.lock().unwrap()[at].then(|| "gone".to_owned());
            let device = DeviceStatistics {
                name: name.clone(),
                lost,
                busy_ns: Some(0),
                units,
                queue_depths,
                ..DeviceStatistics::default()
            };
            // Stands for a configuration with a quota for one tenant.
            let quota = TenantBytes { all: 1 << 30, best_effort: 1 << 20 };
            let guest = TenantMemory { tenant: "guest".parse().expect("a name"), quota, ..TenantMemory::default() };
            EngineStatistics {
                tenants: vec![guest],
                functions: on_it().map(function).collect(),
                usage: on_it().map(row).collect(),
                device,
                ..EngineStatistics::default()
            }
        };
        self.devices().iter().enumerate().map(engine).collect()
    }
}
