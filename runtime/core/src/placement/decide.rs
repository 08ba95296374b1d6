//! Dispatches requests: real-time requests at once, best-effort requests as the policy decides.

use super::event::{PoolAction, RequestId, RequestSpec};
use super::grounds::{Grounds, Why};
use super::pool::Pool;
use super::requests::{Place, Request, RequestSlot};
use super::state::State;
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
        while let Some((function, device)) = self.policy.next(now, &self.state) {
            let known = self.state.function(function);
            let first = known.waiting.first().expect("a policy picks a function with waiting requests");
            let ((arrival, _), request) = first;
            assert!(arrival <= now, "a policy dispatches nothing before its arrival");
            let free = &self.state.classes.get(known.class).free;
            assert!(free.contains(device), "a policy picks a suitable device with a free slot");
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
        self.state.requests[self.state.requests.find(request)?].grounds
    }

    fn dispatch_urgent(&mut self, actions: &mut Vec<PoolAction>) {
        for id in std::mem::take(&mut self.urgent) {
            let Some(request) = self.state.requests.find(id) else { continue };
            let Request { place: Place::Waiting, spec, .. } = &self.state.requests[request] else { continue };
            match fastest(self.now, &self.state, spec) {
                Some(device) => self.dispatch(request, device, actions),
                None => self.parked.push(id),
            }
        }
    }

    fn dispatch(&mut self, slot: RequestSlot, device_id: DeviceId, actions: &mut Vec<PoolAction>) {
        let left = self.unqueue(slot);
        let request = &self.state.requests[slot];
        assert_eq!(request.place, Place::Waiting, "a request is on one device at a time");
        let (id, spec, function_id) = (request.id, request.spec, request.spec.function);
        let grounds = grounds(&self.state, request, device_id);
        let work_ns = match shares_run(&self.state, &spec, device_id) {
            true => 0,
            false => grounds.service.0.saturating_add(grounds.reload.0),
        };
        let request = &mut self.state.requests[slot];
        (request.place, request.grounds, request.work_ns) = (Place::InFlight(device_id), Some(grounds), work_ns);
        request.attempts += 1;
        let now = self.now;
        let device = self.state.device_mut(device_id).expect("a device of the class is in the pool");
        device.in_flight.push(slot);
        device.work_mut(spec.class).begin(now, work_ns);
        if let Some(left) = left {
            device.taken += 1;
            self.state.functions.get_mut(function_id).expect("its queue had the request").in_flight += 1;
            self.state.group_mut(left.group).in_flight += 1;
            self.state.cursor = u32::from(device_id.0) + 1;
            self.tell(left);
        }
        self.state.set_resident(device_id, function_id, true);
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

/// Whether a request runs together with others on the device: at most two runs of a batched function
/// lie before a new request, the one on the device and the one that gathers requests.
fn shares_run(state: &State, spec: &RequestSpec, device: DeviceId) -> bool {
    let in_flight = || state.member(device).in_flight.iter();
    let is_like_it = |slot: &&RequestSlot| {
        let other = state.requests[**slot].spec;
        other.is_batched && other.function == spec.function && other.class == spec.class
    };
    spec.is_batched && in_flight().filter(is_like_it).take(2).count() == 2
}

/// The device on which a request that takes no slot is expected to finish first, by the device's
/// other requests and the request's reload and service times. For real-time requests, best-effort
/// requests do not count, since they are preempted. Of equal devices, the one with the fewest
/// requests.
fn fastest(now: Nanos, state: &State, spec: &RequestSpec) -> Option<DeviceId> {
    let function = state.function(spec.function);
    let active = &state.classes.get(function.class).active;
    let rotating = active.cycle_from(state.cursor).take(COMPARED);
    let candidates = function.resident.both(active).take(COMPARED).chain(rotating);
    candidates.min_by_key(|device| {
        let member = state.member(*device);
        let mut wait = member.urgent.left_ns(now);
        if spec.class == Class::BestEffort {
            wait = wait.saturating_add(member.best_effort.left_ns(now));
        }
        let time = wait.saturating_add(state.reload(function, *device)).saturating_add(state.service(function, member));
        (time, member.in_flight.len(), *device)
    })
}
