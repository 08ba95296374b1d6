//! The desk: admits requests of graphs, and decides when and on which device their stages run.
//!
//! The decisions are made by [`atoll_core::graphs::Admission`], which is pure. The desk sends it
//! events, carries out its actions, and sets its timer. Built-in stages run in the daemon itself,
//! which counts as a separate kind of device with price 0. So do CPU stages, unless their CPU time
//! has a price: then the processes that run them are a kind of their own.
//!
//! # Invariants
//!
//! - For each run that the admission starts on a node, it learns exactly once that the run ended,
//!   also if the request is cancelled: a [`Turn`] reports it when it is dropped.
//! - Messages to requests are sent without holding the lock, because a message that is not received
//!   drops its turn, which takes the lock.

use crate::limits::BUILTIN_STAGES_MAX;
use crate::prices::{CPU, Prices};
use atoll_core::Nanos;
use atoll_core::graphs::limits::KINDS_MAX;
use atoll_core::graphs::{
    Action, Admission, AdmissionConfig, Arrival, Cost, CostTable, Event, Explanation, Graph, GraphError, GraphId, Kind,
    KindId, Margin, NodeId, NodeSpec, Plans, Reason, RequestId, Verdict,
};
use atoll_engine::DeviceId;
use atoll_fleet::{DeviceState, Inference};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The name of the kind of device that runs built-in stages.
const DAEMON: &str = "daemon";

/// The desk of a daemon.
pub(crate) struct Desk {
    engine: Arc<dyn Inference>,
    started: Instant,
    /// The kinds of devices; the last one is the daemon.
    kinds: Vec<Kind>,
    /// The kind of each device.
    devices: Vec<KindId>,
    /// The kind that runs CPU stages: that of their processes if they have a price, or the daemon.
    cpu: KindId,
    state: Mutex<State>,
    /// How often devices were lost, drained or resumed.
    changes: AtomicU64,
    pub(crate) counts: DeskCounts,
}

/// Counts of requests to graphs, by outcome, and of their intermediate results.
#[derive(Debug, Default)]
pub(crate) struct DeskCounts {
    /// Admitted, with reserved devices.
    pub(crate) admitted: AtomicU64,
    /// Run without reservations, to measure their stages.
    pub(crate) measured: AtomicU64,
    /// Run without reservations, since they have neither deadline nor price limit.
    pub(crate) unlimited: AtomicU64,
    /// Admitted, and not answered before their deadline.
    pub(crate) late: AtomicU64,
    /// Bytes of functions' inputs that other functions made: taken from memory of the device, and
    /// copied through host memory.
    pub(crate) handed_over_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    /// Rejected, by [`Reason::index`].
    rejected: [AtomicU64; Reason::LABELS.len()],
}

impl DeskCounts {
    /// Counts a rejection.
    pub(super) fn reject(&self, reason: &Reason) {
        self.rejected[reason.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Rejected requests by reason.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::LABELS.into_iter().zip(self.rejected.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

struct State {
    admission: Admission,
    seats: HashMap<RequestId, UnboundedSender<Call>>,
    next: u64,
    /// The time for which the timer is set, in ns since the start of the desk.
    wake: Option<u64>,
    /// Devices that the admission knows to be lost, and those that it knows to be drained.
    is_lost: Vec<bool>,
    is_drained: Vec<bool>,
}

/// A message to an admitted request.
pub(super) enum Call {
    /// A stage runs now.
    Run {
        stage: usize,
        /// `None` for a built-in or CPU stage.
        device: Option<DeviceId>,
        turn: Turn,
    },
    /// A device of the request was lost. The request continues without reservations.
    Free,
}

/// The right of a stage to run on a node. Dropping it ends the run.
pub(super) struct Turn {
    desk: Arc<Desk>,
    node: NodeId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.desk.handle(Event::Ended { node: self.node });
    }
}

/// A message that is not sent yet.
enum Message {
    Start { node: NodeId, to: Option<UnboundedSender<Call>>, stage: usize },
    Free(UnboundedSender<Call>),
}

/// An admitted request. Its reservations end with it.
pub(super) struct Ticket {
    desk: Arc<Desk>,
    request: RequestId,
    calls: UnboundedReceiver<Call>,
}

impl Ticket {
    /// The next call; `None` once all stages have ended.
    pub(super) async fn next(&mut self) -> Option<Call> {
        self.calls.recv().await
    }

    /// Reports the result of a stage's condition.
    pub(super) fn decided(&self, stage: usize, runs: bool) {
        self.desk.handle(Event::Decided { request: self.request, stage, runs });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Cancels the request before the turns of unreceived calls are dropped. Otherwise the end
        // of such a turn would start the next stage of the request.
        self.desk.leave(self.request);
    }
}

/// The next call of an admitted request. Never completes if there is no ticket.
pub(super) async fn next_call(ticket: &mut Option<Ticket>) -> Option<Call> {
    match ticket {
        Some(ticket) => ticket.next().await,
        None => std::future::pending().await,
    }
}

/// The limits of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) deadline: Option<Duration>,
    pub(crate) price_max: Option<Cost>,
}

impl Limits {
    /// These limits; those of the graph where a limit is `None`.
    pub(super) fn over(self, graph: &Graph) -> Limits {
        let own = graph.deadline().map(|after| Duration::from_nanos(after.0));
        Limits { deadline: self.deadline.or(own), price_max: self.price_max.or(graph.price_max()) }
    }

    /// These limits with a margin at the deadline.
    pub(super) fn planned_with(self, margin: Margin) -> Limits {
        let planned = |after: Duration| {
            let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(margin.planned(Nanos(ns)).0)
        };
        Limits { deadline: self.deadline.map(planned), ..self }
    }

    pub(super) fn is_none(self) -> bool {
        self.deadline.is_none() && self.price_max.is_none()
    }
}

impl Desk {
    /// A desk for the devices of a daemon; `None` if they have more kinds than a cost table can
    /// hold. Devices of the same kind and price are treated as equal.
    pub(crate) fn new(engine: Arc<dyn Inference>, prices: &Prices) -> Option<Arc<Desk>> {
        let (names, traits) = (engine.devices().to_vec(), engine.traits());
        let mut groups: Vec<(String, u64, Kind)> = Vec::new();
        let mut devices = Vec::new();
        for (at, (name, device)) in names.iter().zip(&traits).enumerate() {
            let price_per_s = prices.get(DeviceId(at as u16));
            let known = groups.iter().position(|(kind, price, _)| *kind == device.kind && *price == price_per_s);
            let index = known.unwrap_or_else(|| {
                let kind = Kind { name: String::new(), is_cpu: device.is_cpu, price_per_s };
                groups.push((device.kind.clone(), price_per_s, kind));
                groups.len() - 1
            });
            let text = &mut groups[index].2.name;
            *text = if text.is_empty() { name.clone() } else { format!("{text}, {name}") };
            devices.push(KindId(u8::try_from(index).unwrap_or(u8::MAX)));
        }
        let cpu_price = prices.cpu();
        let most = KINDS_MAX - 1 - usize::from(cpu_price > 0);
        if groups.len() > most {
            let kinds = groups.len();
            tracing::warn!(kinds, most, "too many kinds and prices of devices: graphs run without admission");
            return None;
        }
        let mut kinds: Vec<Kind> = groups.into_iter().map(|(.., kind)| kind).collect();
        if cpu_price > 0 {
            kinds.push(Kind { name: CPU.into(), is_cpu: true, price_per_s: cpu_price });
        }
        let cpu = KindId(kinds.len() as u8 - u8::from(cpu_price > 0));
        kinds.push(Kind { name: DAEMON.into(), is_cpu: true, price_per_s: 0 });
        let daemon = NodeSpec { kind: KindId(kinds.len() as u8 - 1), bytes: u64::MAX };
        let node = |(kind, device): (&KindId, &atoll_fleet::DeviceTraits)| NodeSpec {
            kind: *kind,
            bytes: device.memory_bytes,
        };
        let mut nodes: Vec<NodeSpec> = devices.iter().zip(&traits).map(node).collect();
        nodes.extend([daemon; BUILTIN_STAGES_MAX]);
        if cpu != daemon.kind {
            nodes.extend([NodeSpec { kind: cpu, ..daemon }; BUILTIN_STAGES_MAX]);
        }
        let state = State {
            admission: Admission::new(AdmissionConfig::default(), kinds.clone(), &nodes),
            seats: HashMap::new(),
            next: 0,
            wake: None,
            is_lost: vec![false; devices.len()],
            is_drained: vec![false; devices.len()],
        };
        let (state, changes, counts) = (Mutex::new(state), AtomicU64::new(0), DeskCounts::default());
        Some(Arc::new(Desk { engine, started: Instant::now(), kinds, devices, cpu, state, changes, counts }))
    }

    /// The kinds of devices; the last one is the daemon.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The kind of a device.
    pub(super) fn kind(&self, device: DeviceId) -> KindId {
        self.devices.get(usize::from(device.0)).copied().unwrap_or(self.daemon())
    }

    /// The kind that runs built-in stages.
    pub(super) fn daemon(&self) -> KindId {
        KindId(self.kinds.len() as u8 - 1)
    }

    /// The kind that runs CPU stages.
    pub(super) fn cpu(&self) -> KindId {
        self.cpu
    }

    /// The name of the kind of a node that is no device.
    pub(crate) fn stage_node(&self, node: NodeId) -> &str {
        let is_daemon = usize::from(node.0) < self.devices.len() + BUILTIN_STAGES_MAX;
        let kind = if is_daemon { self.daemon() } else { self.cpu };
        &self.kinds[usize::from(kind.0)].name
    }

    /// The device of a node; `None` for the daemon and for processes of CPU stages.
    pub(crate) fn device(&self, node: NodeId) -> Option<DeviceId> {
        (usize::from(node.0) < self.devices.len()).then_some(DeviceId(node.0))
    }

    /// Tells the admission which devices were lost, drained or resumed since the last call. Returns
    /// whether each device accepts new requests, and how often that has changed.
    pub(super) fn look(self: &Arc<Desk>) -> (Vec<bool>, u64) {
        let states = self.engine.devices_state().devices;
        self.note_states(&states);
        let open = states.iter().map(|state| !state.is_lost && !state.is_drained).collect();
        (open, self.changes.load(Ordering::Relaxed))
    }

    /// Number of admitted requests that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.lock().admission.running()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Locks the state, then takes the time, so that times of events never decrease.
    fn at_once(&self) -> (MutexGuard<'_, State>, Nanos) {
        let state = self.lock();
        (state, self.now())
    }

    /// Deploys a graph, or replaces the costs of the graph `id`. May take seconds, without holding
    /// the lock.
    pub(super) fn plan(&self, id: Option<GraphId>, graph: &Graph, costs: &CostTable) -> Result<GraphId, GraphError> {
        loop {
            let room = self.lock().admission.room();
            let plans = room.plans(graph, costs)?;
            let mut state = self.lock();
            // A device was lost, drained or resumed meanwhile.
            if state.admission.room() != room {
                continue;
            }
            return match id {
                Some(id) => state.admission.update_planned(id, costs.clone(), plans).map(|()| id),
                None => state.admission.deploy_planned(graph.clone(), costs.clone(), plans),
            };
        }
    }

    /// Removes a graph. Its requests end.
    pub(super) fn remove(&self, graph: GraphId) {
        self.lock().admission.remove(graph);
    }

    /// Reports that the constants of a stage's function are on a device.
    pub(super) fn resident(&self, graph: GraphId, stage: usize, device: DeviceId) {
        let (mut state, now) = self.at_once();
        state.admission.resident(graph, stage, NodeId(device.0), now);
    }

    /// The optimal assignments of a graph.
    pub(super) fn plans(&self, graph: GraphId) -> Option<Plans> {
        self.lock().admission.plans(graph).cloned()
    }

    /// The decision that a request would get now. Reserves nothing.
    pub(super) fn consider(&self, graph: GraphId, limits: Limits) -> Explanation {
        let (mut state, now) = self.at_once();
        let arrival = arrival(RequestId(u64::MAX), graph, limits, now);
        state.admission.consider(arrival, now)
    }

    /// Decides about a request. A ticket is returned if it is admitted.
    pub(super) fn arrive(self: &Arc<Desk>, graph: GraphId, limits: Limits) -> (Explanation, Option<Ticket>) {
        let (to, calls) = unbounded_channel();
        let mut messages = Vec::new();
        let (explanation, request) = {
            let (mut state, now) = self.at_once();
            let request = RequestId(state.next);
            state.next += 1;
            state.seats.insert(request, to);
            let event = Event::Arrived(arrival(request, graph, limits, now));
            let explanation = state.handle(event, now, &mut messages);
            self.set_timer(&mut state);
            // The admission answers each arrival with exactly one decision.
            (explanation.expect("an arrival is admitted or rejected"), request)
        };
        let is_admitted = matches!(explanation.verdict, Verdict::Admitted { .. });
        let ticket = is_admitted.then(|| Ticket { desk: self.clone(), request, calls });
        self.send(messages);
        (explanation, ticket)
    }

    /// Tells the admission which devices were lost, drained or resumed since the last call.
    fn note_states(self: &Arc<Desk>, states: &[DeviceState]) {
        let mut lost = Vec::new();
        {
            let mut state = self.lock();
            let State { admission, is_lost, is_drained, .. } = &mut *state;
            for (at, (now, (is_lost, is_drained))) in states.iter().zip(is_lost.iter_mut().zip(is_drained)).enumerate()
            {
                let node = NodeId(at as u16);
                let changed = (now.is_lost && !*is_lost, now.is_drained != *is_drained);
                if changed.0 {
                    lost.push(node);
                }
                if changed.1 {
                    admission.set_drained(node, now.is_drained);
                }
                (*is_lost, *is_drained) = (*is_lost || now.is_lost, now.is_drained);
                self.changes.fetch_add(u64::from(changed.0 || changed.1), Ordering::Relaxed);
            }
        }
        for node in lost {
            self.handle(Event::Lost { node });
        }
    }

    /// Removes a request, finished or not.
    fn leave(self: &Arc<Desk>, request: RequestId) {
        self.handle(Event::Cancelled { request });
        self.lock().seats.remove(&request);
    }

    fn handle(self: &Arc<Desk>, event: Event) {
        let mut messages = Vec::new();
        {
            let (mut state, now) = self.at_once();
            state.handle(event, now, &mut messages);
            self.set_timer(&mut state);
        }
        self.send(messages);
    }

    /// Sends messages to requests. The lock must not be held.
    fn send(self: &Arc<Desk>, messages: Vec<Message>) {
        for message in messages {
            match message {
                // Sending fails only if the request is gone. Its turn is then dropped here.
                Message::Free(to) => drop(to.send(Call::Free)),
                Message::Start { node, to, stage } => {
                    let turn = Turn { desk: self.clone(), node };
                    let call = Call::Run { stage, device: self.device(node), turn };
                    if let Some(to) = to {
                        drop(to.send(call));
                    }
                }
            }
        }
    }

    /// Sets a timer for the time at which the admission wants to be called, unless an earlier one
    /// is set.
    fn set_timer(self: &Arc<Desk>, state: &mut State) {
        let Some(at) = state.admission.wake_at() else { return };
        if state.wake.is_some_and(|set| set <= at.0) {
            return;
        }
        // There is no runtime while the daemon stops; there are no requests then, either.
        let Ok(runtime) = Handle::try_current() else { return };
        state.wake = Some(at.0);
        let (desk, until) = (Arc::downgrade(self), self.started + Duration::from_nanos(at.0));
        runtime.spawn(async move {
            tokio::time::sleep_until(until.into()).await;
            if let Some(desk) = desk.upgrade() {
                {
                    let mut state = desk.lock();
                    state.wake = state.wake.filter(|set| *set != at.0);
                }
                desk.handle(Event::Tick);
            }
        });
    }
}

impl State {
    /// Handles an event and what follows from it. Returns the decision about an arrival.
    fn handle(&mut self, event: Event, now: Nanos, messages: &mut Vec<Message>) -> Option<Explanation> {
        let mut decision = None;
        let mut actions: VecDeque<Action> = self.admission.handle(event, now).into();
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Admitted(explanation) => decision = Some(*explanation),
                Action::Rejected(explanation) => {
                    self.seats.remove(&explanation.request);
                    decision = Some(*explanation);
                }
                // The engine itself loads constants when a run needs them, and evicts others, so
                // the load counts as done.
                Action::Load { node, function } => {
                    actions.extend(self.admission.handle(Event::Loaded { node, function }, now));
                }
                Action::Unload { .. } => {}
                Action::Start { node, batch } => {
                    // Stages of the daemon's graphs are not batched: each has its own turn.
                    debug_assert_eq!(batch.len(), 1, "no stage is batched");
                    messages.extend(batch.into_iter().map(|(request, stage)| Message::Start {
                        node,
                        to: self.seats.get(&request).cloned(),
                        stage,
                    }));
                }
                // A request evaluates its conditions by itself as soon as their tensors exist.
                Action::Decide { .. } => {}
                // The run of the request itself counts whether it was late.
                Action::Finished { request, .. } => drop(self.seats.remove(&request)),
                Action::Failed { request, .. } => messages.extend(self.seats.remove(&request).map(Message::Free)),
            }
        }
        decision
    }
}

fn arrival(request: RequestId, graph: GraphId, limits: Limits, now: Nanos) -> Arrival {
    let after = |after: Duration| {
        let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Nanos(now.0.saturating_add(ns))
    };
    Arrival { request, graph, deadline: limits.deadline.map(after), price_max: limits.price_max }
}

#[cfg(test)]
pub(super) mod tests;
