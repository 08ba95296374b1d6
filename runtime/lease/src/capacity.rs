//! The capacity of a device, and the part of it that leases have.

use crate::ask::{Ask, Want};
use crate::ids::LeaseId;
use atoll_core::packing::{InstanceId, Move, PackError, Packer, Rect};

/// The resources of a device that leases may get, besides its time and compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Real-time slots.
    pub real_time_slots: u32,
}

/// The resources of a device that no lease has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The largest free rectangles of quota (width) and partition (height), in percent; they may
    /// overlap.
    pub rects: Vec<Rect>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Real-time slots.
    pub real_time_slots: u32,
}

/// A device, and the resources that its leases have.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) capacity: Capacity,
    pub(crate) is_drained: bool,
    packer: Packer,
    bytes: u64,
    slots: u32,
}

impl Device {
    pub(crate) fn new(capacity: Capacity) -> Device {
        let packer = Packer::new(1, capacity.memory_bytes).expect("one device is a valid number of devices");
        Device { capacity, is_drained: false, packer, bytes: 0, slots: 0 }
    }

    /// Whether the device has room for the request if it has no other leases.
    pub(crate) fn could_hold(&self, ask: &Ask) -> bool {
        Device::new(self.capacity).place(LeaseId(0), ask).is_some()
    }

    /// Places a lease. Returns the other leases that moved to another area to make room; `None` if
    /// the lease does not fit.
    pub(crate) fn place(&mut self, id: LeaseId, ask: &Ask) -> Option<Vec<LeaseId>> {
        if ask.want.real_time_slots > self.capacity.real_time_slots - self.slots {
            return None;
        }
        let instance = InstanceId(id.0);
        let moved = match self.packer.place(instance, ask.demand) {
            Ok(_) => Vec::new(),
            Err(PackError::NoDevice { .. }) => {
                let plan = self.packer.plan(instance, ask.demand).ok()?;
                let moved = plan.moves.iter().map(|Move { instance, .. }| LeaseId(instance.0)).collect();
                self.packer.adopt(plan);
                moved
            }
            Err(_) => return None,
        };
        self.bytes += ask.want.memory_bytes;
        self.slots += ask.want.real_time_slots;
        Some(moved)
    }

    /// Frees the resources of a lease.
    pub(crate) fn remove(&mut self, id: LeaseId, want: &Want) {
        if self.packer.remove(InstanceId(id.0)) {
            self.bytes -= want.memory_bytes;
            self.slots -= want.real_time_slots;
        }
    }

    /// The sum of quota × partition over all leases, in percent × percent: 10,000 is the whole
    /// device.
    pub(crate) fn used_area(&self) -> u64 {
        self.packer.instances().map(|(_, _, rect, _)| u64::from(rect.w) * u64::from(rect.h)).sum()
    }

    pub(crate) fn rect(&self, id: LeaseId) -> Option<Rect> {
        self.packer.instances().find(|(instance, ..)| instance.0 == id.0).map(|(_, _, rect, _)| rect)
    }

    pub(crate) fn free(&self) -> Free {
        Free {
            rects: self.packer.free(0).to_vec(),
            memory_bytes: self.capacity.memory_bytes - self.bytes,
            real_time_slots: self.capacity.real_time_slots - self.slots,
        }
    }
}
