//! What a device is.

use crate::lanes::LaneUnits;
use atoll_core::{DeviceOffset, PreemptLevel};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a device is and can do.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `host:0`.
    pub name: String,
    /// Bundle targets it can run, best first: `["host-x86-64-v4", "host-x86-64-v3"]`.
    pub targets: Vec<String>,
    /// Compute units.
    pub compute_units: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Where constants begin: what the engine may write and kernels only read. A store to it fails
    /// the launch.
    pub constants_base: DeviceOffset,
    /// Room for constants in bytes.
    pub constants_bytes: u64,
    /// Constants begin at multiples of this and take multiples of it: what can be shown to some and
    /// not to others.
    pub constants_granule: u64,
    /// Shared memory per block in bytes.
    pub shared_bytes_max: u32,
    /// What it can do to work it was given.
    pub preempt_level: PreemptLevel,
    /// Whether [`Launching::abort`](crate::Launching::abort) ends launches. Otherwise what is on
    /// the device leaves by the epoch or runs to its end.
    pub can_abort: bool,
    /// Device queues it has for tasks; queue 0 has the highest priority.
    pub queues: u32,
    /// Whether as many follow them: each the twin of one of the first, as urgent as it, so that two
    /// lines of one task run beside each other.
    pub twins: bool,
    /// What lanes it can be divided into.
    pub lane_units: LaneUnits,
    /// Launches a device queue takes before [`Launching::submit`](crate::Launching::submit) says
    /// [`SubmitError::Full`](crate::SubmitError::Full).
    pub queue_capacity: u32,
    /// How long a launch may run before the device ends it, where it does.
    pub time_limit: Option<Duration>,
    /// Threads of its own that are busy on CPUs of this machine while it runs blocks.
    pub host_threads: u32,
    /// The CPUs that these are pinned to, if they are.
    pub host_cpus: Vec<usize>,
}

/// A range of addresses that begins at a multiple of its size, a power of two, also where kernels
/// see it. Nothing but what its name says is ever in it, so that a fence which bounds addresses to
/// it ([`atoll_kgraph::fence_params`]) keeps a kernel among its own (design D9).
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

    /// What a fence combines an address with.
    pub fn mask(self) -> u64 {
        self.bytes - 1
    }
}

impl DeviceInfo {
    /// What it is one of: `host` of `host:0`.
    pub fn kind(&self) -> &str {
        self.name.split(':').next().unwrap_or(&self.name)
    }

    /// All memory of a domain, which only its kernels reach; `domain` is what
    /// [`Domains::domain`](crate::Domains::domain) says.
    pub fn memory_range(&self, domain: DeviceOffset) -> AddressRange {
        AddressRange::around(domain, self.memory_bytes)
    }

    /// All constants, of which kernels of a domain can read those that it was shown.
    pub fn constants_range(&self) -> AddressRange {
        AddressRange::around(self.constants_base, self.constants_bytes)
    }
}

/// What a device whose memory lies in its executor finds out when it starts; the rest of its
/// [`DeviceInfo`] is in its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// See [`DeviceInfo::targets`].
    pub targets: Vec<String>,
    /// See [`DeviceInfo::compute_units`].
    pub compute_units: u32,
    /// The memory that was reserved on it. Constants lie in it.
    pub memory_bytes: u64,
    /// See [`DeviceInfo::shared_bytes_max`].
    pub shared_bytes_max: u32,
    /// See [`DeviceInfo::lane_units`].
    pub lane_units: LaneUnits,
}

impl DeviceFacts {
    /// Puts them into a description, in place of what stands there.
    pub fn complete(self, info: DeviceInfo) -> DeviceInfo {
        let DeviceFacts { targets, compute_units, memory_bytes, shared_bytes_max, lane_units } = self;
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
            ..info
        }
    }
}
