//! Starting a device: its context and memory, its queues, and the place of its epoch words.

use crate::completion::{Common, Poller};
use crate::config::CudaConfig;
use crate::device::CudaDevice;
use crate::error::GpuError;
use crate::flag::{FlagRoute, FlagRoutes, MeasureError};
use crate::lanes::open_queues;
use crate::mps::MpsControl;
use crate::queue::Queue;
use crate::segment::Segments;
use crate::words::EpochWords;
use atoll_core::LaneId;
use atoll_cuda::{Attribute, BarError, BarWords, Context, DeviceMemory, Partition, Stream, TransferError};
use atoll_device::doorbell::FdBell;
use atoll_device::word_table::WORDS_MAX;
use atoll_device::{DeviceError, DeviceFacts, Lane, LaneTable, LaneUnits};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Bytes of device memory that are left to the driver, for code, stacks and its own data.
const SPARE_BYTES: u64 = 512 << 20;

impl CudaDevice {
    /// Creates a device in the primary context of its GPU, and reserves its memory.
    pub fn start(config: &CudaConfig) -> Result<CudaDevice, DeviceError> {
        Ok(CudaDevice::begin(config)?)
    }

    fn begin(config: &CudaConfig) -> Result<CudaDevice, GpuError> {
        let shape = config.link_shape()?;
        let context = config.gpu.open(config.library.as_deref())?.enter()?;
        let memory = reserve(&context, config.memory_bytes)?;
        let partition = config.part.map(|part| part.partition(&context)).transpose()?;
        let facts = describe(&context, partition.as_deref(), &memory)?;
        let info = facts.clone().complete(config.info());
        let highest = context.highest_priority()?;
        let capacity = config.queue_capacity;
        let all = Lane { id: LaneId::DEFAULT, queues: 0..shape.own_queues(), paired_queues: shape.paired_queues };
        let mut queues: Vec<Option<Queue>> = (0..shape.all_queues()).map(|_| None).collect();
        open_queues(&context, &mut queues, &all, partition.as_ref(), highest, capacity)?;
        let lanes = LaneTable::new(shape, info.compute_units, info.lane_units);
        let bell = FdBell::new().map_err(|source| DeviceError::Os { what: "create an eventfd", source })?;
        let ring = bell.try_clone().map_err(|source| DeviceError::Os { what: "duplicate an eventfd", source })?;
        let common = Common::default();
        let (flights, inbox) = channel();
        let (outbox, ended) = channel();
        let is_shared = config.mps.is_some() || MpsControl::ambient().is_some();
        let poller = Poller::new(&context, shape.all_queues(), inbox, outbox, ring, common.clone(), is_shared)?;
        let thread = std::thread::Builder::new().name(format!("atoll-{}", info.name));
        thread
            .spawn(move || poller.run())
            .map_err(|source| DeviceError::Os { what: "start the completion thread", source })?;
        let service = Stream::new(&context, highest)?;
        // Clear data of the memory's previous owner: another process, or the executor that this one
        // replaces.
        service.fill(&memory, 0, 0, memory.bytes())?;
        let bar = bar_words(&context, &service, config)?;
        let flag_routes = match config.flag_route {
            Some(_) => None,
            None => measured(&context, &service, bar.as_ref())?,
        };
        let route = config.flag_route.or(flag_routes.map(|routes| routes.chosen)).unwrap_or(FlagRoute::Mapped);
        let bar = bar.filter(|_| route == FlagRoute::Bar);
        Ok(CudaDevice {
            epochs: EpochWords::new(&context, route, bar)?,
            segments: Segments::new(&context, config.segment)?,
            service,
            flag_routes,
            info,
            facts,
            context,
            memory,
            modules: HashMap::new(),
            modules_loaded: 0,
            queues,
            lanes,
            highest_priority: highest,
            queue_capacity: capacity,
            flights: Some(flights),
            ended,
            ready: VecDeque::new(),
            bell,
            common,
        })
    }
}

/// Words behind the GPU's BAR, if they may be used. Most machines have none, which is an error only
/// if they were configured.
fn bar_words(context: &Arc<Context>, service: &Stream, config: &CudaConfig) -> Result<Option<BarWords>, GpuError> {
    if !matches!(config.flag_route, None | Some(FlagRoute::Bar)) {
        return Ok(None);
    }
    match BarWords::new(context, service, WORDS_MAX, config.bar_library.as_deref()) {
        Ok(words) => Ok(Some(words)),
        Err(BarError::Driver(error)) => Err(error.into()),
        Err(error) if config.flag_route.is_some() => Err(DeviceError::Unavailable(error.to_string()).into()),
        Err(error) => {
            tracing::debug!(%error, "the GPU's BAR is not used for epoch words");
            Ok(None)
        }
    }
}

/// Measures the cost of raising and reading a flag. `None` if the driver does not accept the
/// measuring kernels, which are PTX; it may still accept machine code.
fn measured(context: &Arc<Context>, service: &Stream, bar: Option<&BarWords>) -> Result<Option<FlagRoutes>, GpuError> {
    match FlagRoutes::measure(context, service, bar) {
        Ok(routes) => Ok(Some(routes)),
        Err(MeasureError::Load(error)) => {
            tracing::warn!(%error, "cannot measure where kernels best read epochs; they read host memory");
            Ok(None)
        }
        Err(MeasureError::Driver(error) | MeasureError::Transfer(TransferError::Driver(error))) => Err(error.into()),
        Err(error) => Err(DeviceError::Driver(error.to_string()).into()),
    }
}

fn reserve(context: &Arc<Context>, wanted: Option<u64>) -> Result<DeviceMemory, GpuError> {
    let (free, total) = context.memory_bytes()?;
    let bytes = wanted.unwrap_or_else(|| free.saturating_sub(SPARE_BYTES.min(free / 8)));
    let bytes = bytes - bytes % 256;
    DeviceMemory::new(context, bytes).map_err(|error| match error.is_out_of_memory() {
        true => DeviceError::Unavailable(format!(
            "the GPU has no {bytes} contiguous bytes of memory: {free} of its {total} are free; \
                 stop other users of the GPU, or set a memory limit"
        ))
        .into(),
        false => error.into(),
    })
}

fn describe(
    context: &Arc<Context>,
    partition: Option<&Partition>,
    memory: &DeviceMemory,
) -> Result<DeviceFacts, GpuError> {
    let gpu = context.gpu();
    let all = || gpu.attribute(Attribute::ComputeUnits);
    Ok(DeviceFacts {
        targets: atoll_kgraph::nvidia_targets(gpu.capability()?),
        compute_units: partition.map_or_else(all, |partition| Ok(partition.compute_units()))?,
        memory_bytes: memory.bytes(),
        memory_address: memory.address(),
        shared_bytes_max: gpu.attribute(Attribute::SharedBytesMax)?,
        // A partition cannot be divided further.
        lane_units: match partition {
            Some(_) => LaneUnits::None,
            None => Partition::step(context)
                .map_err(GpuError::from)?
                .map_or(LaneUnits::None, |step| LaneUnits::Ranges { step }),
        },
        can_interrupt: false,
    })
}
