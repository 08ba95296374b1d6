//! Packs instances onto devices (Algorithm 2 of FaST-GShare, corrected).
//!
//! An instance is a rectangle of quota (time) and compute units, in hundredths of a device. Its
//! memory has no position: the sum over a device is limited. [`Packer::place`] puts an instance
//! into the smallest free rectangle of all devices that holds it. If none does, [`Packer::plan`]
//! packs all instances anew, largest first, before it uses another device, and returns the moves
//! with their cost.
//!
//! Differences from the paper: the condition of its line 1 is reversed there (a free rectangle must
//! be at least as large as the pod). Area alone is no test of admission, since two pods of 60 % ×
//! 0.8 never fit together. After an instance is removed, a device's free rectangles are rebuilt
//! only if there are too many of them or an instance does not fit.
//!
//! [`Layout`] divides the compute units of a single device among clients.

mod layout;
mod rectangles;

pub use layout::{Divisible, Layout, Place, Reason, TIME};
pub use rectangles::Rect;

use rectangles::{Fit, FreeList};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// A side of a device, in hundredths.
pub const SIDE: u32 = 100;

/// Devices that one packer plans for.
pub const DEVICES_MAX: usize = crate::limits::DEVICES_MAX;

/// Instances on all devices together: enough for a hundred on each of a hundred devices.
pub const INSTANCES_MAX: usize = 10_000;

/// A device's free rectangles are rebuilt when there are more than this.
const FREE_MAX: usize = 64;

/// An instance, by a number that the caller assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u64);

/// The resources of an instance, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    quota: u32,
    partition: u32,
    bytes: u64,
}

/// Why an instance cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackError {
    /// The quota is not from 1 to 100 %.
    Quota(u32),
    /// The partition is not from 1 to 100 %.
    Partition(u32),
    /// The instance needs more memory than a device has.
    Memory {
        /// Bytes of the instance.
        wanted: u64,
        /// Bytes of a device.
        of: u64,
    },
    /// An instance with this number is placed already.
    Taken(InstanceId),
    /// The packer has [`INSTANCES_MAX`] instances.
    Instances,
    /// No packing was found that has room for the instance, even if all instances move.
    NoDevice {
        /// The number of devices.
        devices: usize,
    },
    /// The number of devices is not from 1 to [`DEVICES_MAX`].
    Devices(usize),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Quota(quota) => write!(f, "a quota of {quota} %; 1 to 100 is possible"),
            PackError::Partition(partition) => write!(f, "a partition of {partition} %; 1 to 100 is possible"),
            PackError::Memory { wanted, of } => {
                write!(f, "an instance of {wanted} bytes; a device has {of}, use a smaller instance")
            }
            PackError::Taken(id) => write!(f, "instance {} is placed already", id.0),
            PackError::Instances => write!(f, "{INSTANCES_MAX} instances are placed, which is the limit"),
            PackError::NoDevice { devices } => {
                write!(f, "no room on {devices} devices, even if all instances are moved; add a device")
            }
            PackError::Devices(devices) => write!(f, "{devices} devices; 1 to {DEVICES_MAX} are possible"),
        }
    }
}

impl std::error::Error for PackError {}

impl Demand {
    /// Checks the resources of an instance: quota and partition in percent, memory in bytes.
    ///
    /// # Errors
    /// If a percentage is not from 1 to 100.
    pub fn new(quota: u32, partition: u32, bytes: u64) -> Result<Demand, PackError> {
        if !(1..=SIDE).contains(&quota) {
            return Err(PackError::Quota(quota));
        }
        if !(1..=SIDE).contains(&partition) {
            return Err(PackError::Partition(partition));
        }
        Ok(Demand { quota, partition, bytes })
    }
}

/// An instance that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The instance.
    pub instance: InstanceId,
    /// The device that it leaves.
    pub from: usize,
    /// The device that it moves to; equal to `from` if only its rectangle changes.
    pub to: usize,
    /// Bytes that are copied to the other device; 0 if it stays on its device.
    pub bytes: u64,
}

/// A placement of a new instance, with the moves of other instances that it needs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The instances that move, in ascending order.
    pub moves: Vec<Move>,
    /// The device of the new instance.
    pub device: usize,
    devices: Vec<Device>,
}

impl Plan {
    /// Bytes that are copied between devices.
    pub fn bytes(&self) -> u64 {
        self.moves.iter().map(|other| other.bytes).sum()
    }
}

#[derive(Clone, Debug)]
struct Device {
    free: FreeList,
    placed: BTreeMap<InstanceId, (Rect, Demand)>,
    bytes: u64,
}

impl Device {
    fn new() -> Device {
        Device { free: FreeList::new(SIDE, SIDE), placed: BTreeMap::new(), bytes: 0 }
    }

    fn put(&mut self, id: InstanceId, demand: Demand, rect: Rect) {
        self.free.take(rect);
        self.bytes += demand.bytes;
        self.placed.insert(id, (rect, demand));
    }

    fn rebuild(&mut self) {
        let (w, h) = self.free.size();
        self.free = FreeList::around(w, h, self.placed.values().map(|(rect, _)| *rect));
    }
}

/// A set of equal devices and the instances that are placed on them.
#[derive(Clone, Debug)]
pub struct Packer {
    devices: Vec<Device>,
    /// Memory of a device, in bytes.
    bytes: u64,
}

impl Packer {
    /// `devices` empty devices with `bytes` of memory each.
    ///
    /// # Errors
    /// If there is no device, or more than [`DEVICES_MAX`].
    pub fn new(devices: usize, bytes: u64) -> Result<Packer, PackError> {
        if !(1..=DEVICES_MAX).contains(&devices) {
            return Err(PackError::Devices(devices));
        }
        Ok(Packer { devices: vec![Device::new(); devices], bytes })
    }

    /// Places an instance without moving others. Returns the index of its device.
    ///
    /// # Errors
    /// See [`PackError`]; [`PackError::NoDevice`] also if it fits only after others have moved. On
    /// error no instance has changed.
    pub fn place(&mut self, id: InstanceId, demand: Demand) -> Result<usize, PackError> {
        self.check(id, demand)?;
        if let Some(at) = self.put(id, demand) {
            return Ok(at);
        }
        // A rebuild joins freed rectangles into larger ones.
        self.devices.iter_mut().for_each(Device::rebuild);
        self.put(id, demand).ok_or(PackError::NoDevice { devices: self.devices.len() })
    }

    /// Plans to place an instance such that the fewest devices are used, and moves other instances
    /// if that is necessary. Nothing changes until [`Packer::adopt`].
    ///
    /// # Errors
    /// See [`PackError`].
    pub fn plan(&self, id: InstanceId, demand: Demand) -> Result<Plan, PackError> {
        self.check(id, demand)?;
        let mut direct = self.clone();
        if let Ok(device) = direct.place(id, demand) {
            let is_used = !self.devices[device].placed.is_empty() || self.devices.iter().all(|d| d.placed.is_empty());
            if is_used {
                return Ok(Plan { moves: Vec::new(), device, devices: direct.devices });
            }
        }
        let used = self.devices.iter().filter(|device| !device.placed.is_empty()).count();
        let mut instances: Vec<(InstanceId, Demand)> =
            self.instances().map(|(id, _, _, demand)| (id, demand)).collect();
        instances.push((id, demand));
        for count in used.max(1)..=self.devices.len() {
            if count > used
                && let Some(device) = direct.device_of(id)
            {
                return Ok(Plan { moves: Vec::new(), device, devices: direct.devices });
            }
            if let Some(devices) = pack(&instances, count, self.devices.len(), self.bytes) {
                return Ok(self.plan_of(id, devices));
            }
        }
        Err(PackError::NoDevice { devices: self.devices.len() })
    }

    /// Carries out a plan. The instances must not have changed since it was made.
    pub fn adopt(&mut self, plan: Plan) {
        self.devices = plan.devices;
    }

    /// Removes an instance; `false` if it is not there.
    pub fn remove(&mut self, id: InstanceId) -> bool {
        let Some(at) = self.device_of(id) else { return false };
        let device = &mut self.devices[at];
        let (rect, demand) = device.placed.remove(&id).expect("found there");
        device.bytes -= demand.bytes;
        device.free.give_back(rect);
        if device.free.len() > FREE_MAX || device.placed.is_empty() {
            device.rebuild();
        }
        true
    }

    /// The device of an instance.
    pub fn device_of(&self, id: InstanceId) -> Option<usize> {
        self.devices.iter().position(|device| device.placed.contains_key(&id))
    }

    /// The instances with their devices and rectangles, by device.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceId, usize, Rect, Demand)> {
        let of_device = |(at, device): (usize, &Device)| {
            device.placed.iter().map(|(id, (rect, demand))| (*id, at, *rect, *demand)).collect::<Vec<_>>()
        };
        self.devices.iter().enumerate().flat_map(of_device)
    }

    /// The free rectangles of a device.
    pub fn free(&self, device: usize) -> &[Rect] {
        self.devices.get(device).map_or(&[], |device| device.free.rects())
    }

    /// Number of devices that have instances.
    pub fn devices_used(&self) -> usize {
        self.devices.iter().filter(|device| !device.placed.is_empty()).count()
    }

    fn check(&self, id: InstanceId, demand: Demand) -> Result<(), PackError> {
        if demand.bytes > self.bytes {
            return Err(PackError::Memory { wanted: demand.bytes, of: self.bytes });
        }
        if self.device_of(id).is_some() {
            return Err(PackError::Taken(id));
        }
        let placed: usize = self.devices.iter().map(|device| device.placed.len()).sum();
        if placed >= INSTANCES_MAX { Err(PackError::Instances) } else { Ok(()) }
    }

    /// Puts an instance into the smallest free rectangle that holds it. Empty devices are used
    /// only if no other device has room.
    fn put(&mut self, id: InstanceId, demand: Demand) -> Option<usize> {
        put(&mut self.devices, self.bytes, Fit::Area, id, demand)
    }

    fn plan_of(&self, id: InstanceId, devices: Vec<Device>) -> Plan {
        let place = |instance: InstanceId| {
            let at = devices.iter().position(|device| device.placed.contains_key(&instance));
            let at = at.expect("everything is packed");
            (at, devices[at].placed[&instance].0)
        };
        let moved = self.instances().filter(|&(id, device, rect, _)| place(id) != (device, rect));
        let moved = moved.map(|(instance, from, _, demand)| {
            let (to, _) = place(instance);
            Move { instance, from, to, bytes: if from == to { 0 } else { demand.bytes } }
        });
        let mut moves: Vec<Move> = moved.collect();
        moves.sort_unstable_by_key(|other| other.instance);
        let device = place(id).0;
        Plan { moves, device, devices }
    }
}

fn put(devices: &mut [Device], bytes: u64, fit: Fit, id: InstanceId, demand: Demand) -> Option<usize> {
    let candidates = devices.iter().enumerate().filter(|(_, device)| device.bytes + demand.bytes <= bytes);
    let places = candidates.filter_map(|(at, device)| {
        let (left, rect) = device.free.place(fit, demand.quota, demand.partition)?;
        Some((device.placed.is_empty(), left, at, rect))
    });
    let (_, _, at, rect) = places.min()?;
    devices[at].put(id, demand, rect);
    Some(at)
}

/// The sort key of instances.
type Order = fn(&Demand) -> (u32, u32);

/// Orders in which all instances are packed anew. Several are tried, since each finds packings that
/// the others miss.
const ORDERS: [Order; 4] = [
    |demand| (demand.quota * demand.partition, demand.partition),
    |demand| (demand.partition, demand.quota),
    |demand| (demand.quota, demand.partition),
    |demand| (demand.quota.max(demand.partition), demand.quota.min(demand.partition)),
];

/// Packs instances onto `count` of `all` devices, largest first. If that fails and there are at
/// most [`EVERY_ORDER_MAX`] instances, tries all orders.
fn pack(instances: &[(InstanceId, Demand)], count: usize, all: usize, bytes: u64) -> Option<Vec<Device>> {
    let area: u64 = instances.iter().map(|(_, demand)| u64::from(demand.quota * demand.partition)).sum();
    let memory: u128 = instances.iter().map(|(_, demand)| u128::from(demand.bytes)).sum();
    let side = u64::from(SIDE);
    if area > count as u64 * side * side || memory > count as u128 * u128::from(bytes) {
        return None;
    }
    let in_order = |instances: &[(InstanceId, Demand)], fit: Fit| {
        let mut devices = vec![Device::new(); count];
        for &(id, demand) in instances {
            put(&mut devices, bytes, fit, id, demand)?;
        }
        devices.resize_with(all, Device::new);
        Some(devices)
    };
    let mut instances = instances.to_vec();
    for order in ORDERS {
        instances.sort_by_key(|(id, demand)| (Reverse(order(demand)), *id));
        if let Some(devices) = Fit::ALL.into_iter().find_map(|fit| in_order(&instances, fit)) {
            return Some(devices);
        }
    }
    let length = instances.len();
    (length <= EVERY_ORDER_MAX).then(|| every_order(&mut instances, length, &in_order)).flatten()
}

/// Up to this many instances, all orders are tried: 6 have 720.
const EVERY_ORDER_MAX: usize = 6;

/// Tries all orders of the first `count` instances (Heap's algorithm), and returns the first
/// packing that is found.
fn every_order(
    instances: &mut [(InstanceId, Demand)],
    count: usize,
    in_order: &impl Fn(&[(InstanceId, Demand)], Fit) -> Option<Vec<Device>>,
) -> Option<Vec<Device>> {
    if count <= 1 {
        return Fit::ALL.into_iter().find_map(|fit| in_order(instances, fit));
    }
    for at in 0..count {
        if let Some(devices) = every_order(instances, count - 1, in_order) {
            return Some(devices);
        }
        instances.swap(if count.is_multiple_of(2) { at } else { 0 }, count - 1);
    }
    None
}
