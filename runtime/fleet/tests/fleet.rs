//! A fleet of fake engines: placement of functions, routing of requests and cancellations, and lost
//! devices.

use atoll_core::DeviceId;
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionInfo, FunctionKey, FunctionOptions, InvocationId, InvokeError,
    Reply, StageRequest, TraceBatch,
};
use atoll_fleet::{Fleet, FleetError, FleetHandle, Inference, Member};
use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, Bundle, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan,
    Node, NodeId, NodeKind, TargetContents, TargetImage, write_bundle,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

/// The calls that a fake engine received.
#[derive(Default)]
struct Notes {
    loaded: Mutex<Vec<FunctionKey>>,
    submitted: Mutex<Vec<InvocationId>>,
    cancelled: Mutex<Vec<InvocationId>>,
    lost: AtomicBool,
    ids: AtomicU64,
}

/// A fake engine that accepts every request and never replies.
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

    fn load(&self, bundle: Arc<Bundle>, options: FunctionOptions) -> Result<FunctionInfo, EngineError> {
        let Some(target) = self.targets.iter().find(|name| bundle.target(name).is_some()) else {
            let has = bundle.target_names().collect::<Vec<_>>().join(", ");
            return Err(EngineError::NoTarget { device: self.name.clone(), wants: self.targets.join(", "), has });
        };
        self.notes.loaded.lock().unwrap().push(options.key.clone());
        Ok(FunctionInfo {
            key: options.key,
            target: target.clone(),
            class: options.class,
            queue_capacity: 1,
            weights_bytes: bundle.weights().len() as u64,
            weights_shared: false,
            weights_resident: true,
            occupancy: Vec::new(),
        })
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        self.notes.loaded.lock().unwrap().retain(|key| key != function);
        Ok(())
    }

    fn submit(&self, _request: ChainRequest, reply: Reply) -> InvocationId {
        // A reply that is never called.
        drop(reply);
        let id = InvocationId(self.notes.ids.fetch_add(1, SeqCst));
        self.notes.submitted.lock().unwrap().push(id);
        id
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

/// A fleet of fake engines with these targets, `host:0` and so on.
fn fleet(targets: &[&str]) -> (FleetHandle, Vec<Arc<Notes>>) {
    let notes: Vec<Arc<Notes>> = (0..targets.len()).map(|_| Arc::default()).collect();
    let member = |(at, target): (usize, &&str)| -> Box<dyn Member> {
        notes[at].ids.store(DeviceId(at as u16).first_id(), SeqCst);
        Box::new(FakeEngine {
            name: format!("host:{at}"),
            targets: vec![(*target).to_owned()],
            notes: notes[at].clone(),
        })
    };
    let handle = FleetHandle::new(targets.iter().enumerate().map(member).collect());
    (handle, notes)
}

/// A bundle with `bytes` of constants, all of the same value, and one byte of code for a target.
fn bundle(target: &str, bytes: usize, value: u8) -> Arc<Bundle> {
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

fn options(name: &str) -> FunctionOptions {
    FunctionOptions {
        key: FunctionKey::local(name),
        class: Default::default(),
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    }
}

/// Loads a function and returns its device.
fn load(fleet: &FleetHandle, name: &str, bundle: &Arc<Bundle>, device: Option<&str>) -> Result<u16, EngineError> {
    fleet.load(bundle.clone(), options(name), device).map(|placed| placed.device.0)
}

fn chain(functions: &[&str]) -> ChainRequest {
    let stage = |name: &&str| StageRequest { function: FunctionKey::local(*name), inputs: vec![], outputs: None };
    ChainRequest {
        stages: functions.iter().map(stage).collect(),
        class: None,
        priority: 0,
        deadline: None,
        times_launches: false,
    }
}

fn ignore() -> Reply {
    Box::new(|_| {})
}

#[test]
fn functions_go_to_the_emptiest_device_unless_they_name_one() {
    let (fleet, notes) = fleet(&["t", "t"]);
    let (small, large) = (bundle("t", 100, 1), bundle("t", 1000, 2));
    assert_eq!(load(&fleet, "large", &large, None).unwrap(), 0, "both are empty");
    assert_eq!(load(&fleet, "a", &small, None).unwrap(), 1);
    assert_eq!(load(&fleet, "b", &bundle("t", 100, 3), None).unwrap(), 1, "200 bytes are fewer than 1000");
    assert_eq!(load(&fleet, "pinned", &large, Some("host:1")).unwrap(), 1);
    assert_eq!(load(&fleet, "c", &small, None).unwrap(), 0);
    let places = notes.iter().map(|notes| notes.loaded.lock().unwrap().len()).collect::<Vec<_>>();
    assert_eq!(places, [2, 3]);
    assert_eq!(
        fleet.statistics().iter().map(|engine| engine.preemptions).collect::<Vec<_>>(),
        [2, 3],
        "in the order of the devices"
    );
}

#[test]
fn equal_constants_on_a_device_count_once_and_code_counts() {
    let (fleet, _) = fleet(&["t", "t"]);
    let (shared, other) = (bundle("t", 1000, 1), bundle("t", 1500, 2));
    assert_eq!(load(&fleet, "a", &shared, Some("host:0")).unwrap(), 0);
    assert_eq!(load(&fleet, "b", &shared, Some("host:0")).unwrap(), 0);
    assert_eq!(load(&fleet, "c", &other, Some("host:1")).unwrap(), 1);
    assert_eq!(
        load(&fleet, "d", &bundle("t", 0, 0), None).unwrap(),
        0,
        "1002 bytes, and not 2002, are fewer than 1501"
    );
    let (fleet, _) = crate::fleet(&["t", "t", "t"]);
    let nothing = bundle("t", 0, 0);
    let places: Vec<u16> =
        ["a", "b", "c", "d"].into_iter().map(|name| load(&fleet, name, &nothing, None).unwrap()).collect();
    assert_eq!(places, [0, 1, 2, 0], "functions without constants are spread by their code");
}

#[test]
fn a_function_goes_where_its_code_runs() {
    let (fleet, notes) = fleet(&["x", "y"]);
    assert_eq!(load(&fleet, "a", &bundle("y", 10, 0), None).unwrap(), 1);
    assert_eq!(load(&fleet, "b", &bundle("y", 10, 1), None).unwrap(), 1, "although the other is empty");
    let refused = load(&fleet, "c", &bundle("z", 0, 0), None).unwrap_err();
    assert!(matches!(refused, EngineError::NoTarget { .. }), "{refused}");
    assert_eq!(load(&fleet, "c", &bundle("x", 0, 0), None).unwrap(), 0, "a rejected function leaves no placement");
    assert_eq!(notes[0].loaded.lock().unwrap().len(), 1);
}

#[test]
fn names_are_unique_in_the_fleet_and_devices_are_checked() {
    let (fleet, _) = fleet(&["t", "t"]);
    let f = bundle("t", 10, 0);
    load(&fleet, "f", &f, Some("host:1")).unwrap();
    for device in [None, Some("host:0"), Some("host:1")] {
        assert!(matches!(load(&fleet, "f", &f, device), Err(EngineError::AlreadyLoaded(_))), "{device:?}");
    }
    let unknown = load(&fleet, "g", &f, Some("cuda:0")).unwrap_err();
    assert_eq!(unknown.to_string(), "there is no device `cuda:0`; choose one of: host:0, host:1");
    fleet.unload(&FunctionKey::local("f")).unwrap();
    assert!(matches!(fleet.unload(&FunctionKey::local("f")), Err(EngineError::NotLoaded(_))));
    assert_eq!(load(&fleet, "f", &f, Some("host")).unwrap(), 0, "a kind alone means the first of it");
}

#[test]
fn requests_go_to_the_device_of_their_function_and_cancellations_follow_by_the_id() {
    let (fleet, notes) = fleet(&["t", "t", "t"]);
    let f = bundle("t", 10, 0);
    for device in 0..3 {
        load(&fleet, &format!("f{device}"), &f, Some(&format!("host:{device}"))).unwrap();
    }
    for device in [2_usize, 0, 1, 2] {
        let function = format!("f{device}");
        let id = fleet.submit(chain(&[&function, &function]), ignore());
        assert_eq!(DeviceId::of_id(id.0), DeviceId(device as u16));
        fleet.cancel(id);
        assert_eq!(notes[device].cancelled.lock().unwrap().last(), Some(&id));
        assert_eq!(fleet.trace(DeviceId(device as u16), Some(5)).unwrap().device, format!("host:{device}"));
    }
    let counts = |of: fn(&Notes) -> usize| notes.iter().map(|notes| of(notes)).collect::<Vec<_>>();
    assert_eq!(counts(|notes| notes.submitted.lock().unwrap().len()), [1, 1, 2]);
    assert_eq!(counts(|notes| notes.cancelled.lock().unwrap().len()), [1, 1, 2]);
    fleet.cancel(InvocationId(DeviceId(3).first_id()));
    assert_eq!(counts(|notes| notes.cancelled.lock().unwrap().len()), [1, 1, 2], "no device has that");
    assert!(fleet.trace(DeviceId(3), None).is_none());
}

#[test]
fn a_chain_across_devices_is_refused_and_told_where_each_function_is() {
    let (fleet, notes) = fleet(&["t", "t"]);
    let f = bundle("t", 10, 0);
    load(&fleet, "a", &f, Some("host:0")).unwrap();
    load(&fleet, "b", &f, Some("host:1")).unwrap();
    let refused = |functions: &[&str]| {
        let (answer, answered) = mpsc::channel();
        let id = fleet.submit(chain(functions), Box::new(move |result| answer.send(result.map(drop)).unwrap()));
        fleet.cancel(id);
        answered.try_recv().expect("it is answered at once").unwrap_err()
    };
    let InvokeError::BadInput(message) = refused(&["a", "a", "b"]) else { panic!("another error") };
    assert!(message.contains("one device: `a` is on host:0, `a` is on host:0, `b` is on host:1"), "{message}");
    assert_eq!(refused(&["a", "c"]), InvokeError::UnknownFunction);
    assert!(
        notes
            .iter()
            .all(|notes| notes.submitted.lock().unwrap().is_empty() && notes.cancelled.lock().unwrap().is_empty())
    );
}

#[test]
fn nothing_is_placed_on_a_lost_device_and_the_other_goes_on() {
    let (fleet, notes) = fleet(&["t", "t"]);
    load(&fleet, "a", &bundle("t", 10, 0), Some("host:0")).unwrap();
    load(&fleet, "b", &bundle("t", 1000, 1), Some("host:1")).unwrap();
    notes[0].lost.store(true, SeqCst);
    assert_eq!(load(&fleet, "c", &bundle("t", 10, 2), None).unwrap(), 1, "although it is fuller");
    let id = fleet.submit(chain(&["b"]), ignore());
    assert_eq!(DeviceId::of_id(id.0), DeviceId(1));
    fleet.unload(&FunctionKey::local("a")).unwrap();
    assert_eq!(
        load(&fleet, "a", &bundle("t", 10, 0), None).unwrap(),
        1,
        "a function of the lost device finds another one"
    );
}

#[test]
fn a_fleet_of_nothing_does_not_start() {
    assert!(matches!(Fleet::start(vec![], &Default::default()), Err(FleetError::NoDevice)));
}
