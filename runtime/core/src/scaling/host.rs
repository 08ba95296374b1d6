//! Devices and instances, as their placing sees them.

use crate::ids::ClientId;
use crate::packing::{Divisible, InstanceId};
use crate::tokens::ShareSpec;
use std::fmt;

/// What copying a byte of constants to a device costs: a gigabyte a second, which every link to a
/// device reaches.
pub const NS_PER_BYTE: u64 = 1;

/// A device of the fleet.
#[derive(Clone, Debug)]
pub struct Host {
    /// How its compute units can be divided.
    pub divisible: Divisible,
    /// Its memory, in bytes.
    pub bytes: u64,
    /// Whether it takes instances: it is neither lost nor drained.
    pub is_open: bool,
    /// Shares of tenants. They do not move.
    pub reserved: Vec<ShareSpec>,
}

/// The constants of a function. The instances of the function on a device share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// The function, by a number.
    pub function: u32,
    /// Their size.
    pub bytes: u64,
}

/// What an instance needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its compute units and its time.
    pub share: ShareSpec,
    /// Memory of its own, in bytes.
    pub bytes: u64,
    /// The constants of its function.
    pub constants: Constants,
    /// The devices that have its function: bit N for device N.
    pub devices: u64,
}

impl Need {
    /// Time times compute units, by which instances are sorted.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.share.request().millionths()) * u64::from(self.share.partition().millionths())
    }
}

/// Whether an instance may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It stays where it is: it is an operator's.
    Fixed,
    /// It may move.
    Movable {
        /// Device time that its requests still take at its old place.
        drain_ns: u64,
    },
    /// It gets no new requests, and its place is free once its own have ended.
    Leaving,
}

/// An instance on a device. One that is on several devices is there several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The instance.
    pub id: InstanceId,
    /// What it needs.
    pub need: Need,
    /// Its device.
    pub device: usize,
    /// Whether it may move.
    pub stay: Stay,
}

/// Where a new instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// To this device.
    Now {
        /// The device.
        device: usize,
        /// Whether the constants of all functions that have instances there exceed its memory.
        is_over_memory: bool,
    },
    /// To this device, once instances that leave it have left.
    Later {
        /// The device.
        device: usize,
    },
    /// To no device.
    Nowhere(Nowhere),
}

/// Why an instance has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nowhere {
    /// Each device of its function is lost or drained.
    Closed,
    /// No device of its function has room, even if others move as far as that pays.
    Room,
}

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nowhere::Closed => "each device that has its function is lost or drained",
            Nowhere::Room => "no device that has its function has room, even if others move as far as that pays",
        })
    }
}

/// An instance that moves to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The instance.
    pub instance: InstanceId,
    /// The device that it leaves.
    pub from: usize,
    /// The device of its successor.
    pub to: usize,
    /// What the move costs, in nanoseconds of a device's time.
    pub cost_ns: u64,
}

/// An instance in a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: InstanceId,
    pub(super) client: ClientId,
    pub(super) need: Need,
    pub(super) stay: Stay,
}

impl Entry {
    /// The cost of its move to a device that has the constants of its function, or has not.
    pub(super) fn move_ns(&self, has_constants: bool) -> Option<u64> {
        let Stay::Movable { drain_ns } = self.stay else { return None };
        let copied = if has_constants { 0 } else { self.need.constants.bytes.saturating_mul(NS_PER_BYTE) };
        Some(drain_ns.saturating_add(copied))
    }
}
