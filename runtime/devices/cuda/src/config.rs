//! The configuration of a CUDA device.

use crate::error::GpuError;
use crate::flag::FlagRoute;
use crate::gpu_id::GpuId;
use crate::mps::MpsControl;
use crate::mps::MpsShare;
use atoll_core::{DeviceOffset, PreemptLevel};
use atoll_cuda::{Context, Partition};
use atoll_device::link::{LinkShape, QUEUES_MAX};
use atoll_device::{DeviceError, DeviceInfo, LaneUnits};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default time limit of a launch, far above the time of any inference kernel.
const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(10);

/// Launches that a device queue holds by default. Measured on an H200 in an executor: ResNet-152 at
/// small size takes 3.3 ms with 4, 2.3 ms with 8 and 2.2 ms with 32. Compared with 4, a preemption
/// takes 9 µs longer with 8 and 38 µs longer with 32.
const QUEUE_CAPACITY: u32 = 8;

/// Device queues for further lanes, unless the total would exceed the limit.
const LANE_QUEUES: u32 = 32;

/// What a launch costs beyond its blocks, in nanoseconds: an asynchronous launch takes 2 to 4 µs.
const LAUNCH_NS: u64 = 4_000;

/// The configuration of a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaConfig {
    /// The GPU, or the MIG instance.
    pub gpu: GpuId,
    /// Path of the driver's library; `None` for the installed one.
    pub library: Option<PathBuf>,
    /// Device memory to reserve, in bytes; `None` for all free memory but 512 MiB.
    pub memory_bytes: Option<u64>,
    /// The part of the GPU to use, as a partition; `None` for the whole GPU.
    pub part: Option<GpuPart>,
    /// The share of the GPU that an executor with this device gets through MPS. Without effect if
    /// the device is started in this process.
    pub mps: Option<MpsShare>,
    /// Device queues; queue 0 is the most urgent.
    pub queues: u32,
    /// Launches that a device queue holds.
    pub queue_capacity: u32,
    /// Most launches that go to the driver together as a CUDA graph, see `segment.rs`; 1
    /// disables it.
    pub segment: u32,
    /// Where kernels read epochs; measured if `None`.
    pub flag_route: Option<FlagRoute>,
    /// Path of GDRCopy's library, which gives access to the BAR; `None` for the installed one.
    pub bar_library: Option<PathBuf>,
    /// How long a launch may run before its executor is replaced. Only the end of its process ends
    /// a kernel, so a device in this process has no limit.
    pub time_limit: Duration,
}

/// A part of a GPU's compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuPart {
    /// This many; the driver may round up.
    Of(u32),
    /// The rest, beside a part of this many.
    Beside(u32),
}

impl GpuPart {
    pub(crate) fn partition(self, context: &Arc<Context>) -> Result<Arc<Partition>, GpuError> {
        let partition = match self {
            GpuPart::Of(compute_units) => Partition::new(context, compute_units),
            GpuPart::Beside(compute_units) => Partition::rest_of(context, compute_units),
        };
        Ok(partition?)
    }
}

impl Default for CudaConfig {
    fn default() -> CudaConfig {
        CudaConfig {
            gpu: GpuId::Number(0),
            library: None,
            memory_bytes: None,
            part: None,
            mps: None,
            queues: 2,
            queue_capacity: QUEUE_CAPACITY,
            segment: 1,
            flag_route: None,
            bar_library: None,
            time_limit: TIME_LIMIT_DEFAULT,
        }
    }
}

impl CudaConfig {
    /// The shape of its rings. The GPU reports no occupation or chunks of compute units.
    pub(crate) fn link_shape(&self) -> Result<LinkShape, DeviceError> {
        let shape = LinkShape {
            queues: self.queues,
            paired_queues: self.has_paired_queues(),
            lane_queues: LANE_QUEUES.min(QUEUES_MAX.saturating_sub(2 * self.queues)),
            capacity: self.queue_capacity,
            compute_units: 0,
        };
        let wrong = "a CUDA device needs 1 to 64 queues with room for 1 to 65536 launches each";
        if shape.is_possible() { Ok(shape) } else { Err(DeviceError::Unavailable(wrong.to_owned())) }
    }

    /// Whether each queue has a paired queue.
    fn has_paired_queues(&self) -> bool {
        self.queues <= QUEUES_MAX / 2
    }

    /// The MPS control daemon of which a process with this device may be a client: that of its
    /// share, or one that runs on this machine anyway.
    pub(crate) fn control(&self) -> Option<MpsControl> {
        self.mps.as_ref().map(MpsShare::control).or_else(MpsControl::ambient)
    }

    /// The description of the device before its driver is started.
    pub(crate) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("cuda:{}", self.gpu),
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
