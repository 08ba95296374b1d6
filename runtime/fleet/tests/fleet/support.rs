//! Fake engines, bundles and requests.

use atoll_core::DeviceId;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionInfo, FunctionKey, FunctionOptions, InvocationId,
    InvocationResult, InvocationTiming, InvokeError, Reply, ShareClient, ShareError, ShareSpec, StageRequest,
    TraceBatch,
};
use atoll_fleet::{FleetHandle, Inference, Member, Placing};
use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, Bundle, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan,
    Node, NodeId, NodeKind, TargetContents, TargetImage, write_bundle,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// The calls that a fake engine received.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) loaded: Mutex<Vec<FunctionKey>>,
    pub(crate) submitted: Mutex<Vec<InvocationId>>,
    pub(crate) cancelled: Mutex<Vec<InvocationId>>,
    pub(crate) lost: AtomicBool,
    /// Whether submitting a request takes long, and the threads that submitted requests.
    pub(crate) encodes: AtomicBool,
    pub(crate) submitters: Mutex<Vec<ThreadId>>,
    /// Whether loads fail.
    pub(crate) is_full: AtomicBool,
    /// Whether requests are answered with an error while they are being submitted.
    pub(crate) refuses: AtomicBool,
    /// The shares of clients, each with whether a function was loaded when it was set.
    pub(crate) shares: Mutex<BTreeMap<ShareClient, bool>>,
    /// How many shares it has room for.
    pub(crate) shares_max: AtomicUsize,
    /// Whether its executor is being replaced: requests that can move are given back.
    pub(crate) is_restarting: AtomicBool,
    /// Whether the latest request can move to another device.
    pub(crate) is_movable: AtomicBool,
    /// Whether it has no constants, and fails requests without loading them.
    pub(crate) is_empty: AtomicBool,
    /// Calls that load constants ahead, and calls that reclaim them.
    pub(crate) preloaded: Mutex<Vec<FunctionKey>>,
    pub(crate) reclaimed: Mutex<Vec<FunctionKey>>,
    /// Constants that came or left, to be reported.
    residency: Mutex<Vec<(FunctionKey, bool)>>,
    /// The kind of device.
    pub(crate) kind: Mutex<String>,
    /// Bytes of its memory; 0 for no limit.
    pub(crate) memory_bytes: AtomicU64,
    /// Requests that wait for an answer, each with whether it can move.
    pub(crate) held: Mutex<VecDeque<(Reply, bool)>>,
    ids: AtomicU64,
}

impl Notes {
    /// Answers the request that it was given first.
    pub(crate) fn answer(&self, answer: Result<(), InvokeError>) {
        self.answer_after(0, 1_000, answer);
    }

    /// Answers the request that it was given first, which has waited this long for constants and then
    /// run this long.
    pub(crate) fn answer_after(&self, load_ns: u64, compute_ns: u64, answer: Result<(), InvokeError>) {
        let (reply, _) = self.held.lock().unwrap().pop_front().expect("a request is held");
        reply(answer.map(|()| InvocationResult {
            outputs: Vec::new(),
            retained: Vec::new(),
            handed_over_bytes: 0,
            timing: InvocationTiming { compute_ns, ..InvocationTiming::default() },
            entered_ns: 0,
            preemptions: 0,
            device: DeviceId(0),
            task: None,
            placed: None,
            cold_start: load_ns > 0,
            load_ns,
            batch: 1,
            launches: Vec::new(),
        }));
    }

    /// Reports that the constants of a function came or left.
    pub(crate) fn report(&self, function: &str, is_resident: bool) {
        self.residency.lock().unwrap().push((FunctionKey::local(function), is_resident));
    }

    /// Gives back the requests that can move, as after the loss of an executor.
    pub(crate) fn give_back(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let (moving, staying): (VecDeque<_>, VecDeque<_>) = held.into_iter().partition(|(_, may_move)| *may_move);
        *self.held.lock().unwrap() = staying;
        moving.into_iter().for_each(|(reply, _)| reply(Err(InvokeError::ExecutorLost("it was killed".into()))));
    }

    /// Loses the device: its requests fail.
    pub(crate) fn lose(&self) {
        self.lost.store(true, SeqCst);
        while !self.held.lock().unwrap().is_empty() {
            self.answer(Err(InvokeError::Device("lost".into())));
        }
    }
}

/// A fake engine that holds requests until the test answers them.
struct FakeEngine {
    name: String,
    targets: Vec<String>,
    notes: Arc<Notes>,
}

impl Member for FakeEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn targets(&self) -> &[String] {
        &self.targets
    }

    fn is_lost(&self) -> bool {
        self.notes.lost.load(SeqCst)
    }

    fn kind(&self) -> String {
        self.notes.kind.lock().unwrap().clone()
    }

    fn memory_bytes(&self) -> u64 {
        match self.notes.memory_bytes.load(SeqCst) {
            0 => u64::MAX,
            bytes => bytes,
        }
    }

    fn preload(&self, function: &FunctionKey) {
        self.notes.preloaded.lock().unwrap().push(function.clone());
    }

    fn reclaim(&self, function: &FunctionKey) {
        self.notes.reclaimed.lock().unwrap().push(function.clone());
    }

    fn holds_constants(&self, _: &FunctionKey) -> bool {
        !self.notes.is_empty.load(SeqCst)
    }

    fn take_residency(&self) -> Vec<(FunctionKey, bool)> {
        std::mem::take(&mut *self.notes.residency.lock().unwrap())
    }

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        let Some(target) = self.targets.iter().find(|name| bundle.target(name).is_some()) else {
            let has = bundle.target_names().collect::<Vec<_>>().join(", ");
            return Err(EngineError::NoTarget { device: self.name.clone(), wants: self.targets.join(", "), has });
        };
        if self.notes.is_full.load(SeqCst) {
            return Err(EngineError::ShuttingDown);
        }
        self.notes.loaded.lock().unwrap().push(options.key.clone());
        Ok(FunctionInfo {
            key: options.key,
            target: target.clone(),
            class: options.class,
            queue_capacity: options.queue_capacity.unwrap_or(8),
            weights_bytes: bundle.weights().len() as u64,
            weights_shared: false,
            weights_resident: !self.notes.is_empty.load(SeqCst),
            occupancy: Vec::new(),
        })
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        self.notes.loaded.lock().unwrap().retain(|key| key != function);
        Ok(())
    }

    fn set_share(&self, client: &ShareClient, _share: ShareSpec) -> Result<(), EngineError> {
        let has_function = !self.notes.loaded.lock().unwrap().is_empty();
        let mut shares = self.notes.shares.lock().unwrap();
        if !shares.contains_key(client) && shares.len() >= self.notes.shares_max.load(SeqCst) {
            return Err(EngineError::Share(ShareError::Clients(shares.len())));
        }
        shares.insert(client.clone(), has_function);
        Ok(())
    }

    fn remove_share(&self, client: &ShareClient) -> bool {
        self.notes.shares.lock().unwrap().remove(client).is_some()
    }

    fn submit(&self, _request: ChainRequest, reply: Reply) -> InvocationId {
        self.take(reply, false)
    }

    fn submit_movable(&self, _request: ChainRequest, reply: Reply) -> InvocationId {
        self.take(reply, true)
    }

    fn encodes(&self, _request: &ChainRequest) -> bool {
        self.notes.encodes.load(SeqCst)
    }

    fn cancel(&self, id: InvocationId) {
        self.notes.cancelled.lock().unwrap().push(id);
    }

    fn statistics(&self) -> EngineStatistics {
        EngineStatistics { preemptions: self.notes.loaded.lock().unwrap().len() as u64, ..EngineStatistics::default() }
    }

    fn trace(&self, from: Option<u64>) -> Option<TraceBatch> {
        Some(TraceBatch {
            records: Vec::new(),
            next: from.unwrap_or_default(),
            more: false,
            lost: 0,
            chunks_lost: 0,
            functions: Vec::new(),
            separate: false,
            device: self.name.clone(),
            compute_units: 1,
        })
    }
}

impl FakeEngine {
    fn take(&self, reply: Reply, may_move: bool) -> InvocationId {
        let id = InvocationId(self.notes.ids.fetch_add(1, SeqCst));
        self.notes.submitted.lock().unwrap().push(id);
        self.notes.submitters.lock().unwrap().push(std::thread::current().id());
        self.notes.is_movable.store(may_move, SeqCst);
        if self.is_lost() {
            reply(Err(InvokeError::Device("lost".into())));
        } else if may_move && self.notes.is_restarting.load(SeqCst) {
            reply(Err(InvokeError::Unavailable("its executor is being replaced".into())));
        } else if self.notes.refuses.load(SeqCst) {
            reply(Err(InvokeError::BadInput("refused".into())));
        } else {
            self.notes.held.lock().unwrap().push_back((reply, may_move));
        }
        id
    }
}

/// A fleet of fake engines with these targets, `host:0` and so on.
pub(crate) fn fleet(targets: &[&str], placing: Placing) -> (FleetHandle, Vec<Arc<Notes>>) {
    let notes: Vec<Arc<Notes>> = (0..targets.len()).map(|_| Arc::default()).collect();
    (fleet_of(targets, placing, &notes), notes)
}

/// A fleet of fake engines with these targets and states.
pub(crate) fn fleet_of(targets: &[&str], placing: Placing, notes: &[Arc<Notes>]) -> FleetHandle {
    let member = |(at, target): (usize, &&str)| -> Box<dyn Member> {
        notes[at].ids.store(DeviceId(at as u16).first_id(), SeqCst);
        Box::new(FakeEngine {
            name: format!("host:{at}"),
            targets: vec![(*target).to_owned()],
            notes: notes[at].clone(),
        })
    };
    FleetHandle::new(targets.iter().enumerate().map(member).collect(), placing).unwrap()
}

/// A bundle with `bytes` of constants, all of the same value, and one byte of code for a target.
pub(crate) fn bundle(target: &str, bytes: usize, value: u8) -> Arc<Bundle> {
    let buffer = |name: &str, kind, elements: usize| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::U8,
        shape: vec![Expr::Const(elements as i64)],
        weights_offset: (kind == BufferKind::Const).then_some(0),
    };
    let mut buffers = vec![buffer("in", BufferKind::Input, 16), buffer("out", BufferKind::Output, 16)];
    let contents = vec![value; bytes];
    let mut weights = Vec::new();
    if bytes > 0 {
        buffers.push(buffer("c", BufferKind::Const, bytes));
        weights.push((0, &contents[..]));
    }
    let copy = Node {
        name: "copy".into(),
        kind: NodeKind::copy(BufferId(0), BufferId(1), Expr::Const(16)),
        reads: vec![BufferId(0)],
        writes: vec![BufferId(1)],
        after: vec![],
    };
    let plan = MemoryPlan { restore_points: vec![NodeId(0)], ..MemoryPlan::default() };
    let graph = KernelGraph {
        format: FORMAT_VERSION,
        name: "f".into(),
        buffers,
        nodes: vec![copy],
        plan,
        ..KernelGraph::default()
    };
    let image = TargetImage { name: target.into(), launches: vec![None], ..TargetImage::default() };
    let targets = vec![TargetContents { image, code: vec![0], ptx: None, source: None }];
    let file = tempfile::NamedTempFile::new().unwrap();
    write_bundle(file.path(), &BundleContents { producer: "test".into(), graph: &graph, weights, targets }).unwrap();
    Bundle::open(file.path()).unwrap()
}

pub(crate) fn options(name: &str) -> FunctionOptions {
    FunctionOptions {
        key: FunctionKey::local(name),
        class: Default::default(),
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    }
}

/// Loads a function and returns its first device.
pub(crate) fn load(
    fleet: &FleetHandle,
    name: &str,
    bundle: &Arc<Bundle>,
    device: Option<&str>,
) -> Result<u16, EngineError> {
    fleet.load(bundle.clone(), options(name), device).map(|placed| placed.devices[0].0)
}

pub(crate) fn chain(functions: &[&str]) -> ChainRequest {
    let stage = |name: &&str| StageRequest {
        function: FunctionKey::local(*name),
        inputs: vec![],
        outputs: None,
        retain: vec![],
    };
    ChainRequest {
        stages: functions.iter().map(stage).collect(),
        class: None,
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: false,
    }
}

pub(crate) fn ignore() -> Reply {
    Box::new(|_| {})
}
