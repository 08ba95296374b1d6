//! The description of a device.

use crate::lanes::LaneUnits;
use atoll_core::{DeviceOffset, PreemptLevel};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The properties and capabilities of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// For example `host:0`.
    pub name: String,
    /// Bundle targets that it can run, best first: `["host-x86-64-v4", "host-x86-64-v3"]`.
    pub targets: Vec<String>,
    /// Number of compute units.
    pub compute_units: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Offset where constants begin. The engine writes constants, kernels only read them: a kernel
    /// that stores to them fails its launch.
    pub constants_base: DeviceOffset,
    /// Bytes reserved for constants.
    pub constants_bytes: u64,
    /// The alignment of constants: their offsets and their sizes are multiples of it. It is the
    /// unit in which constants are mapped into a domain.
    pub constants_granule: u64,
    /// Shared memory per block in bytes.
    pub shared_bytes_max: u32,
    /// The strongest preemption it supports.
    pub preempt_level: PreemptLevel,
    /// Whether [`Launching::abort`](crate::Launching::abort) ends running launches. If not,
    /// submitted launches exit by their epoch or run to their end.
    pub can_abort: bool,
    /// Device queues for tasks; queue 0 has the highest priority.
    pub queues: u32,
    /// Whether these queues are followed by as many paired queues: one for each queue, with the
    /// same priority. Two branches of one task run side by side in a queue and its paired queue.
    pub paired_queues: bool,
    /// The sets of compute units that a lane may have.
    pub lane_units: LaneUnits,
    /// Launches a device queue takes before [`Launching::submit`](crate::Launching::submit) says
    /// [`SubmitError::Full`](crate::SubmitError::Full).
    pub queue_capacity: u32,
    /// What a launch costs beyond the time of its blocks, in nanoseconds. The shortest token is
    /// derived from it ([`atoll_core::tokens::TokenConfig::for_device`]).
    pub launch_ns: u64,
    /// How long a launch may run before the device ends it, if it enforces a limit.
    pub time_limit: Option<Duration>,
    /// Threads of the device that keep CPUs of this machine busy while blocks run.
    pub host_threads: u32,
    /// The CPUs that these threads are pinned to; empty if they are not pinned.
    pub host_cpus: Vec<usize>,
}

/// A range of addresses. Its size is a power of two, and it holds either the memory of a domain or
/// the constants, and nothing else. So a fence that confines addresses to it
/// ([`atoll_kgraph::fence_params`]) confines a kernel to its own memory. On the host device, its
/// base is a multiple of its size, both as an offset and as an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Where it begins.
    pub base: DeviceOffset,
    /// Its size.
    pub bytes: u64,
}

impl AddressRange {
    fn around(base: DeviceOffset, bytes: u64) -> AddressRange {
        AddressRange { base, bytes: bytes.next_power_of_two() }
    }

    /// The mask that a fence combines with an address.
    pub fn mask(self) -> u64 {
        self.bytes - 1
    }
}

impl DeviceInfo {
    /// The kind of the device: `host` of `host:0`.
    pub fn kind(&self) -> &str {
        self.name.split(':').next().unwrap_or(&self.name)
    }

    /// All memory of a domain, which only its kernels access. `domain` is the result of
    /// [`Domains::domain`](crate::Domains::domain).
    pub fn memory_range(&self, domain: DeviceOffset) -> AddressRange {
        AddressRange::around(domain, self.memory_bytes)
    }

    /// The range of all constants. Kernels of a domain can read those that are mapped for it. `None`
    /// if constants are in the memory of the domains that use them.
    pub fn constants_range(&self) -> Option<AddressRange> {
        (self.constants_bytes > 0).then(|| AddressRange::around(self.constants_base, self.constants_bytes))
    }
}

/// Facts that a device with memory of its own finds out when it starts in an executor. The rest of
/// its [`DeviceInfo`] comes from its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// See [`DeviceInfo::targets`].
    pub targets: Vec<String>,
    /// See [`DeviceInfo::compute_units`].
    pub compute_units: u32,
    /// Bytes of memory reserved on the device, constants included.
    pub memory_bytes: u64,
    /// The address of that memory as kernels see it.
    pub memory_address: u64,
    /// See [`DeviceInfo::shared_bytes_max`].
    pub shared_bytes_max: u32,
    /// See [`DeviceInfo::lane_units`].
    pub lane_units: LaneUnits,
    /// Whether running blocks can be stopped: the level is then [`PreemptLevel::Interrupt`].
    pub can_interrupt: bool,
}

impl DeviceFacts {
    /// Replaces the corresponding fields of `info`.
    pub fn complete(self, info: DeviceInfo) -> DeviceInfo {
        let DeviceFacts { targets, compute_units, memory_bytes, shared_bytes_max, lane_units, can_interrupt, .. } =
            self;
        let constants_base = DeviceOffset(memory_bytes);
        DeviceInfo {
            targets,
            compute_units,
            memory_bytes,
            constants_base,
            constants_bytes: 0,
            constants_granule: 1,
            shared_bytes_max,
            lane_units,
            preempt_level: if can_interrupt { PreemptLevel::Interrupt } else { info.preempt_level },
            ..info
        }
    }
}
