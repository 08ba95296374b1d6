//! The records that cross the command ring: plain, fixed-size, no pointers.

use crate::ModuleId;
use atoll_core::{DeviceOffset, Epoch, LaunchId};

/// Largest parameter block of a launch in bytes: 64 slots, what `address_slots` can mark.
pub const PARAMS_BYTES_MAX: usize = 512;

/// One launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchRecord {
    /// Echoed in the completion.
    pub launch: LaunchId,
    /// The module.
    pub module: ModuleId,
    /// Index of the kernel in the module.
    pub kernel: u32,
    /// Blocks in x, y, z; all at least 1.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Bit `i`: the eight bytes at `8 * i` of the parameter block are a device offset, which the device turns into an address.
    pub address_slots: u64,
    /// The launch's evicted word, 0 when submitted.
    pub evicted_word: DeviceOffset,
    /// The task's epoch word, for devices that look at it between blocks.
    pub epoch_word: DeviceOffset,
    /// The epoch it is issued under.
    pub epoch: Epoch,
    /// 1 where the kernel carries the preemption parameters.
    pub preemptible: u32,
}

/// The end of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The launch.
    pub launch: LaunchId,
    /// How it ended.
    pub status: LaunchStatus,
    /// When its first block started, monotonic nanoseconds (0 where the device does not say).
    pub started_ns: u64,
    /// When its last block ended, monotonic nanoseconds.
    pub ended_ns: u64,
}

/// How a launch ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchStatus {
    /// Every block ran, now or earlier.
    Complete,
    /// At least one block left because of the epoch (design D5 a).
    Evicted,
    /// The kernel trapped or faulted.
    Failed,
}
