//! The configuration of a host device.

use crate::cpu;
use atoll_core::PreemptLevel;
use atoll_device::link::{CAPACITY_MAX, LinkShape, QUEUES_MAX};
use atoll_device::space::{CONSTANTS_BASE, MEMORY_BYTES_MAX};
use atoll_device::{DeviceError, DeviceInfo, LaneUnits, cpus};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most compute units; with more, the lock of each queue would be the bottleneck.
const COMPUTE_UNITS_MAX: u32 = 512;

/// What a launch costs beyond its blocks, in nanoseconds: the engine's thread uses 1.7 µs for one,
/// by `atoll bench engine`.
const LAUNCH_NS: u64 = 2_000;

/// The configuration of a host device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostConfig {
    /// Its name, such as `host:0`.
    pub name: String,
    /// Number of compute units, one thread each.
    pub compute_units: u32,
    /// Bytes of device memory; pages are allocated when first touched.
    pub memory_bytes: u64,
    /// Bytes of address space for constants; only loaded constants take memory.
    pub constants_bytes: u64,
    /// Device queues of the default lane; 0 is the most urgent.
    pub queues: u32,
    /// Whether these queues have paired queues, if there are several compute units and enough
    /// queues; see [`DeviceInfo::paired_queues`].
    pub paired_queues: bool,
    /// Device queues for further lanes; reduced if the total would exceed the limit.
    pub lane_queues: u32,
    /// Launches that a device queue holds.
    pub queue_capacity: u32,
    /// Shared memory per block in bytes.
    pub shared_bytes_max: u32,
    /// How long a compute unit should run blocks before it checks the queues again, in nanoseconds.
    pub chunk_ns: u64,
    /// How long a compute unit spins before it sleeps while the device is idle, in nanoseconds.
    pub spin_ns: u64,
    /// The same while other compute units run blocks, in nanoseconds.
    pub busy_spin_ns: u64,
    /// CPUs for the compute units; each is pinned to its own. If there are fewer CPUs than compute
    /// units, none is pinned.
    pub cpus: Vec<usize>,
    /// How long a launch may run before it is ended as failed; time in the queue does not count.
    pub time_limit: Duration,
}

impl Default for HostConfig {
    /// All CPUs and half of this machine's memory.
    fn default() -> HostConfig {
        let memory_bytes = (system_memory_bytes() / 2).min(MEMORY_BYTES_MAX);
        HostConfig {
            name: "host:0".to_owned(),
            compute_units: std::thread::available_parallelism().map_or(1, |n| n.get() as u32).min(COMPUTE_UNITS_MAX),
            memory_bytes,
            constants_bytes: memory_bytes,
            queues: 2,
            paired_queues: true,
            lane_queues: 32,
            queue_capacity: 4,
            // As much as the largest GPUs have, so that kernels tuned for them run.
            shared_bytes_max: 228 << 10,
            chunk_ns: 50_000,
            spin_ns: 2_000,
            busy_spin_ns: 20_000,
            cpus: cpus::allowed(),
            // Far above the time of any inference kernel; longer limits can be configured.
            time_limit: Duration::from_secs(10),
        }
    }
}

impl HostConfig {
    pub(crate) fn checked(self) -> Result<HostConfig, DeviceError> {
        within("compute units", self.compute_units.into(), COMPUTE_UNITS_MAX.into())?;
        within("device queues", self.queues.into(), QUEUES_MAX.into())?;
        within("device queue capacity", self.queue_capacity.into(), CAPACITY_MAX.into())?;
        within("device memory", self.memory_bytes, MEMORY_BYTES_MAX)?;
        within("constants", self.constants_bytes, MEMORY_BYTES_MAX)?;
        if cpu::targets().is_empty() {
            return Err(refused("CPU", "must support at least x86-64-v3".to_owned()));
        }
        Ok(self)
    }

    pub(crate) fn link_shape(&self) -> LinkShape {
        let paired_queues = self.has_paired_queues();
        let lane_queues = self.lane_queues.min(QUEUES_MAX - self.queues * if paired_queues { 2 } else { 1 });
        LinkShape {
            queues: self.queues,
            paired_queues,
            lane_queues,
            capacity: self.queue_capacity,
            compute_units: self.compute_units,
        }
    }

    fn has_paired_queues(&self) -> bool {
        self.paired_queues && self.compute_units > 1 && self.queues <= QUEUES_MAX / 2
    }

    /// The CPUs of the compute units, in their order; empty if they are not pinned.
    pub(crate) fn pinned_to(&self) -> &[usize] {
        self.cpus.get(..self.compute_units as usize).unwrap_or_default()
    }

    pub(crate) fn info(self) -> DeviceInfo {
        DeviceInfo {
            paired_queues: self.has_paired_queues(),
            lane_units: LaneUnits::Any,
            host_cpus: self.pinned_to().to_vec(),
            name: self.name,
            targets: cpu::targets(),
            compute_units: self.compute_units,
            memory_bytes: self.memory_bytes,
            constants_base: CONSTANTS_BASE,
            constants_bytes: self.constants_bytes,
            constants_granule: rustix::param::page_size() as u64,
            shared_bytes_max: self.shared_bytes_max,
            preempt_level: PreemptLevel::Interrupt,
            can_abort: true,
            queues: self.queues,
            queue_capacity: self.queue_capacity,
            launch_ns: LAUNCH_NS,
            time_limit: Some(self.time_limit),
            host_threads: self.compute_units,
        }
    }
}

fn within(what: &'static str, value: u64, max: u64) -> Result<(), DeviceError> {
    match value {
        0 => Err(refused(what, "must be at least 1".to_owned())),
        _ if value > max => Err(refused(what, format!("must be at most {max}"))),
        _ => Ok(()),
    }
}

fn refused(what: &'static str, why: String) -> DeviceError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("{what}: {why}"));
    DeviceError::Os { what: "configure the host device", source }
}

/// Memory of this machine, as far as this process may see.
fn system_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}
