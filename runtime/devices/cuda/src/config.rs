//! What a CUDA device is made of.

use crate::error::GpuError;
use crate::flag::FlagRoute;
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

/// How long a launch may run where nothing is said; far above any kernel of an inference.
const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(10);

/// Device queues for lanes that are opened, where there are not too many in all.
const LANE_QUEUES: u32 = 32;

/// What a CUDA device is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaConfig {
    /// Which device, counted as the driver does.
    pub index: u32,
    /// The driver's library; the installed one where none is named.
    pub library: Option<PathBuf>,
    /// Device memory to reserve; what is free, but for a spare half gigabyte, where nothing is
    /// said.
    pub memory_bytes: Option<u64>,
    /// The part of the GPU to run on, a partition of its own. All of it, where nothing is said.
    pub part: Option<GpuPart>,
    /// The share of the GPU that an executor with this device gets through MPS; in this process it
    /// is without effect.
    pub mps: Option<MpsShare>,
    /// Device queues; 0 is the most urgent.
    pub queues: u32,
    /// Launches a device queue takes.
    pub queue_capacity: u32,
    /// Launches that go to the driver together, as a CUDA graph, where one says that another one
    /// follows at once and the same came before; each by itself at 1.
    pub segment: u32,
    /// Where kernels look for epochs; measured where nothing is said.
    pub flag_route: Option<FlagRoute>,
    /// GDRCopy's library, by which one of these places is reached; the installed one where none is
    /// named.
    pub bar_library: Option<PathBuf>,
    /// How long a launch may run before the executor that has it is replaced. Nothing but the end
    /// of its process ends a kernel, so in this process there is no limit.
    pub time_limit: Duration,
}

/// Some of a GPU's compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuPart {
    /// So many, which the driver may round up.
    Of(u32),
    /// Those that a part of so many leaves over.
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
            index: 0,
            library: None,
            memory_bytes: None,
            part: None,
            mps: None,
            queues: 2,
            queue_capacity: 4,
            segment: 1,
            flag_route: None,
            bar_library: None,
            time_limit: TIME_LIMIT_DEFAULT,
        }
    }
}

impl CudaConfig {
    /// Rings for its launches. What runs on compute units, nobody tells.
    pub(crate) fn link_shape(&self) -> Result<LinkShape, DeviceError> {
        let shape = LinkShape {
            queues: self.queues,
            paired_queues: self.has_paired_queues(),
            lane_queues: LANE_QUEUES.min(QUEUES_MAX.saturating_sub(2 * self.queues)),
            capacity: self.queue_capacity,
            compute_units: 0,
        };
        let wrong = "a device has 1 to 64 queues, and each has room for 1 to 65536 launches";
        if shape.is_possible() { Ok(shape) } else { Err(DeviceError::Unavailable(wrong.to_owned())) }
    }

    /// Whether each queue has a paired queue.
    fn has_paired_queues(&self) -> bool {
        self.queues <= QUEUES_MAX / 2
    }

    /// The control daemon of MPS whose client a process with this device may be, because it was
    /// given a share or because one runs here anyway.
    pub(crate) fn control(&self) -> Option<MpsControl> {
        self.mps.as_ref().map(MpsShare::control).or_else(MpsControl::ambient)
    }

    /// What the device is, without what its driver says when it starts.
    pub(crate) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: format!("cuda:{}", self.index),
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
            time_limit: None,
            // The completion thread.
            host_threads: 1,
            host_cpus: Vec::new(),
        }
    }
}
