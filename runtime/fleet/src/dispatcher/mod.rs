//! Passes requests through the pool, which has one queue for all devices.
//!
//! The pool ([`atoll_core::placement`]) only decides. The dispatcher sends it events, submits
//! requests to the engines that it chooses, and keeps each request until it is answered. If the
//! device of a request is lost, or the executor that runs it there, the request is submitted to
//! another device once.
//!
//! # Invariants
//!
//! - Every reply is called exactly once, with no lock held.
//! - The answer of an attempt counts only while the request is in its attempt: a late answer of a
//!   lost device is ignored.

mod answers;
mod chains;
mod record;
mod requests;
mod residency;
mod steps;
mod timer;

use self::chains::Chains;
pub(crate) use self::record::POOL;
use self::record::Recorder;
pub(crate) use self::requests::POOLED;
pub use self::requests::may_retry;
use self::requests::{Requests, Waiting};
use self::steps::{Step, Steps};
use self::timer::Timer;
use crate::decisions::DecisionCounts;
use crate::inference::FleetStatus;
use crate::member::Member;
use atoll_core::placement::{
    DeviceKind, DeviceSpec, FunctionId, FunctionSpec, Grounds, GroupId, Pool, PoolAction, PoolConfig, PoolEvent,
    RejectReason, RequestId, RequestSpec, Suits, Why,
};
use atoll_core::scaling::Decision;
use atoll_core::{Class, DeviceId, Nanos, Tenant};
use atoll_engine::{
    ChainRequest, FunctionKey, FunctionName, InvocationId, InvocationResult, InvokeError, Reply, StringThreads,
    TraceBatch,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Best-effort requests in flight on a device: with two, the next one is ready when one ends.
pub const SLOTS: u32 = 2;

/// Largest number of requests that wait for a device.
const WAITING_MAX: usize = 1 << 16;
/// How often a request is submitted to a device at most, if devices refuse it without running it. A
/// device refuses a function once a second, so a request can wait a minute for another device.
const ATTEMPTS_MAX: u32 = 64;

/// The answer of an engine.
type Answer = Result<InvocationResult, InvokeError>;

/// The pool with the requests in it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatcher(Arc<Inner>);

struct Inner {
    members: Arc<[Box<dyn Member>]>,
    started: Instant,
    state: Mutex<State>,
    timer: Timer,
    /// Threads that submit requests with strings: their engines encode these meanwhile. Other threads
    /// must not, since one that answers is that of an engine.
    encoding: StringThreads,
}

struct State {
    pool: Pool,
    requests: Requests,
    functions: HashMap<FunctionId, Function>,
    /// The functions in the pool by name.
    ids: HashMap<FunctionKey, FunctionId>,
    groups: HashMap<String, GroupId>,
    devices: Vec<DeviceState>,
    chains: Chains,
    decisions: DecisionCounts,
    recorder: Recorder,
}

/// The properties of a function that the dispatcher needs.
struct Function {
    key: FunctionKey,
    /// The devices that hold it.
    devices: Vec<DeviceId>,
    /// Until when devices that gave back a request of it get no more.
    refused: HashMap<DeviceId, Nanos>,
    class: Class,
    /// Whether its engine batches requests.
    is_batched: bool,
    queue_capacity: usize,
}

/// The state of a device in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether it gets no new requests.
    pub is_drained: bool,
    /// Whether it failed permanently.
    pub is_lost: bool,
    /// Number of requests that the pool dispatched to it and that are not answered.
    pub in_flight: u64,
    /// Number of all requests that the pool dispatched to it.
    pub dispatched: u64,
    /// Number of requests that were taken back because the device or its executor was lost, or it
    /// refused them.
    pub moved: u64,
}

/// A function to add to the pool.
pub(crate) struct Admitted<'a> {
    pub(crate) tenant: &'a Tenant,
    pub(crate) name: &'a str,
    pub(crate) class: Class,
    pub(crate) is_batched: bool,
    pub(crate) queue_capacity: usize,
    pub(crate) constant_bytes: u64,
    /// The devices that hold it, and whether its constants are in their memory.
    pub(crate) devices: &'a [(DeviceId, bool)],
}

impl Dispatcher {
    /// A pool of these devices.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn new(members: Arc<[Box<dyn Member>]>, config: PoolConfig) -> io::Result<Dispatcher> {
        let config = PoolConfig { waiting_max: WAITING_MAX, attempts_max: ATTEMPTS_MAX, ..config };
        let mut pool = Pool::new(config);
        let mut kinds = Vec::new();
        for (device, member) in ids().zip(&*members) {
            let kind = member.kind();
            let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            let spec = DeviceSpec { kind: DeviceKind(at as u16), slots: SLOTS, memory_bytes: member.memory_bytes() };
            pool.handle(Nanos(0), PoolEvent::DeviceAdded { device, spec }, &mut Vec::new());
        }
        let state = State {
            pool,
            requests: Requests::default(),
            functions: HashMap::new(),
            ids: HashMap::new(),
            groups: HashMap::new(),
            devices: vec![DeviceState::default(); members.len()],
            chains: Chains::new(members.len()),
            decisions: DecisionCounts::default(),
            recorder: Recorder::new(monotonic(), config.policy.name),
        };
        let (started, state, timer) = (Instant::now(), Mutex::new(state), Timer::default());
        let inner = Inner { members, started, state, timer, encoding: StringThreads::default() };
        inner.encoding.start()?;
        let dispatcher = Dispatcher(Arc::new(inner));
        dispatcher.0.timer.start(Arc::downgrade(&dispatcher.0), dispatcher.0.started)?;
        Ok(dispatcher)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Adds a function.
    pub(crate) fn add(&self, function: FunctionId, admitted: &Admitted<'_>) {
        let Admitted { tenant, name, class, is_batched, queue_capacity, constant_bytes, devices: holders } = *admitted;
        self.with(|state, now, steps| {
            let groups = state.groups.len() as u32;
            let group = *state.groups.entry(tenant.to_string()).or_insert(GroupId(groups));
            let key = FunctionKey { tenant: tenant.clone(), name: name.into() };
            state.ids.insert(key.clone(), function);
            let on: Vec<DeviceId> = holders.iter().map(|(device, _)| *device).collect();
            let (devices, refused) = (on.clone(), HashMap::new());
            let known = Function { key, devices, refused, class, is_batched, queue_capacity };
            state.functions.insert(function, known);
            let named = FunctionName { tenant: tenant.to_string(), name: name.into(), class, nodes: Vec::new() };
            state.recorder.add_function(function, named);
            let suits = Suits::Only(on);
            let spec = FunctionSpec { group, constant_bytes, suits, expected: Vec::new() };
            state.handle(now, PoolEvent::FunctionAdded { function, spec }, steps);
            for &(device, _) in holders.iter().filter(|(_, is_resident)| *is_resident) {
                state.handle(now, PoolEvent::Resident { device, function }, steps);
            }
        });
    }

    /// Sets the devices of a function, of which these have its constants since now.
    pub(crate) fn set_devices(&self, function: FunctionId, devices: &[DeviceId], resident: &[DeviceId]) {
        self.with(|state, now, steps| {
            if let Some(known) = state.functions.get_mut(&function) {
                known.devices = devices.to_vec();
            }
            let suits = Suits::Only(devices.to_vec());
            state.handle(now, PoolEvent::SuitsChanged { function, suits }, steps);
            for &device in resident {
                state.handle(now, PoolEvent::Resident { device, function }, steps);
            }
        });
    }

    /// Removes a function: its waiting requests are answered with [`InvokeError::Unloaded`].
    pub(crate) fn remove(&self, function: FunctionId) {
        self.with(|state, now, steps| {
            state.handle(now, PoolEvent::FunctionRemoved { function }, steps);
            if let Some(removed) = state.functions.remove(&function) {
                state.ids.remove(&removed.key);
            }
            state.recorder.remove_function(function);
        });
    }

    /// Submits a request. The reply is called exactly once.
    pub(crate) fn submit(&self, function: FunctionId, request: ChainRequest, reply: Reply) -> InvocationId {
        let id = self.with(|state, now, steps| state.arrive(now, function, request, reply, steps));
        InvocationId(POOLED.first_id() + id.0)
    }

    /// Cancels a request.
    pub(crate) fn cancel(&self, id: InvocationId) {
        let request = RequestId(id.0 - POOLED.first_id());
        self.with(|state, now, steps| state.cancel(now, request, steps));
    }

    /// The device of a request in flight.
    pub(crate) fn place_of(&self, id: InvocationId) -> Option<DeviceId> {
        let (state, id) = (self.lock(), RequestId(id.0 - POOLED.first_id()));
        state.requests.place_of(id).or_else(|| state.chains.place_of(id))
    }

    /// Stops giving requests to a device, or starts again. Requests that it has finish there.
    pub(crate) fn set_drained(&self, device: DeviceId, is_drained: bool) {
        self.with(|state, now, steps| {
            state.devices[usize::from(device.0)].is_drained = is_drained;
            let event = match is_drained {
                true => PoolEvent::DeviceDraining { device },
                false => PoolEvent::DeviceResumed { device },
            };
            state.handle(now, event, steps);
        });
    }

    /// Records that a request was submitted to a device without the pool, and why.
    pub(crate) fn note_given(&self, function: FunctionId, device: DeviceId, why: Why) {
        self.with(|state, now, _| {
            let zero = Nanos(0);
            let grounds = Grounds { why, reload: zero, service: zero, arrived: now, waiting: state.pool.waiting() };
            state.recorder.note(now, None, function, device, grounds);
            state.decisions.note_placed(why);
        });
    }

    /// Records a decision of the autoscaler about the instances of a function.
    pub(crate) fn note_scaled(&self, function: FunctionId, decision: &Decision) {
        self.with(|state, now, _| state.recorder.note_scaled(now, function, decision));
    }

    /// The placements recorded from position `from` on; from now on if it is `None`.
    pub(crate) fn trace(&self, from: Option<u64>) -> TraceBatch {
        self.lock().recorder.batch(from)
    }

    /// The state of each device and of the queue, and the decisions so far.
    pub(crate) fn status(&self, policy: &'static str) -> FleetStatus {
        let state = self.lock();
        let (mut devices, waiting, decisions) = (state.devices.clone(), state.requests.waiting(), state.decisions);
        // The pool learns of a loss with its next event.
        for (id, device) in ids().zip(&mut devices) {
            device.is_lost |= self.0.member(id).is_lost();
        }
        FleetStatus { policy: Some(policy), waiting, devices, decisions }
    }

    /// Changes the state, and then carries out the resulting steps without the lock.
    fn with<T>(&self, change: impl FnOnce(&mut State, Nanos, &mut Vec<Step>) -> T) -> T {
        self.with_state(self.lock(), change)
    }

    fn with_state<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        change: impl FnOnce(&mut State, Nanos, &mut Vec<Step>) -> T,
    ) -> T {
        let mut steps = Vec::new();
        let answer = {
            let now = self.0.now();
            self.0.note_losses(&mut state, now, &mut steps);
            self.0.note_residency(&mut state, now, &mut steps);
            let answer = change(&mut state, now, &mut steps);
            self.0.timer.set(state.pool.wakeup());
            drop(state);
            answer
        };
        Steps::run(self, steps);
        answer
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.timer.close();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn member(&self, device: DeviceId) -> &dyn Member {
        &*self.members[usize::from(device.0)]
    }
}

impl State {
    fn handle(&mut self, now: Nanos, event: PoolEvent, steps: &mut Vec<Step>) {
        let mut actions = Vec::new();
        self.pool.handle(now, event, &mut actions);
        for action in actions {
            self.act(now, action, steps);
        }
    }

    fn arrive(
        &mut self,
        now: Nanos,
        function: FunctionId,
        request: ChainRequest,
        reply: Reply,
        steps: &mut Vec<Step>,
    ) -> RequestId {
        let id = self.requests.next_id();
        let Some(known) = self.functions.get(&function) else {
            steps.push(Step::Reply { reply, answer: Err(InvokeError::UnknownFunction) });
            return id;
        };
        let (class, is_batched) = (request.class.unwrap_or(known.class), known.is_batched);
        let capacity = known.queue_capacity;
        // The others do not wait here: engines form batches, and preempt for real-time requests.
        if class == Class::BestEffort && !is_batched && self.requests.waiting_for(function) >= capacity {
            steps.push(Step::Reply { reply, answer: Err(InvokeError::QueueFull { capacity }) });
            return id;
        }
        let deadline = request
            .deadline
            .map(|after| Nanos(now.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))));
        let request = ChainRequest { class: Some(class), ..request };
        let may_retry = requests::may_retry(&request);
        self.requests.insert(id, Waiting { function, request, reply, deadline });
        let spec = RequestSpec { function, class, is_batched, arrival: now, deadline, may_retry };
        self.handle(now, PoolEvent::Arrived { request: id, spec }, steps);
        id
    }

    fn cancel(&mut self, now: Nanos, id: RequestId, steps: &mut Vec<Step>) {
        if let Some((device, invocation)) = self.chains.cancel(id) {
            return steps.push(Step::Cancel { device, invocation });
        }
        // A request in flight is answered by its engine, once none of its launches is on the
        // device.
        match self.requests.cancel(id) {
            requests::Cancelled::Waiting(reply) => {
                steps.push(Step::Reply { reply, answer: Err(InvokeError::Cancelled) });
            }
            requests::Cancelled::InFlight { device, invocation } => steps.push(Step::Cancel { device, invocation }),
            requests::Cancelled::Handing => {}
            requests::Cancelled::Unknown => return,
        }
        self.handle(now, PoolEvent::Cancelled { request: id }, steps);
    }

    fn act(&mut self, now: Nanos, action: PoolAction, steps: &mut Vec<Step>) {
        match action {
            PoolAction::Dispatch { request, device } => {
                let state = &mut self.devices[usize::from(device.0)];
                state.in_flight += 1;
                state.dispatched += 1;
                if let (Some(grounds), Some(function)) = (self.pool.grounds(request), self.requests.function(request)) {
                    self.recorder.note(now, Some(request), function, device, grounds);
                    self.decisions.note_placed(grounds.why);
                }
                let has_other = self.requests.function(request).is_some_and(|it| self.has_other(now, it, device));
                let (attempt, request, may_move) = self.requests.begin(request, device, now);
                steps.push(Step::Submit { attempt, request, may_move: may_move && has_other });
            }
            PoolAction::Reject { request, reason } => {
                self.decisions.note_rejected(reason);
                if let Some((reply, error)) = self.requests.remove(request) {
                    let is_of_device = matches!(
                        reason,
                        RejectReason::NoDevice | RejectReason::DeviceLost { .. } | RejectReason::TooManyAttempts { .. }
                    );
                    let error = error.filter(|_| is_of_device).unwrap_or_else(|| refusal(reason));
                    steps.push(Step::Reply { reply, answer: Err(error) });
                }
            }
            PoolAction::Load { function, device } => {
                steps.extend(self.constants(device, function, true));
            }
            // Before the loads that need the memory.
            PoolAction::Unload { function, device } => {
                self.constants(device, function, false).into_iter().for_each(|step| steps.insert(0, step));
            }
            PoolAction::Move { device, from, to } => tracing::debug!(?device, ?from, ?to, "moved"),
        }
    }
}

/// The current time on the clock of trace records.
fn monotonic() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The ids of devices in order.
fn ids() -> impl Iterator<Item = DeviceId> {
    (0..POOLED.0).map(DeviceId)
}

/// The answer to a request that the pool rejects.
fn refusal(reason: RejectReason) -> InvokeError {
    match reason {
        RejectReason::UnknownFunction => InvokeError::UnknownFunction,
        RejectReason::FunctionRemoved => InvokeError::Unloaded,
        RejectReason::DeadlinePassed => InvokeError::DeadlineExceeded,
        RejectReason::QueueFull => InvokeError::QueueFull { capacity: WAITING_MAX },
        RejectReason::TooLarge { .. } => InvokeError::Device(reason.to_string()),
        RejectReason::NoDevice | RejectReason::DeviceLost { .. } | RejectReason::TooManyAttempts { .. } => {
            InvokeError::DeviceLost(reason.to_string())
        }
    }
}
