//! What a device can hold, and what it holds.

use crate::ask::{Ask, Want};
use crate::ids::LeaseId;
use atoll_core::packing::{InstanceId, Move, PackError, Packer, Rect};

/// What of a device may be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Real-time slots.
    pub real_time_slots: u32,
}

/// What of a device is not promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The largest free rectangles of quota and partition, in hundredths; they may overlap.
    pub rects: Vec<Rect>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Real-time slots.
    pub real_time_slots: u32,
}

/// A device with its promises.
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

    /// Whether it could hold this without other leases.
    pub(crate) fn could_hold(&self, ask: &Ask) -> bool {
        Device::new(self.capacity).place(LeaseId(0), ask).is_some()
    }

    /// Places a lease. Returns the leases that got other compute units for it; `None` if it does not
    /// fit.
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

    /// Gives back what a lease has.
    pub(crate) fn remove(&mut self, id: LeaseId, want: &Want) {
        if self.packer.remove(InstanceId(id.0)) {
            self.bytes -= want.memory_bytes;
            self.slots -= want.real_time_slots;
        }
    }

    /// The part of quota and compute units that is promised, in hundredths of hundredths.
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
