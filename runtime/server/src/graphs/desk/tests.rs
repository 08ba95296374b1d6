//! Tests of the desk with devices that do nothing: turns, and requests that are cancelled.

use super::*;
use atoll_core::graphs::{Form, GraphSpec, Link, SourceName, StageCost, StageSpec, TensorSpec};
use atoll_engine::{
    ChainRequest, EngineError, EngineStatistics, FunctionKey, FunctionOptions, InvocationId, InvokeError, Reply,
};
use atoll_fleet::{DeviceState, FleetStatus, Placed};
use atoll_kgraph::Bundle;
use std::sync::atomic::AtomicBool;
use tokio::sync::mpsc::error::TryRecvError;

const MS: u64 = 1_000_000;

/// Two devices. The flags say whether the second one is lost, and whether it is drained.
#[derive(Default)]
pub(in crate::graphs) struct Devices(AtomicBool, AtomicBool);

impl Inference for Devices {
    fn devices(&self) -> &[String] {
        static NAMES: std::sync::LazyLock<[String; 2]> =
            std::sync::LazyLock::new(|| ["host:0", "host:1"].map(str::to_owned));
        &*NAMES
    }

    fn load(&self, _: Arc<Bundle>, options: FunctionOptions, _: Option<&str>) -> Result<Placed, EngineError> {
        Err(EngineError::NotLoaded(options.key))
    }

    fn unload(&self, function: &FunctionKey) -> Result<(), EngineError> {
        Err(EngineError::NotLoaded(function.clone()))
    }

    fn submit(&self, _: ChainRequest, reply: Reply) -> InvocationId {
        reply(Err(InvokeError::UnknownFunction));
        InvocationId(0)
    }

    fn cancel(&self, _: InvocationId) {}

    fn statistics(&self) -> Vec<EngineStatistics> {
        Vec::new()
    }

    fn devices_state(&self) -> FleetStatus {
        let second = DeviceState {
            is_lost: self.0.load(Ordering::SeqCst),
            is_drained: self.1.load(Ordering::SeqCst),
            ..DeviceState::default()
        };
        FleetStatus { devices: vec![DeviceState::default(), second], ..FleetStatus::default() }
    }
}

/// Two stages, one after the other, without limits.
pub(in crate::graphs) fn graph() -> Graph {
    graph_with(None)
}

/// The same graph with this price limit.
pub(in crate::graphs) fn graph_with(price_max: Option<Cost>) -> Graph {
    let form = Form { element: "FP32".into(), shape: Vec::new() };
    let tensor = |name: &str| TensorSpec { name: name.into(), form: form.clone() };
    let link = |name: &str, from| Link { name: name.into(), from };
    let output = |stage: &str| SourceName::Output { stage: stage.into(), output: "y".into() };
    let stage = |name: &str, from| StageSpec {
        name: name.into(),
        function: "f".into(),
        inputs: vec![tensor("x")],
        outputs: vec![tensor("y")],
        from: vec![link("x", from)],
        ..StageSpec::default()
    };
    Graph::new(GraphSpec {
        name: "g".into(),
        inputs: vec![tensor("x")],
        stages: vec![stage("a", SourceName::Input("x".into())), stage("b", output("a"))],
        outputs: vec![link("y", output("b"))],
        price_max,
        ..GraphSpec::default()
    })
    .expect("a good graph")
}

/// A desk with the graph. `ms` is the time of a stage on each device in milliseconds; 0 if it
/// cannot run there.
fn desk(devices: Arc<Devices>, ms: [u64; 2]) -> (Arc<Desk>, GraphId) {
    let desk = Desk::new(devices, &Prices::default()).expect("few kinds");
    let cost = |ms: u64| (ms > 0).then(|| StageCost { exec: Nanos(ms * MS), ..StageCost::default() });
    let row = vec![cost(ms[0]), cost(ms[1]), None];
    let costs = CostTable::new(&graph(), desk.kinds().to_vec(), vec![row.clone(), row]).expect("good costs");
    let id = desk.plan(None, &graph(), &costs).expect("a simple graph");
    (desk, id)
}

fn within(ms: u64) -> Limits {
    Limits { deadline: Some(Duration::from_millis(ms)), price_max: None }
}

/// The stage, device and turn of the next call. Panics if there is none.
fn run(ticket: &mut Ticket) -> (usize, Option<DeviceId>, Turn) {
    match ticket.calls.try_recv() {
        Ok(Call::Run { stage, device, turn }) => (stage, device, turn),
        Ok(Call::Free) => panic!("its reservations are lost"),
        Err(error) => panic!("no call: {error}"),
    }
}

#[test]
fn a_request_gets_a_turn_for_each_stage_in_order() {
    let (desk, graph) = desk(Arc::default(), [10, 0]);
    let (explanation, ticket) = desk.arrive(graph, within(60_000));
    let mut ticket = ticket.unwrap_or_else(|| panic!("{explanation:?}"));
    let (stage, device, turn) = run(&mut ticket);
    assert_eq!((stage, device, desk.running()), (0, Some(DeviceId(0)), 1));
    assert!(matches!(ticket.calls.try_recv(), Err(TryRecvError::Empty)), "the second one waits for the first");
    drop(turn);
    let (stage, _, turn) = run(&mut ticket);
    assert_eq!(stage, 1);
    drop(turn);
    assert!(matches!(ticket.calls.try_recv(), Err(TryRecvError::Disconnected)), "it has ended");
    assert_eq!((desk.running(), desk.counts.late.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_request_that_leaves_gives_its_devices_to_the_next_one() {
    let (desk, graph) = desk(Arc::default(), [10, 0]);
    let mut first = desk.arrive(graph, within(60_000)).1.expect("admitted");
    let mut second = desk.arrive(graph, within(60_000)).1.expect("admitted");
    let (.., turn) = run(&mut first);
    assert!(matches!(second.calls.try_recv(), Err(TryRecvError::Empty)), "the device has one run at a time");
    // The stage is still on the device when the client disconnects.
    drop(first);
    assert!(matches!(second.calls.try_recv(), Err(TryRecvError::Empty)));
    drop(turn);
    assert_eq!(run(&mut second).0, 0);
    // A turn that was not received ends with its request.
    drop(second);
    let mut third = desk.arrive(graph, within(60_000)).1.expect("admitted");
    assert_eq!(run(&mut third).0, 0);
    drop(third);
    assert_eq!(desk.running(), 0);
}

#[test]
fn a_request_is_rejected_with_the_reason_and_a_question_reserves_nothing() {
    let (desk, graph) = desk(Arc::default(), [10, 0]);
    let (explanation, ticket) = desk.arrive(graph, within(15));
    assert!(ticket.is_none());
    assert_eq!(explanation.verdict, Verdict::Rejected(Reason::TooSlow { fastest: Nanos(20 * MS) }));
    assert!(matches!(desk.consider(graph, within(60_000)).verdict, Verdict::Admitted { .. }));
    assert_eq!(desk.running(), 0);
    desk.remove(graph);
    assert_eq!(desk.arrive(graph, within(60_000)).0.verdict, Verdict::Rejected(Reason::UnknownGraph));
}

#[test]
fn the_requests_of_a_lost_device_go_on_without_reservations() {
    let devices = Arc::new(Devices::default());
    let (desk, graph) = desk(devices.clone(), [0, 10]);
    let mut ticket = desk.arrive(graph, within(60_000)).1.expect("admitted");
    let (_, device, turn) = run(&mut ticket);
    assert_eq!(device, Some(DeviceId(1)));
    devices.0.store(true, Ordering::SeqCst);
    assert_eq!(desk.look(), (vec![true, false], 1));
    let (explanation, next) = desk.arrive(graph, within(60_000));
    assert!(next.is_none());
    assert_eq!(explanation.verdict, Verdict::Rejected(Reason::NoDevices { stage: 0 }));
    assert!(matches!(ticket.calls.try_recv(), Ok(Call::Free)));
    drop(turn);
    assert_eq!(desk.running(), 0);
}

#[test]
fn a_drained_device_is_not_reserved_until_it_is_resumed() {
    let devices = Arc::new(Devices::default());
    let (desk, graph) = desk(devices.clone(), [0, 10]);
    devices.1.store(true, Ordering::SeqCst);
    assert_eq!(desk.look(), (vec![true, false], 1));
    let (explanation, ticket) = desk.arrive(graph, within(60_000));
    assert!(ticket.is_none(), "{explanation:?}");
    devices.1.store(false, Ordering::SeqCst);
    assert_eq!((desk.look(), desk.look().1), ((vec![true, true], 2), 2), "the plans are to be made again");
    let mut ticket = desk.arrive(graph, within(60_000)).1.expect("admitted");
    assert_eq!(run(&mut ticket).1, Some(DeviceId(1)));
}

#[test]
fn cpu_stages_are_a_kind_of_their_own_if_they_have_a_price() {
    let desk = |prices: &Prices| Desk::new(Arc::<Devices>::default(), prices).expect("few kinds");
    let free = desk(&Prices::default());
    assert_eq!((free.cpu(), free.kinds().len()), (free.daemon(), 3));
    let priced = desk(&Prices::of(&[("cpu".to_owned(), 2_000_000)].into(), &[]).expect("a price"));
    let cpu = &priced.kinds()[usize::from(priced.cpu().0)];
    assert_eq!((cpu.name.as_str(), cpu.price_per_s, priced.kinds().len()), ("cpu", 2_000_000, 4));
    assert_eq!(priced.kinds()[usize::from(priced.daemon().0)].price_per_s, 0);
    // The nodes after those of the two devices are the daemon's, then those of CPU stages.
    let node = |at: usize| priced.stage_node(NodeId(at as u16));
    assert_eq!((node(2), node(2 + BUILTIN_STAGES_MAX)), ("daemon", "cpu"));
}
