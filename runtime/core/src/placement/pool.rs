//! The pool: how each event changes its state.

use super::config::PoolConfig;
use super::estimate::Times;
use super::event::{
    DeviceSpec, FunctionId, FunctionSpec, PoolAction, PoolEvent, RejectReason, RequestEnd, RequestId, RequestSpec,
};
use super::policies::Policy;
use super::state::{Device, Function, Group, Place, Request, State};
use super::suspension::Suspensions;
use crate::ids::{Class, DeviceId, Nanos};
use std::collections::BTreeSet;

/// All devices, and one queue in front of them. See the [module](super).
pub struct Pool {
    pub(super) config: PoolConfig,
    pub(super) policy: Box<dyn Policy>,
    pub(super) state: State,
    /// Announced requests whose arrival is in the future.
    announced: BTreeSet<(Nanos, u64, RequestId)>,
    /// Deadlines of requests that are not in flight.
    deadlines: BTreeSet<(Nanos, RequestId)>,
    /// Real-time requests to dispatch. May name requests that have ended.
    pub(super) urgent: Vec<RequestId>,
    /// Real-time requests whose devices are all draining. They wait for a device.
    pub(super) parked: Vec<RequestId>,
    pub(super) suspensions: Suspensions,
    sequence: u64,
    pub(super) now: Nanos,
}

impl Pool {
    /// A pool without devices and functions.
    pub fn new(config: PoolConfig) -> Pool {
        Pool {
            policy: (config.policy.make)(&config.options),
            config,
            state: State::default(),
            announced: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            urgent: Vec::new(),
            parked: Vec::new(),
            suspensions: Suspensions::default(),
            sequence: 0,
            now: Nanos(0),
        }
    }

    /// Handles an event and appends the resulting actions. `now` must not decrease.
    pub fn handle(&mut self, now: Nanos, event: PoolEvent, actions: &mut Vec<PoolAction>) {
        self.note(now, event, actions);
        self.decide(now, actions);
    }

    /// Handles an event without placing waiting requests, so that several events of one moment are
    /// decided together. The caller must call [`Pool::decide`] after the last one.
    pub fn note(&mut self, now: Nanos, event: PoolEvent, actions: &mut Vec<PoolAction>) {
        self.advance(now, actions);
        match event {
            PoolEvent::DeviceAdded { device, spec } => self.add_device(device, spec),
            PoolEvent::DeviceDraining { device } => self.drain(device, true),
            PoolEvent::DeviceResumed { device } => self.drain(device, false),
            PoolEvent::DeviceLost { device } => self.lose_device(device, actions),
            PoolEvent::FunctionAdded { function, spec } => self.add_function(function, spec),
            PoolEvent::FunctionRemoved { function } => self.remove_function(function, actions),
            PoolEvent::GroupWeight { group, weight } => {
                self.state.groups.entry(group).or_default().weight = weight;
                self.policy.weights_changed(&self.state);
            }
            PoolEvent::Arrived { request, spec } => self.arrive(request, spec, actions),
            PoolEvent::Cancelled { request } => self.cancel(request),
            PoolEvent::Finished { request, device, end } => self.finish(request, device, end, actions),
            PoolEvent::Resident { device, function } => self.state.set_resident(device, function, true),
            PoolEvent::Evicted { device, function } => self.state.set_resident(device, function, false),
            PoolEvent::Tick => {}
        }
    }

    /// When to send the next [`PoolEvent::Tick`] unless another event comes first: at the next
    /// deadline of a waiting request, the arrival of an announced one, the end of a suspension, or
    /// the time for which the policy asked.
    pub fn wakeup(&self) -> Option<Nanos> {
        let arrival = self.announced.first().map(|first| first.0);
        let deadline = self.deadlines.first().map(|first| first.0);
        let others = [self.suspensions.next_end(), self.policy.wakeup(self.now, &self.state)];
        arrival.into_iter().chain(deadline).chain(others.into_iter().flatten()).min()
    }

    /// The time of the last event.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of requests that wait in the pool. Announced requests do not count.
    pub fn waiting(&self) -> usize {
        let is_waiting = |id: &&RequestId| self.state.requests.get(id).is_some_and(|r| r.place == Place::Waiting);
        self.state.waiting + self.urgent.iter().chain(&self.parked).filter(is_waiting).count()
    }

    /// Requests in flight on a device; 0 if the device is not in the pool.
    pub fn in_flight(&self, device: DeviceId) -> usize {
        self.state.device(device).map_or(0, |device| device.in_flight.len())
    }

    /// Lets announced requests arrive and rejects those at their deadline.
    fn advance(&mut self, now: Nanos, actions: &mut Vec<PoolAction>) {
        assert!(now >= self.now, "time does not go back: {} ns after {} ns", now.0, self.now.0);
        self.now = now;
        self.end_suspensions(|end| end <= now);
        while let Some(&(_, _, request)) = self.announced.first().filter(|first| first.0 <= now) {
            self.announced.pop_first();
            if self.state.requests.get(&request).is_some_and(|request| request.place == Place::Announced) {
                self.enter(request, actions);
            }
        }
        while let Some(&(_, request)) = self.deadlines.first().filter(|first| first.0 <= now) {
            self.withdraw(request);
            self.reject(request, RejectReason::DeadlinePassed, actions);
        }
    }

    fn add_device(&mut self, id: DeviceId, spec: DeviceSpec) {
        assert!(spec.slots > 0, "device {} has at least one slot", id.0);
        assert!(self.state.device(id).is_none(), "device {} is not in the pool yet", id.0);
        let index = usize::from(id.0);
        if index >= self.state.devices.len() {
            self.state.devices.resize_with(index + 1, || None);
        }
        if self.state.classes.note_size(spec.memory_bytes) {
            self.class_again();
        }
        let classes = self.state.classes.of_device(id, spec.memory_bytes);
        for &class in &classes {
            self.state.classes.get_mut(class).members.set(id, true);
        }
        self.state.devices[index] = Some(Device::new(spec, classes));
        self.refresh(id);
        self.urgent.append(&mut self.parked);
    }

    /// Recomputes the classes of all functions after a device with a new memory size was added.
    fn class_again(&mut self) {
        let mut functions: Vec<FunctionId> = self.state.functions.keys().copied().collect();
        functions.sort_unstable();
        for function in functions {
            self.class_function_again(function);
        }
    }

    pub(super) fn enter_class(&mut self, id: FunctionId) {
        let suits = self.suits_now(id);
        let function = self.state.functions.get_mut(&id).expect("the function is in the pool");
        let (class, is_new) = self.state.classes.enter(&suits, function.constant_bytes);
        function.class = class;
        if !is_new {
            return;
        }
        for (index, device) in self.state.devices.iter_mut().enumerate() {
            let device_id = DeviceId(index as u16);
            let Some(device) = device.as_mut() else { continue };
            if self.state.classes.admits(class, device_id, device.spec.memory_bytes) {
                device.classes.push(class);
                let class = self.state.classes.get_mut(class);
                class.members.set(device_id, true);
                class.active.set(device_id, !device.draining);
                class.free.set(device_id, device.has_slot());
            }
        }
    }

    pub(super) fn leave_class(&mut self, id: FunctionId) {
        let class = self.state.function(id).class;
        for device in self.state.classes.leave(class).iter().flat_map(|members| members.iter()) {
            let device = self.state.device_mut(device).expect("members of a class are in the pool");
            device.classes.retain(|of_device| *of_device != class);
        }
    }

    fn drain(&mut self, id: DeviceId, draining: bool) {
        // Suspended devices may be needed now.
        self.end_suspensions(|_| true);
        let Some(device) = self.state.device_mut(id) else { return };
        device.draining = draining;
        self.refresh(id);
        if !draining {
            self.urgent.append(&mut self.parked);
        }
    }

    /// Updates the device sets and the policy after a change of a device.
    pub(super) fn refresh(&mut self, device: DeviceId) {
        self.state.refresh(device);
        self.policy.device_changed(&self.state, device);
    }

    fn lose_device(&mut self, id: DeviceId, actions: &mut Vec<PoolAction>) {
        self.end_suspensions(|_| true);
        let Some(device) = self.state.device(id) else { return };
        let mut requests = device.in_flight.clone();
        requests.sort_by_key(|request| self.state.requests[request].order);
        for function in device.resident.clone() {
            self.state.set_resident(id, function, false);
        }
        // The device leaves the pool first, so that its requests are not queued for it again.
        let device = self.state.devices[usize::from(id.0)].take().expect("looked up above");
        for &class in &device.classes {
            let class = self.state.classes.get_mut(class);
            for set in [&mut class.members, &mut class.active, &mut class.free] {
                set.set(id, false);
            }
        }
        self.policy.device_changed(&self.state, id);
        for request in requests {
            self.release(request);
            let lost = RejectReason::DeviceLost { device: id };
            self.retry_or(request, lost, actions);
        }
        for class in device.classes {
            if self.state.classes.get(class).members.is_empty() {
                self.reject_class(class, actions);
            }
        }
    }

    /// Rejects the waiting requests of a class that has no devices.
    fn reject_class(&mut self, class: usize, actions: &mut Vec<PoolAction>) {
        let functions = self.state.functions.iter().filter(|(_, function)| function.class == class);
        let mut functions: Vec<FunctionId> = functions.map(|(id, _)| *id).collect();
        functions.sort_unstable();
        for function in functions {
            self.reject_waiting(function, RejectReason::NoDevice, actions);
        }
    }

    fn add_function(&mut self, id: FunctionId, spec: FunctionSpec) {
        assert!(!self.state.functions.contains_key(&id), "function {} is not in the pool yet", id.0);
        let FunctionSpec { group, constant_bytes, suits, expected } = spec;
        self.state.groups.entry(group).or_default().functions += 1;
        let function = Function::new(group, constant_bytes, suits, Times::new(&expected));
        self.state.functions.insert(id, function);
        self.enter_class(id);
        self.policy.weights_changed(&self.state);
        self.policy.function_changed(&self.state, id);
    }

    fn remove_function(&mut self, id: FunctionId, actions: &mut Vec<PoolAction>) {
        if !self.state.functions.contains_key(&id) {
            return;
        }
        self.reject_waiting(id, RejectReason::FunctionRemoved, actions);
        let resident: Vec<DeviceId> = self.state.function(id).resident.iter().collect();
        for device in resident {
            self.state.set_resident(device, id, false);
        }
        self.leave_class(id);
        let function = self.state.functions.remove(&id).expect("looked up above");
        let group = self.state.groups.get_mut(&function.group).expect("a function has a group");
        group.functions -= 1;
        // The function's requests in flight no longer count for the group.
        group.in_flight -= function.in_flight;
        if group.functions == 0 && group.weight == Group::default().weight {
            self.state.groups.remove(&function.group);
        }
        self.policy.weights_changed(&self.state);
        self.policy.function_changed(&self.state, id);
    }

    fn reject_waiting(&mut self, function: FunctionId, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        let queued: Vec<RequestId> = self.state.function(function).waiting.values().copied().collect();
        let urgent = self.urgent.iter().chain(&self.parked).copied().filter(|id| {
            self.state.requests.get(id).is_some_and(|r| r.spec.function == function && r.place == Place::Waiting)
        });
        let all: Vec<RequestId> = queued.into_iter().chain(urgent).collect();
        for request in all {
            self.withdraw(request);
            self.reject(request, reason, actions);
        }
    }

    fn arrive(&mut self, id: RequestId, spec: RequestSpec, actions: &mut Vec<PoolAction>) {
        self.sequence += 1;
        let order = (spec.arrival, self.sequence);
        let request = Request { spec, order, place: Place::Announced, attempts: 0, cancelled: false, grounds: None };
        let before = self.state.requests.insert(id, request);
        assert!(before.is_none(), "request {} arrives once", id.0);
        if let Some(deadline) = spec.deadline {
            self.deadlines.insert((deadline, id));
        }
        let is_future = spec.arrival > self.now;
        if is_future {
            self.announced.insert((spec.arrival, self.sequence, id));
        }
        if spec.deadline.is_some_and(|deadline| deadline <= self.now) {
            self.reject(id, RejectReason::DeadlinePassed, actions);
        } else if !is_future || (self.policy.sees_future() && spec.class == Class::BestEffort) {
            self.enter(id, actions);
        }
    }

    /// Puts a request into its queue, or rejects it.
    fn enter(&mut self, id: RequestId, actions: &mut Vec<PoolAction>) {
        let spec = self.state.requests[&id].spec;
        if let Some(reason) = self.reason_against(&spec) {
            self.reject(id, reason, actions);
            return;
        }
        self.enqueue(id);
        if spec.class == Class::BestEffort {
            self.policy.arrived(&self.state, spec.function);
        }
    }

    fn reason_against(&self, spec: &RequestSpec) -> Option<RejectReason> {
        let Some(function) = self.state.functions.get(&spec.function) else {
            return Some(RejectReason::UnknownFunction);
        };
        if self.state.waiting >= self.config.waiting_max {
            return Some(RejectReason::QueueFull);
        }
        if !self.state.classes.get(function.class).members.is_empty() {
            return None;
        }
        let devices = self.state.devices.iter().enumerate();
        let devices = devices.filter_map(|(id, device)| Some((DeviceId(id as u16), device.as_ref()?)));
        let suitable = devices.filter(|(id, _)| function.suits.contains(*id));
        Some(match suitable.map(|(_, device)| device.spec.memory_bytes).max() {
            None => RejectReason::NoDevice,
            Some(largest_bytes) => RejectReason::TooLarge { constant_bytes: function.constant_bytes, largest_bytes },
        })
    }

    /// Puts a new request, or one to be retried, into its queue.
    fn enqueue(&mut self, id: RequestId) {
        let request = self.state.requests.get_mut(&id).expect("only requests of the pool are queued");
        request.place = Place::Waiting;
        let (order, spec) = (request.order, request.spec);
        if spec.class == Class::RealTime {
            self.urgent.push(id);
            return;
        }
        let function = self.state.functions.get_mut(&spec.function).expect("the function was checked");
        function.waiting.insert(order, id);
        let is_head = function.waiting.first_key_value().is_some_and(|(first, _)| *first == order);
        let group = function.group;
        self.state.groups.get_mut(&group).expect("a function has a group").waiting += 1;
        self.state.waiting += 1;
        if is_head {
            self.policy.function_changed(&self.state, spec.function);
        }
        self.policy.group_changed(&self.state, group);
    }

    /// Takes a request that is not in flight out of its queue.
    pub(super) fn withdraw(&mut self, id: RequestId) {
        let request = &self.state.requests[&id];
        let (spec, order, place) = (request.spec, request.order, request.place);
        if let Some(deadline) = spec.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if spec.arrival > self.now {
            self.announced.remove(&(spec.arrival, order.1, id));
        }
        if place != Place::Waiting || spec.class == Class::RealTime {
            // Lists of real-time requests are cleaned when they are read.
            return;
        }
        let function = self.state.functions.get_mut(&spec.function).expect("functions with queues are in the pool");
        let is_head = function.waiting.first_key_value().is_some_and(|(first, _)| *first == order);
        function.waiting.remove(&order).expect("a waiting request is in the queue of its function");
        let group = function.group;
        self.state.groups.get_mut(&group).expect("a function has a group").waiting -= 1;
        self.state.waiting -= 1;
        if is_head {
            self.policy.function_changed(&self.state, spec.function);
        }
        self.policy.group_changed(&self.state, group);
    }

    /// Ends a request that is in no queue and not in flight.
    fn reject(&mut self, id: RequestId, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        let request = self.state.requests.remove(&id).expect("a request ends once");
        if let Some(deadline) = request.spec.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if request.spec.arrival > self.now {
            self.announced.remove(&(request.spec.arrival, request.order.1, id));
        }
        actions.push(PoolAction::Reject { request: id, reason });
    }

    fn cancel(&mut self, id: RequestId) {
        let Some(request) = self.state.requests.get_mut(&id) else { return };
        request.cancelled = true;
        if !matches!(request.place, Place::InFlight(_)) {
            self.withdraw(id);
            self.state.requests.remove(&id);
        }
    }

    fn finish(&mut self, id: RequestId, device: DeviceId, end: RequestEnd, actions: &mut Vec<PoolAction>) {
        let Some(request) = self.state.requests.get(&id) else { return };
        if request.place != Place::InFlight(device) {
            return;
        }
        let function = request.spec.function;
        self.release(id);
        match end {
            RequestEnd::Done { service, loaded } => {
                self.state.requests.remove(&id);
                self.learn(function, device, service, loaded);
            }
            RequestEnd::Failed { retryable: false } => {
                self.state.requests.remove(&id);
            }
            RequestEnd::Refused { until } => {
                self.suspend(function, device, until);
                let attempts = self.state.requests[&id].attempts;
                self.retry_or(id, RejectReason::TooManyAttempts { attempts }, actions);
            }
            RequestEnd::Failed { retryable: true } => {
                let attempts = self.state.requests[&id].attempts;
                self.retry_or(id, RejectReason::TooManyAttempts { attempts }, actions);
            }
        }
    }

    fn learn(&mut self, id: FunctionId, device: DeviceId, service: Nanos, loaded: Option<Nanos>) {
        let kind = self.state.member(device).spec.kind;
        let Some(function) = self.state.functions.get_mut(&id) else { return };
        function.times.learn_service(kind, service);
        if let Some(loaded) = loaded {
            function.times.learn_reload(kind, loaded);
        }
        if !function.waiting.is_empty() {
            self.policy.function_changed(&self.state, id);
        }
    }

    /// Takes a request off its device. It is in no queue afterwards.
    fn release(&mut self, id: RequestId) {
        let request = self.state.requests.get_mut(&id).expect("requests in flight are in the pool");
        let Place::InFlight(device_id) = request.place else { unreachable!("only requests in flight are released") };
        (request.place, request.grounds) = (Place::Announced, None);
        let (class, function) = (request.spec.class, request.spec.function);
        if class == Class::BestEffort
            && let Some(function) = self.state.functions.get_mut(&function)
        {
            function.in_flight -= 1;
            let group = function.group;
            self.state.groups.get_mut(&group).expect("a function has a group").in_flight -= 1;
            self.policy.group_changed(&self.state, group);
        }
        let now = self.now;
        let Some(device) = self.state.device_mut(device_id) else { return };
        let at = device.in_flight.iter().position(|other| *other == id).expect("it is in flight there");
        device.in_flight.swap_remove(at);
        if class == Class::BestEffort {
            device.taken -= 1;
        }
        if device.taken == 0 {
            device.busy_until = now;
        }
        if device.in_flight.len() == device.taken as usize {
            device.urgent_until = now;
        }
        self.refresh(device_id);
    }

    /// Queues a released request again if it may be retried. Otherwise rejects it.
    fn retry_or(&mut self, id: RequestId, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        let request = &self.state.requests[&id];
        let spec = request.spec;
        let reason = if !spec.may_retry || request.cancelled {
            reason
        } else if request.attempts >= self.config.attempts_max {
            RejectReason::TooManyAttempts { attempts: request.attempts }
        } else if spec.deadline.is_some_and(|deadline| deadline <= self.now) {
            RejectReason::DeadlinePassed
        } else if let Some(reason) = self.reason_against(&spec).filter(|reason| *reason != RejectReason::QueueFull) {
            reason
        } else {
            if let Some(deadline) = spec.deadline {
                self.deadlines.insert((deadline, id));
            }
            self.enqueue(id);
            return;
        };
        self.reject(id, reason, actions);
    }
}
