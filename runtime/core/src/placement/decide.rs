//! Dispatches requests: real-time requests at once, best-effort requests as the policy decides.

use super::event::{FunctionId, PoolAction, RequestId};
use super::grounds::{Grounds, Why};
use super::pool::Pool;
use super::state::{Place, Request, State};
use crate::ids::{Class, DeviceId, Nanos};

/// Devices that are compared for a real-time request: up to this many that hold its function, and
/// up to this many of all. Pools of this size are searched exhaustively.
const COMPARED: usize = 64;

impl Pool {
    /// Dispatches waiting requests, and appends loads and unloads of the policy.
    pub fn decide(&mut self, now: Nanos, actions: &mut Vec<PoolAction>) {
        assert!(now >= self.now, "time does not go back: {} ns after {} ns", now.0, self.now.0);
        self.now = now;
        self.dispatch_urgent(actions);
        self.policy.before(now, &self.state, actions);
        while let Some((request, device)) = self.policy.next(now, &self.state) {
            let request_state = &self.state.requests[&request];
            assert!(request_state.order.0 <= now, "a policy dispatches nothing before its arrival");
            let function = request_state.spec.function;
            assert!(self.state.free(function).contains(device), "a policy picks a suitable device with a free slot");
            self.policy.dispatched(now, &self.state, function, device);
            self.dispatch(request, device, actions);
        }
        while let Some(action) = self.policy.after(now, &self.state) {
            if let PoolAction::Load { function, device } = action {
                let known = self.state.function(function);
                let active = self.state.classes.get(known.class).active.contains(device);
                assert!(active && !known.resident.contains(device), "a policy loads onto active devices, once");
                self.state.set_resident(device, function, true);
            }
            actions.push(action);
        }
    }

    /// Why the device of a request in flight was chosen; `None` if it is not in flight.
    pub fn grounds(&self, request: RequestId) -> Option<Grounds> {
        self.state.requests.get(&request)?.grounds
    }

    fn dispatch_urgent(&mut self, actions: &mut Vec<PoolAction>) {
        for request in std::mem::take(&mut self.urgent) {
            let state = self.state.requests.get(&request).filter(|request| request.place == Place::Waiting);
            let Some(function) = state.map(|state| state.spec.function) else { continue };
            match fastest(self.now, &self.state, function) {
                Some(device) => self.dispatch(request, device, actions),
                None => self.parked.push(request),
            }
        }
    }

    fn dispatch(&mut self, id: RequestId, device_id: DeviceId, actions: &mut Vec<PoolAction>) {
        self.withdraw(id);
        let grounds = grounds(&self.state, &self.state.requests[&id], device_id);
        let request = self.state.requests.get_mut(&id).expect("only requests of the pool are dispatched");
        assert_eq!(request.place, Place::Waiting, "a request is on one device at a time");
        (request.place, request.grounds) = (Place::InFlight(device_id), Some(grounds));
        request.attempts += 1;
        let spec = request.spec;
        let function = self.state.function(spec.function);
        let expected =
            self.state.service(function, self.state.member(device_id)) + self.state.reload(function, device_id);
        let now = self.now;
        let device = self.state.device_mut(device_id).expect("a device of the class is in the pool");
        device.in_flight.push(id);
        let until = if spec.class == Class::RealTime { &mut device.urgent_until } else { &mut device.busy_until };
        *until = Nanos((*until).max(now).0.saturating_add(expected));
        if spec.class == Class::BestEffort {
            device.taken += 1;
            let function = self.state.functions.get_mut(&spec.function).expect("looked up above");
            function.in_flight += 1;
            let group = function.group;
            self.state.groups.get_mut(&group).expect("a function has a group").in_flight += 1;
            self.state.cursor = u32::from(device_id.0) + 1;
            self.policy.group_changed(&self.state, group);
        }
        self.state.set_resident(device_id, spec.function, true);
        self.refresh(device_id);
        actions.push(PoolAction::Dispatch { request: id, device: device_id });
    }
}

/// Why `device` was chosen for a request that is about to be dispatched.
fn grounds(state: &State, request: &Request, device: DeviceId) -> Grounds {
    let function = state.function(request.spec.function);
    let why = if request.attempts > 0 {
        Why::Again
    } else if request.spec.class == Class::RealTime {
        Why::RealTime
    } else if state.classes.get(function.class).members.len() == 1 {
        Why::Only
    } else if function.resident.contains(device) {
        Why::Holder
    } else if function.resident.is_empty() {
        Why::Load
    } else {
        Why::Replica
    };
    Grounds {
        why,
        reload: Nanos(state.reload(function, device)),
        service: Nanos(state.service(function, state.member(device))),
        arrived: request.order.0,
        waiting: state.waiting,
    }
}

/// The device on which a real-time request is expected to finish first, by the device's other
/// real-time requests and the request's reload and service times. Best-effort requests do not
/// count, since they are preempted. Of equal devices, the one with the fewest requests.
fn fastest(now: Nanos, state: &State, id: FunctionId) -> Option<DeviceId> {
    let function = state.function(id);
    let active = &state.classes.get(function.class).active;
    let rotating =
        std::iter::successors(active.first_from(state.cursor), |device| active.first_from(u32::from(device.0) + 1));
    let candidates = function.resident.both(active).take(COMPARED).chain(rotating.take(COMPARED.min(active.len())));
    candidates.min_by_key(|device| {
        let member = state.member(*device);
        let wait = member.urgent_until.0.saturating_sub(now.0);
        let time = wait.saturating_add(state.reload(function, *device)).saturating_add(state.service(function, member));
        (time, member.in_flight.len(), *device)
    })
}
