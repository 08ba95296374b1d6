//! The configuration of a HIP device.

use atoll_core::{DeviceOffset, PreemptLevel};
use atoll_device::link::{LinkShape, QUEUES_MAX};
use atoll_device::{DeviceError, DeviceInfo, LaneUnits};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Default time limit of a launch, far above the time of any inference kernel.
const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(10);

/// Device queues for further lanes, unless the total would exceed the limit.
const LANE_QUEUES: u32 = 32;

/// What a launch costs beyond its blocks, in nanoseconds. A guess from REEF's profiles of an MI50,
/// whose shortest kernels take 12 µs including the launch.
const LAUNCH_NS: u64 = 8_000;

/// The configuration of a HIP device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HipConfig {
    /// Index of the GPU, as the library counts.
    pub index: u32,
    /// Path of the library; `None` for the installed one.
    pub library: Option<PathBuf>,
    /// Device memory to reserve, in bytes; `None` for all free memory except 512 MiB for each
    /// process.
    pub memory_bytes: Option<u64>,
    /// Number of compute units to use, from the first one on; `None` for all.
    pub compute_units: Option<u32>,
    /// Device queues; queue 0 is the most urgent.
    pub queues: u32,
    /// Number of launches that a device queue holds.
    pub queue_capacity: u32,
    /// Whether running waves may be killed, with `hipResetWavefronts` if the library has it, else by
    /// Atoll's patch of the kernel driver. The first kills all waves of the process, so no other
    /// device may run in it.
    pub resets_waves: bool,
    /// A handle of the memory of another executor, which owns it. This device then runs launches in
    /// it, and `memory_bytes` is its size.
    pub memory_of: Option<Vec<u8>>,
    /// How long a launch may run before its executor is replaced. A running kernel can only be
    /// ended by ending its process, so a device in this process has no limit.
    pub time_limit: Duration,
}

impl Default for HipConfig {
    fn default() -> HipConfig {
        HipConfig {
            index: 0,
            library: None,
            memory_bytes: None,
            compute_units: None,
            queues: 2,
            queue_capacity: 4,
            resets_waves: false,
            memory_of: None,
            time_limit: TIME_LIMIT_DEFAULT,
        }
    }
}

impl HipConfig {
    /// The shape of its rings. The GPU reports no occupation or chunks of compute units.
    pub(crate) fn link_shape(&self) -> Result<LinkShape, DeviceError> {
        let shape = LinkShape {
            queues: self.queues,
            paired_queues: self.has_paired_queues(),
            lane_queues: LANE_QUEUES.min(QUEUES_MAX.saturating_sub(2 * self.queues)),
            capacity: self.queue_capacity,
            compute_units: 0,
        };
        let wrong = "a HIP device needs 1 to 64 queues with room for 1 to 65536 launches each";
        if shape.is_possible() { Ok(shape) } else { Err(DeviceError::Unavailable(wrong.to_owned())) }
    }

    /// Whether each queue has a paired queue.
    fn has_paired_queues(&self) -> bool {
        self.queues <= QUEUES_MAX / 2
    }

    /// The description of the device before its library is loaded.
    pub(crate) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("hip:{}", self.index),
            targets: Vec::new(),
            compute_units: 0,
            memory_bytes: 0,
            constants_base: DeviceOffset(0),
            constants_bytes: 0,
            constants_granule: 1,
            shared_bytes_max: 0,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: false,
            queues: self.queues,
            paired_queues: self.has_paired_queues(),
            lane_units: LaneUnits::None,
            queue_capacity: self.queue_capacity,
            launch_ns: LAUNCH_NS,
            time_limit: None,
            // The completion thread.
            host_threads: 1,
            host_cpus: Vec::new(),
        }
    }
}
