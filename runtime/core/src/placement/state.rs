//! The state of a pool, which policies read: devices, functions, requests and groups.

use super::classes::{ClassId, Classes};
use super::estimate::Times;
use super::event::{DeviceKind, DeviceSpec, FunctionId, GroupId, Suits};
use super::id_set::{DeviceSet, FunctionSet};
use super::id_table::IdTable;
use super::queue::Queue;
use super::requests::{Order, RequestSlot, Requests};
use super::work::Work;
use crate::ids::{Class, DeviceId};

/// State of a pool. Policies read it; only the pool changes it.
#[derive(Default)]
pub(super) struct State {
    pub(super) devices: Vec<Option<Device>>,
    pub(super) functions: IdTable<FunctionId, Function>,
    pub(super) requests: Requests,
    pub(super) groups: IdTable<GroupId, Group>,
    pub(super) classes: Classes,
    /// Functions without best-effort requests, waiting or in flight.
    pub(super) idle: FunctionSet,
    /// Devices whose memory is not full.
    pub(super) with_room: DeviceSet,
    /// Best-effort requests in function queues.
    pub(super) waiting: usize,
    /// The kinds of the devices in the pool, each with the number of its devices.
    pub(super) kinds: Vec<(DeviceKind, u32)>,
    /// The id that follows the device of the last best-effort dispatch.
    pub(super) cursor: u32,
}

pub(super) struct Device {
    pub(super) spec: DeviceSpec,
    pub(super) draining: bool,
    /// Best-effort requests in flight; at most `spec.slots`.
    pub(super) taken: u32,
    /// All requests in flight, in the order of their dispatches.
    pub(super) in_flight: Vec<RequestSlot>,
    /// Functions whose constants are on the device or being loaded.
    pub(super) resident: FunctionSet,
    /// Bytes of their constants.
    pub(super) resident_bytes: u64,
    /// The best-effort requests in flight.
    pub(super) best_effort: Work,
    /// The real-time requests in flight.
    pub(super) urgent: Work,
    /// The classes of which it is a member.
    pub(super) classes: Vec<ClassId>,
}

impl Device {
    pub(super) fn new(spec: DeviceSpec, classes: Vec<ClassId>) -> Device {
        Device {
            spec,
            draining: false,
            taken: 0,
            in_flight: Vec::new(),
            resident: FunctionSet::default(),
            resident_bytes: 0,
            best_effort: Work::default(),
            urgent: Work::default(),
            classes,
        }
    }

    /// The requests of a class in flight.
    pub(super) fn work_mut(&mut self, class: Class) -> &mut Work {
        match class {
            Class::RealTime => &mut self.urgent,
            Class::BestEffort => &mut self.best_effort,
        }
    }

    pub(super) fn has_slot(&self) -> bool {
        !self.draining && self.taken < self.spec.slots
    }
}

pub(super) struct Function {
    pub(super) group: GroupId,
    pub(super) constant_bytes: u64,
    pub(super) suits: Suits,
    /// Devices that refuse it at the moment.
    pub(super) suspended: Vec<DeviceId>,
    pub(super) class: ClassId,
    pub(super) times: Times,
    /// Waiting best-effort requests.
    pub(super) waiting: Queue,
    /// Devices that have its constants or are loading them.
    pub(super) resident: DeviceSet,
    /// Best-effort requests in flight.
    pub(super) in_flight: u32,
}

impl Function {
    pub(super) fn new(group: GroupId, constant_bytes: u64, suits: Suits, times: Times) -> Function {
        Function {
            group,
            constant_bytes,
            suits,
            suspended: Vec::new(),
            class: 0,
            times,
            waiting: Queue::default(),
            resident: DeviceSet::default(),
            in_flight: 0,
        }
    }

    /// The shortest expected service time on any kind of device, in nanoseconds; 0 if none is known.
    pub(super) fn shortest_service(&self) -> u64 {
        self.times.shortest_service().unwrap_or_default().0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) weight: u32,
    /// Functions of the group in the pool.
    pub(super) functions: u32,
    /// Its waiting best-effort requests.
    pub(super) waiting: usize,
    /// Its best-effort requests in flight.
    pub(super) in_flight: u32,
}

impl Default for Group {
    fn default() -> Group {
        Group { weight: 1, functions: 0, waiting: 0, in_flight: 0 }
    }
}

impl State {
    pub(super) fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(usize::from(device.0))?.as_ref()
    }

    pub(super) fn device_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(usize::from(device.0))?.as_mut()
    }

    /// A device from one of the pool's sets, which must be in the pool.
    pub(super) fn member(&self, device: DeviceId) -> &Device {
        self.device(device).expect("sets of the pool name devices of the pool")
    }

    /// Notes that a device of a kind was added or removed.
    pub(super) fn count_kind(&mut self, kind: DeviceKind, is_added: bool) {
        match self.kinds.iter_mut().find(|known| known.0 == kind) {
            Some(known) => known.1 = if is_added { known.1 + 1 } else { known.1 - 1 },
            None => self.kinds.push((kind, 1)),
        }
        self.kinds.retain(|known| known.1 > 0);
    }

    /// Whether the pool has devices of different kinds.
    pub(super) fn is_mixed(&self) -> bool {
        self.kinds.len() > 1
    }

    /// A function that is known to be in the pool.
    pub(super) fn function(&self, function: FunctionId) -> &Function {
        self.functions.get(function).expect("a function with requests in a queue is in the pool")
    }

    /// A function, and the order of its first waiting request; `None` if it has none.
    pub(super) fn head(&self, function: FunctionId) -> Option<(&Function, Order)> {
        let function = self.functions.get(function)?;
        Some((function, function.waiting.first()?.0))
    }

    /// The group of a function that is in the pool.
    pub(super) fn group_mut(&mut self, group: GroupId) -> &mut Group {
        self.groups.get_mut(group).expect("a function has a group")
    }

    /// The devices of a function that have a free slot.
    pub(super) fn free(&self, function: FunctionId) -> &DeviceSet {
        &self.classes.get(self.function(function).class).free
    }

    /// Expected service time of a function on a device; 0 if nothing is known.
    pub(super) fn service(&self, function: &Function, device: &Device) -> u64 {
        function.times.service(device.spec.kind).unwrap_or_default().0
    }

    /// Expected time to load a function onto a device; 0 if it is resident or nothing is known.
    pub(super) fn reload(&self, function: &Function, device: DeviceId) -> u64 {
        if function.resident.contains(device) {
            return 0;
        }
        function.times.reload(self.member(device).spec.kind).unwrap_or_default().0
    }

    /// Updates the sets of active and free devices after a change of a device. Returns whether the
    /// device has a free slot.
    pub(super) fn refresh(&mut self, device: DeviceId) -> bool {
        let Some(state) = self.devices.get(usize::from(device.0)).and_then(Option::as_ref) else { return false };
        let free = state.has_slot();
        for &class in &state.classes {
            let class = self.classes.get_mut(class);
            class.free.set(device, free);
            class.active.set(device, !state.draining);
        }
        free
    }

    /// Updates the set of idle functions after a change of a function.
    pub(super) fn refresh_function(&mut self, id: FunctionId) {
        let is_idle = |function: &Function| function.waiting.is_empty() && function.in_flight == 0;
        self.idle.set(id, self.functions.get(id).is_some_and(is_idle));
    }

    /// Notes whether a device has the constants of a function. Ignored if the device or the function
    /// is not in the pool.
    pub(super) fn set_resident(&mut self, device_id: DeviceId, id: FunctionId, resident: bool) {
        let Some(device) = self.devices.get_mut(usize::from(device_id.0)).and_then(Option::as_mut) else {
            return;
        };
        let Some(function) = self.functions.get_mut(id) else { return };
        if function.resident.contains(device_id) == resident {
            return;
        }
        function.resident.set(device_id, resident);
        device.resident.set(id, resident);
        if resident {
            device.resident_bytes += function.constant_bytes;
        } else {
            device.resident_bytes -= function.constant_bytes;
        }
        self.with_room.set(device_id, device.resident_bytes < device.spec.memory_bytes);
    }
}
