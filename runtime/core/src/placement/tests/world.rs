//! A pool with devices and clients that check every action.

use crate::ids::{Class, DeviceId, Nanos};
use crate::placement::*;
use std::collections::{BTreeMap, BTreeSet};

/// The test's own state of a device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    pub(super) draining: bool,
    pub(super) in_flight: Vec<RequestId>,
    pub(super) resident: BTreeSet<FunctionId>,
}

/// The test's own state of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) spec: RequestSpec,
    pub(super) on: Option<DeviceId>,
    pub(super) dispatched_at: Option<Nanos>,
    pub(super) ended: Option<&'static str>,
}

/// A pool, its clients and its devices.
pub(super) struct World {
    pub(super) pool: Pool,
    pub(super) now: Nanos,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    pub(super) functions: BTreeMap<FunctionId, FunctionSpec>,
    pub(super) requests: BTreeMap<RequestId, Sent>,
    /// The time until which a device refuses a function.
    pub(super) refusals: BTreeMap<(FunctionId, DeviceId), Nanos>,
    /// Dispatches and rejections in order.
    pub(super) log: Vec<PoolAction>,
}

impl World {
    pub(super) fn new(policy: &str, options: PoolOptions) -> World {
        let policy = placement_by_name(policy).expect("a policy");
        World {
            pool: Pool::new(PoolConfig { options, ..PoolConfig::new(policy) }),
            now: Nanos(0),
            devices: BTreeMap::new(),
            functions: BTreeMap::new(),
            requests: BTreeMap::new(),
            refusals: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// A pool with `devices` equal devices of one slot and this much memory.
    pub(super) fn with_devices(policy: &str, options: PoolOptions, devices: u16, memory_bytes: u64) -> World {
        let mut world = World::new(policy, options);
        for device in 0..devices {
            world.add_device(device, DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes });
        }
        world
    }

    pub(super) fn add_device(&mut self, device: u16, spec: DeviceSpec) {
        let device = DeviceId(device);
        let state = Device { spec, draining: false, in_flight: Vec::new(), resident: BTreeSet::new() };
        self.devices.insert(device, state);
        self.send(PoolEvent::DeviceAdded { device, spec });
    }

    pub(super) fn add_function(&mut self, id: u32, spec: FunctionSpec) {
        self.functions.insert(FunctionId(id), spec.clone());
        self.send(PoolEvent::FunctionAdded { function: FunctionId(id), spec });
    }

    /// Adds a function in a group of its own, with known times on devices of kind 0.
    pub(super) fn add_timed(&mut self, id: u32, service: u64, reload: u64) {
        let expected = Expected { service: Some(Nanos(service)), reload: Some(Nanos(reload)) };
        let spec = FunctionSpec {
            group: GroupId(id),
            constant_bytes: 1,
            suits: Suits::All,
            expected: vec![(DeviceKind(0), expected)],
        };
        self.add_function(id, spec);
    }

    /// A best-effort request that may be retried arrives now.
    pub(super) fn request(&mut self, id: u64, function: u32) {
        let spec = RequestSpec {
            function: FunctionId(function),
            class: Class::BestEffort,
            is_batched: false,
            arrival: self.now,
            deadline: None,
            may_retry: true,
        };
        self.arrive(id, spec);
    }

    pub(super) fn arrive(&mut self, id: u64, spec: RequestSpec) {
        let sent = Sent { spec, on: None, dispatched_at: None, ended: None };
        self.requests.insert(RequestId(id), sent);
        self.send(PoolEvent::Arrived { request: RequestId(id), spec });
    }

    pub(super) fn finish(&mut self, id: u64, end: RequestEnd) {
        let request = RequestId(id);
        let device = self.requests[&request].on.expect("it is in flight");
        self.take_off(request);
        if let RequestEnd::Refused { until } = end {
            self.refusals.insert((self.requests[&request].spec.function, device), until);
        } else if !matches!(end, RequestEnd::Failed { retryable: true }) {
            self.end(request, "finished");
        }
        self.send(PoolEvent::Finished { request, device, end });
    }

    /// Finishes a request after its service time.
    pub(super) fn done(&mut self, id: u64, service: u64) {
        self.finish(id, RequestEnd::Done { service: Nanos(service), loaded: None });
    }

    pub(super) fn lose(&mut self, device: u16) {
        let device = DeviceId(device);
        for request in self.devices.remove(&device).expect("it is in the pool").in_flight {
            self.requests.get_mut(&request).expect("it was sent").on = None;
        }
        self.send(PoolEvent::DeviceLost { device });
    }

    pub(super) fn send(&mut self, event: PoolEvent) {
        let mut actions = Vec::new();
        self.pool.handle(self.now, event, &mut actions);
        actions.into_iter().for_each(|action| self.act(action));
    }

    pub(super) fn end(&mut self, request: RequestId, how: &'static str) {
        let sent = self.requests.get_mut(&request).expect("the request was sent");
        assert_eq!(sent.ended.replace(how), None, "{request:?} ends once");
    }

    fn take_off(&mut self, request: RequestId) {
        let sent = self.requests.get_mut(&request).expect("the request was sent");
        let device = sent.on.take().expect("it is in flight");
        let device = self.devices.get_mut(&device).expect("its device is in the pool");
        device.in_flight.retain(|other| *other != request);
    }

    fn act(&mut self, action: PoolAction) {
        match action {
            PoolAction::Dispatch { request, device } => self.dispatch(request, device),
            PoolAction::Reject { request, .. } => {
                assert_eq!(self.requests[&request].on, None, "{request:?} was rejected in flight");
                self.end(request, "rejected");
            }
            PoolAction::Load { function, device } => {
                let state = self.devices.get_mut(&device).expect("a device of the pool");
                assert!(!state.draining, "nothing is loaded onto a draining device");
                assert!(self.functions[&function].suits.contains(device), "{function:?} does not suit {device:?}");
                state.resident.insert(function);
            }
            PoolAction::Unload { function, device } => {
                assert!(self.devices[&device].resident.contains(&function));
            }
            PoolAction::Move { device, from, to } => {
                assert!(self.devices.contains_key(&device) && from != Some(to));
            }
        }
        self.log.push(action);
    }

    fn dispatch(&mut self, request: RequestId, device: DeviceId) {
        let sent = self.requests.get_mut(&request).expect("the request was sent");
        assert_eq!((sent.on, sent.ended), (None, None), "{request:?} is dispatched once at a time");
        assert!(sent.spec.arrival <= self.now);
        sent.on = Some(device);
        sent.dispatched_at = Some(self.now);
        let spec = sent.spec;
        let function = &self.functions[&spec.function];
        let state = self.devices.get_mut(&device).expect("a device of the pool");
        assert!(!state.draining, "{device:?} is draining");
        assert!(function.suits.contains(device), "{:?} does not suit {device:?}", spec.function);
        assert!(function.constant_bytes <= state.spec.memory_bytes);
        state.in_flight.push(request);
        state.resident.insert(spec.function);
        let requests = &self.requests;
        let taken = state.in_flight.iter().filter(|id| requests[id].spec.takes_slot()).count();
        assert!(taken <= state.spec.slots as usize, "{device:?} has {taken} requests in its slots");
    }

    /// The dispatches so far as (request, device).
    pub(super) fn dispatches(&self) -> Vec<(u64, u16)> {
        let dispatch = |action: &PoolAction| match action {
            PoolAction::Dispatch { request, device } => Some((request.0, device.0)),
            _ => None,
        };
        self.log.iter().filter_map(dispatch).collect()
    }

    /// Requests that have not ended and are not in flight.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (RequestId, Sent)> {
        let waiting = self.requests.iter().filter(|(_, sent)| sent.ended.is_none() && sent.on.is_none());
        waiting.map(|(id, sent)| (*id, *sent))
    }
}
