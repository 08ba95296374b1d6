//! The pool: how each event changes its state.

use super::config::PoolConfig;
use super::estimate::Times;
use super::event::{DeviceSpec, FunctionId, FunctionSpec, PoolAction, PoolEvent, RejectReason, RequestId, Suits};
use super::policies::Policy;
use super::requests::Place;
use super::state::{Device, Function, Group, State};
use super::suspension::Suspensions;
use crate::ids::{DeviceId, Nanos};
use std::collections::BTreeSet;

/// All devices, and one queue in front of them. See the [module](super).
pub struct Pool {
    pub(super) config: PoolConfig,
    pub(super) policy: Box<dyn Policy>,
    pub(super) state: State,
    /// Announced requests whose arrival is in the future.
    pub(super) announced: BTreeSet<(Nanos, u64, RequestId)>,
    /// Deadlines of requests that are not in flight.
    pub(super) deadlines: BTreeSet<(Nanos, RequestId)>,
    /// Real-time requests to dispatch. May name requests that have ended.
    pub(super) urgent: Vec<RequestId>,
    /// Real-time requests whose devices are all draining. They wait for a device.
    pub(super) parked: Vec<RequestId>,
    pub(super) suspensions: Suspensions,
    pub(super) sequence: u64,
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
            PoolEvent::SuitsChanged { function, suits } => self.change_suits(function, suits),
            PoolEvent::FunctionRemoved { function } => self.remove_function(function, actions),
            PoolEvent::GroupWeight { group, weight } => {
                self.state.groups.get_or_default(group).weight = weight;
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
        self.state.waiting + self.urgent.iter().chain(&self.parked).filter(|id| self.is_waiting(**id)).count()
    }

    pub(super) fn is_waiting(&self, id: RequestId) -> bool {
        self.state.requests.find(id).is_some_and(|request| self.state.requests[request].place == Place::Waiting)
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
            let request = self.state.requests.find(request);
            if let Some(request) = request.filter(|slot| self.state.requests[*slot].place == Place::Announced) {
                self.enter(request, actions);
            }
        }
        while let Some(&(_, request)) = self.deadlines.first().filter(|first| first.0 <= now) {
            let request = self.state.requests.find(request).expect("a request with a deadline is in the pool");
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
        self.state.count_kind(spec.kind, true);
        self.state.with_room.set(id, spec.memory_bytes > 0);
        self.refresh(id);
        self.urgent.append(&mut self.parked);
    }

    /// Recomputes the classes of all functions after a device with a new memory size was added.
    fn class_again(&mut self) {
        let functions: Vec<FunctionId> = self.state.functions.keys().collect();
        for function in functions {
            self.class_function_again(function);
        }
    }

    pub(super) fn enter_class(&mut self, id: FunctionId) {
        let suits = self.suits_now(id);
        let function = self.state.functions.get_mut(id).expect("the function is in the pool");
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
        requests.sort_by_key(|request| self.state.requests[*request].order);
        let resident: Vec<FunctionId> = device.resident.iter().collect();
        resident.into_iter().for_each(|function| self.state.set_resident(id, function, false));
        // The device leaves the pool first, so that its requests are not queued for it again.
        let device = self.state.devices[usize::from(id.0)].take().expect("looked up above");
        self.state.with_room.set(id, false);
        self.state.count_kind(device.spec.kind, false);
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
        let functions: Vec<FunctionId> = functions.map(|(id, _)| id).collect();
        for function in functions {
            self.reject_waiting(function, RejectReason::NoDevice, actions);
        }
    }

    fn add_function(&mut self, id: FunctionId, spec: FunctionSpec) {
        assert!(!self.state.functions.contains(id), "function {} is not in the pool yet", id.0);
        let FunctionSpec { group, constant_bytes, suits, expected } = spec;
        self.state.groups.get_or_default(group).functions += 1;
        let function = Function::new(group, constant_bytes, suits, Times::new(&expected));
        self.state.functions.insert(id, function);
        self.state.refresh_function(id);
        self.enter_class(id);
        self.policy.weights_changed(&self.state);
        self.policy.function_changed(&self.state, id);
    }

    fn change_suits(&mut self, id: FunctionId, suits: Suits) {
        let Some(function) = self.state.functions.get_mut(id) else { return };
        function.suits = suits;
        self.class_function_again(id);
        // Requests that take no slot may have waited for a device.
        self.urgent.append(&mut self.parked);
    }

    fn remove_function(&mut self, id: FunctionId, actions: &mut Vec<PoolAction>) {
        if !self.state.functions.contains(id) {
            return;
        }
        self.reject_waiting(id, RejectReason::FunctionRemoved, actions);
        let resident: Vec<DeviceId> = self.state.function(id).resident.iter().collect();
        for device in resident {
            self.state.set_resident(device, id, false);
        }
        self.leave_class(id);
        let function = self.state.functions.remove(id).expect("looked up above");
        self.state.refresh_function(id);
        let group = self.state.group_mut(function.group);
        group.functions -= 1;
        // The function's requests in flight no longer count for the group.
        group.in_flight -= function.in_flight;
        if group.functions == 0 && group.weight == Group::default().weight {
            self.state.groups.remove(function.group);
        }
        self.policy.weights_changed(&self.state);
        self.policy.function_changed(&self.state, id);
    }
}
