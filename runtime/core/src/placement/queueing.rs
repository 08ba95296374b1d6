//! The pool's requests: how each arrives, waits and ends.

use super::event::{FunctionId, GroupId, PoolAction, RejectReason, RequestEnd, RequestId, RequestSpec};
use super::pool::Pool;
use super::requests::{Place, Request, RequestSlot};
use super::state::State;
use crate::ids::{DeviceId, Nanos};

/// A request that has left its queue.
pub(super) struct Left {
    was_first: bool,
    pub(super) function: FunctionId,
    pub(super) group: GroupId,
}

impl Pool {
    pub(super) fn reject_waiting(&mut self, id: FunctionId, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        let urgent = self.urgent.iter().chain(&self.parked).filter(|request| self.is_waiting(**request));
        let urgent = urgent.filter_map(|request| self.state.requests.find(*request));
        let urgent = urgent.filter(|request| self.state.requests[*request].spec.function == id);
        let all: Vec<RequestSlot> = self.state.function(id).waiting.iter().chain(urgent).collect();
        for request in all {
            self.withdraw(request);
            self.reject(request, reason, actions);
        }
    }

    pub(super) fn arrive(&mut self, id: RequestId, spec: RequestSpec, actions: &mut Vec<PoolAction>) {
        self.sequence += 1;
        let order = (spec.arrival, self.sequence);
        let place = Place::Announced;
        let request = Request { id, spec, order, place, attempts: 0, cancelled: false, grounds: None, work_ns: 0 };
        let request = self.state.requests.insert(request);
        if let Some(deadline) = spec.deadline {
            self.deadlines.insert((deadline, id));
        }
        let is_future = spec.arrival > self.now;
        if is_future {
            self.announced.insert((spec.arrival, self.sequence, id));
        }
        if spec.deadline.is_some_and(|deadline| deadline <= self.now) {
            self.reject(request, RejectReason::DeadlinePassed, actions);
        } else if !is_future || (self.policy.sees_future() && spec.takes_slot()) {
            self.enter(request, actions);
        }
    }

    /// Puts a request into its queue, or rejects it.
    pub(super) fn enter(&mut self, request: RequestSlot, actions: &mut Vec<PoolAction>) {
        let spec = self.state.requests[request].spec;
        if let Some(reason) = self.reason_against(&spec) {
            self.reject(request, reason, actions);
            return;
        }
        self.enqueue(request);
        if spec.takes_slot() {
            self.policy.arrived(&self.state, spec.function);
        }
    }

    fn reason_against(&self, spec: &RequestSpec) -> Option<RejectReason> {
        let Some(function) = self.state.functions.get(spec.function) else {
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
    fn enqueue(&mut self, slot: RequestSlot) {
        let request = &mut self.state.requests[slot];
        request.place = Place::Waiting;
        let (id, order, spec) = (request.id, request.order, request.spec);
        if !spec.takes_slot() {
            self.urgent.push(id);
            return;
        }
        let function_id = spec.function;
        let function = self.state.functions.get_mut(function_id).expect("the function was checked");
        let (is_first, group) = (function.waiting.insert(order, slot), function.group);
        self.state.group_mut(group).waiting += 1;
        self.state.waiting += 1;
        self.state.idle.set(function_id, false);
        if is_first {
            self.policy.function_changed(&self.state, function_id);
        }
        self.policy.group_changed(&self.state, group);
    }

    /// Takes a request that is not in flight out of its queue.
    pub(super) fn withdraw(&mut self, slot: RequestSlot) {
        if let Some(left) = self.unqueue(slot) {
            self.state.refresh_function(left.function);
            self.tell(left);
        }
    }

    /// Takes a request out of its queue, without telling the policy. `None` if it was in no queue of
    /// a function.
    pub(super) fn unqueue(&mut self, slot: RequestSlot) -> Option<Left> {
        self.forget_times(slot);
        let request = &self.state.requests[slot];
        if request.place != Place::Waiting || !request.spec.takes_slot() {
            // Lists of requests without a queue are cleaned when they are read.
            return None;
        }
        let (order, id) = (request.order, request.spec.function);
        let function = self.state.functions.get_mut(id).expect("functions with queues are in the pool");
        let left = Left { was_first: function.waiting.remove(order), function: id, group: function.group };
        self.state.group_mut(left.group).waiting -= 1;
        self.state.waiting -= 1;
        Some(left)
    }

    /// Tells the policy that a request has left its queue.
    pub(super) fn tell(&mut self, left: Left) {
        if left.was_first {
            self.policy.function_changed(&self.state, left.function);
        }
        self.policy.group_changed(&self.state, left.group);
    }

    /// Removes a request from the lists of deadlines and announced arrivals.
    pub(super) fn forget_times(&mut self, slot: RequestSlot) {
        let request = &self.state.requests[slot];
        if let Some(deadline) = request.spec.deadline {
            self.deadlines.remove(&(deadline, request.id));
        }
        if request.spec.arrival > self.now {
            self.announced.remove(&(request.spec.arrival, request.order.1, request.id));
        }
    }

    /// Ends a request that is in no queue and not in flight.
    pub(super) fn reject(&mut self, slot: RequestSlot, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        self.forget_times(slot);
        actions.push(PoolAction::Reject { request: self.state.requests[slot].id, reason });
        self.state.requests.remove(slot);
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        let Some(slot) = self.state.requests.find(id) else { return };
        let request = &mut self.state.requests[slot];
        request.cancelled = true;
        if !matches!(request.place, Place::InFlight(_)) {
            self.withdraw(slot);
            self.state.requests.remove(slot);
        }
    }

    pub(super) fn finish(&mut self, id: RequestId, device: DeviceId, end: RequestEnd, actions: &mut Vec<PoolAction>) {
        let Some(slot) = self.state.requests.find(id) else { return };
        let request = &self.state.requests[slot];
        if request.place != Place::InFlight(device) {
            return;
        }
        let (function, attempts) = (request.spec.function, request.attempts);
        self.release(slot);
        let too_many = RejectReason::TooManyAttempts { attempts };
        match end {
            RequestEnd::Done { service, loaded } => {
                self.state.requests.remove(slot);
                self.learn(function, device, service, loaded);
            }
            RequestEnd::Failed { retryable: false } => self.state.requests.remove(slot),
            RequestEnd::Refused { until } => {
                self.suspend(function, device, until);
                self.retry_or(slot, too_many, actions);
            }
            RequestEnd::Failed { retryable: true } => self.retry_or(slot, too_many, actions),
        }
    }

    fn learn(&mut self, id: FunctionId, device: DeviceId, service: Nanos, loaded: Option<Nanos>) {
        let kind = self.state.member(device).spec.kind;
        let Some(function) = self.state.functions.get_mut(id) else { return };
        if let Some(loaded) = loaded {
            function.times.learn_reload(kind, loaded);
        }
        // No index of a policy depends on reload times.
        if function.times.learn_service(kind, service) && !function.waiting.is_empty() {
            self.policy.function_changed(&self.state, id);
        }
    }

    /// Takes a request off its device. It is in no queue afterwards.
    pub(super) fn release(&mut self, slot: RequestSlot) {
        let request = &mut self.state.requests[slot];
        let Place::InFlight(device_id) = request.place else { unreachable!("only requests in flight are released") };
        (request.place, request.grounds) = (Place::Announced, None);
        let (spec, function_id, work_ns) = (request.spec, request.spec.function, request.work_ns);
        if spec.takes_slot()
            && let Some(function) = self.state.functions.get_mut(function_id)
        {
            function.in_flight -= 1;
            let group = function.group;
            self.state.refresh_function(function_id);
            self.state.group_mut(group).in_flight -= 1;
            self.policy.group_changed(&self.state, group);
        }
        let State { devices, requests, .. } = &mut self.state;
        let Some(device) = devices.get_mut(usize::from(device_id.0)).and_then(Option::as_mut) else { return };
        let at = device.in_flight.iter().position(|other| *other == slot).expect("it is in flight there");
        device.in_flight.remove(at);
        let was_first = device.in_flight[..at].iter().all(|other| requests[*other].spec.class != spec.class);
        device.work_mut(spec.class).end(self.now, work_ns, was_first);
        device.taken -= u32::from(spec.takes_slot());
        self.refresh(device_id);
    }

    /// Queues a released request again if it may be retried. Otherwise rejects it.
    pub(super) fn retry_or(&mut self, slot: RequestSlot, reason: RejectReason, actions: &mut Vec<PoolAction>) {
        let request = &self.state.requests[slot];
        let (id, spec) = (request.id, request.spec);
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
            self.enqueue(slot);
            return;
        };
        self.reject(slot, reason, actions);
    }
}
