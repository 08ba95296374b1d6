//! An NVIDIA GPU, driven through the CUDA driver's API, which is loaded when the device is started ([`atoll_cuda`]).
//!
//! ```text
//! engine's thread                         driver                              completion thread
//! submit ── event, kernel, event ──▶ a stream per device queue
//!        ── the launch's slot ───────────────────────────────────────────────▶ asks for the oldest event of each queue
//! store_epoch ── one store ────────▶ epoch words in mapped host memory ──▶ kernels
//!             ── write value ──────▶ service stream ──▶ the word in device memory
//! write, read, copy, fill ─────────▶ service stream, waited for
//! next_completion ◀────────────────── channel, eventfd ◀───────────────────────
//! ```
//!
//! **The offset space** is one reservation of device memory, which begins at offset 0 and is zero when the device starts. There is no other part for constants: the engine places them in the same memory, and
//! nothing keeps a kernel from writing to one of its own process. Offsets in address slots become addresses when a launch is submitted ([`launch`](self)).
//!
//! **Queues** are streams; queue 0 has the highest priority of the context, the last one the lowest. Blocks that wait go in that order; blocks that run are never stopped, so the level is
//! `PreemptLevel::Deactivate`. Where the device is to run on a part of the GPU, they are streams of a partition. A queue holds as many launches as it has slots; a slot is two timed events
//! and a word in host memory, reserved when the device starts. Launches of which each says that the next one follows at once may take one together, as a CUDA graph ([`segment`](self)).
//!
//! **Epochs.** A kernel finds its task's epoch word where reading it costs the device least without being late: which of three places that is, is measured when the device starts (`flag`).
//! The word in device memory is written in any case, by a stream that has nothing else to do, so that it says the truth to copies. Where kernels look at mapped host memory, or at device memory
//! that the host sees through the GPU's BAR (on machines with GDRCopy), raising an epoch is one store. All kernels of a task look at the same place, also those that it shares with others: one
//! that left and a later one that did not would otherwise be seen.
//!
//! **Completions.** The evicted word of a launch lies in its slot, in host memory: a block that leaves writes there, nobody has to copy it, and the launch's second event says that it can be read
//! (design D5 a). One thread asks for the events; it waits a sixteenth of what it has waited, so an end is seen late by a few hundredths of a kernel's time at most. `started_ns` and `ended_ns` come from the events,
//! moved to the host's clock (`clock`). `busy_ns` is an estimate from above: the time between the events, on as many compute units as the launch has blocks. It counts what two queues did at once twice.
//!
//! **Faults.** What a kernel does wrong ends the context: every later call fails, every launch in flight ends as failed, and the device is lost with its memory. So kernels that may fault belong into
//! an executor process (design D11), which has this device and shares its epoch words with the daemon (`shared`).

mod clock;
mod completion;
mod config;
mod error;
mod flag;
mod lanes;
mod launch;
mod module;
mod mps;
mod queue;
mod segment;
mod shared;
mod submit;
mod words;

pub use config::{CudaConfig, GpuPart};
pub use flag::{FlagRoute, FlagRoutes, RouteCost};
pub use mps::{MpsControl, MpsError, MpsShare};
pub use shared::KIND;

use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_cuda::{Attribute, BarError, BarWords, Context, DeviceMemory, Driver, Gpu, Partition, Stream, TransferError};
use atoll_device::doorbell::FdBell;
use atoll_device::word_table::WORDS_MAX;
use atoll_device::{
    Completion, Constants, Device, DeviceError, DeviceFacts, DeviceInfo, Domains, Lane, LaneTable, LaneUnits, LaunchRecord, LaunchReport,
    LaunchStatus, Launching, Memory, ModuleId, ModuleImage, Modules, Reports, SubmitError, Telemetry,
};
use completion::{Ended, Flight, Poller};
use error::GpuError;
use flag::MeasureError;
use lanes::open_queues;
use module::Module;
use queue::Queue;
use segment::Segments;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use words::EpochWords;

/// How long dropping a device waits for what it still runs.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a call that failed waits to hear which launch may have done it.
const VERDICT_TIME_MAX: Duration = Duration::from_millis(100);

/// Memory that is left to the driver: for code, for stacks of threads, for its own.
const SPARE_BYTES: u64 = 512 << 20;

/// An NVIDIA GPU, in this process.
#[derive(Debug)]
pub struct CudaDevice {
    info: DeviceInfo,
    facts: DeviceFacts,
    context: Arc<Context>,
    memory: DeviceMemory,
    /// For epochs and transfers, which need the engine's thread and so never meet.
    service: Stream,
    epochs: EpochWords,
    /// What was measured, where it was.
    flag_routes: Option<FlagRoutes>,
    modules: HashMap<ModuleId, Module>,
    modules_loaded: u32,
    /// By number; those of lanes that are not open are not there.
    queues: Vec<Option<Queue>>,
    lanes: LaneTable,
    highest_priority: i32,
    queue_capacity: u32,
    segments: Segments,
    /// `None` once the device is being dropped.
    flights: Option<Sender<(QueueId, Flight)>>,
    /// Launches that were sent there, and those that are about to be.
    begun: Arc<AtomicU64>,
    ended: Receiver<Ended>,
    /// Taken from there, and not handed out.
    ready: VecDeque<(Completion, Option<DeviceOffset>)>,
    bell: FdBell,
    bell_rang: Arc<AtomicU32>,
    reports: Arc<Reports>,
    lost: Arc<OnceLock<String>>,
}

impl CudaDevice {
    /// Enters a device's context and reserves its memory.
    pub fn start(config: &CudaConfig) -> Result<CudaDevice, DeviceError> {
        Ok(CudaDevice::begin(config)?)
    }

    fn begin(config: &CudaConfig) -> Result<CudaDevice, GpuError> {
        let shape = config.link_shape()?;
        let driver = config.library.as_deref().map_or_else(Driver::load, Driver::load_from)?;
        let context = driver.gpu(config.index)?.enter()?;
        let memory = reserve(&context, config.memory_bytes)?;
        let partition = config.part.map(|part| part.partition(&context)).transpose()?;
        let facts = describe(&context, partition.as_deref(), memory.bytes())?;
        let info = facts.clone().complete(config.info());
        let highest = context.highest_priority()?;
        let capacity = config.queue_capacity;
        let all = Lane { id: LaneId::DEFAULT, queues: 0..shape.own_queues(), twins: shape.twins };
        let mut queues: Vec<Option<Queue>> = (0..shape.all_queues()).map(|_| None).collect();
        open_queues(&context, &mut queues, &all, partition.as_ref(), highest, capacity)?;
        let lanes = LaneTable::new(shape, info.compute_units, info.lane_units);
        let bell = FdBell::new().map_err(|source| DeviceError::Os { what: "create an eventfd", source })?;
        let ring = bell.try_clone().map_err(|source| DeviceError::Os { what: "duplicate an eventfd", source })?;
        let (bell_rang, reports, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(Reports::default()), Arc::new(OnceLock::new()));
        let (flights, inbox) = channel();
        let (outbox, ended) = channel();
        let poller = Poller::new(&context, shape.all_queues(), inbox, outbox, ring, bell_rang.clone(), reports.clone(), lost.clone())?;
        let begun = Arc::new(AtomicU64::new(0));
        let poller = poller.judging(config.mps.is_some() || MpsControl::ambient().is_some(), begun.clone());
        let thread = std::thread::Builder::new().name(format!("atoll-{}", info.name));
        thread.spawn(move || poller.run()).map_err(|source| DeviceError::Os { what: "start the completion thread", source })?;
        let service = Stream::new(&context, highest)?;
        // Whoever had it before may have left something in it: another process, or the one that this one replaces.
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
            begun,
            ended,
            ready: VecDeque::new(),
            bell,
            bell_rang,
            reports,
            lost,
        })
    }

    /// The GPU, for those who want to know more about it.
    pub fn gpu(&self) -> &Gpu {
        self.context.gpu()
    }

    /// The fewest compute units that a part of the GPU can have; an error says why there are no parts.
    pub fn smallest_partition(&self) -> Result<u32, DeviceError> {
        Ok(Partition::new(&self.context, 1).map_err(GpuError::from)?.compute_units())
    }

    /// What raising and reading a flag costs here, if it was measured.
    pub fn flag_routes(&self) -> Option<&FlagRoutes> {
        self.flag_routes.as_ref()
    }

    /// Takes a module in that was loaded, by whichever thread.
    fn adopt(&mut self, module: Module) -> ModuleId {
        let id = ModuleId(self.modules_loaded);
        self.modules_loaded += 1;
        self.modules.insert(id, module);
        id
    }

    /// Notes that the context is gone, if that is what an answer says.
    fn note(&self, error: &DeviceError) {
        if let DeviceError::Lost(why) = error {
            self.lose(why);
        }
    }

    fn lose(&self, why: &str) {
        // The completion thread knows whose launches run. It hears of a fault while one of them is in flight, if later than a call that was made meanwhile.
        let deadline = Instant::now() + VERDICT_TIME_MAX;
        while self.lost.get().is_none() && self.queues.iter().flatten().any(Queue::is_busy) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        if self.lost.set(why.to_owned()).is_ok() {
            self.bell.ring(&self.bell_rang);
        }
    }

    /// The end of a transfer.
    fn transferred(&self, answer: Result<(), TransferError>) -> Result<(), DeviceError> {
        answer.map_err(|error| GpuError::from(error).0).inspect_err(|error| self.note(error))
    }

    fn alive(&self) -> Result<(), DeviceError> {
        self.lost.get().map_or(Ok(()), |why| Err(DeviceError::Lost(why.clone())))
    }

    /// The oldest completion that was not handed out.
    fn take(&mut self) -> Option<Completion> {
        if self.lost.get().is_some() {
            self.abandon_held();
        }
        if self.ready.is_empty() {
            let Ended { queue, completions, slot, segment } = self.ended.try_recv().ok()?;
            self.queue(queue).ended(completions.len(), slot);
            if let Some((key, segment)) = segment {
                self.segments.ended(&key, segment);
            }
            self.ready.extend(completions);
        }
        let (completion, evicted_word) = self.ready.pop_front()?;
        // Where everybody else looks for it.
        if let Some(word) = evicted_word.filter(|_| completion.status == LaunchStatus::Evicted) {
            let written = self.service.fill_word(&self.memory, word.0, 1);
            // A refusal is heard of, and nothing more can be done here.
            let _ = self.transferred(written);
        }
        Some(completion)
    }
}

/// Sees that an epoch word is where kernels look for epochs; one outside the memory is found elsewhere.
fn watch(epochs: &mut EpochWords, word: DeviceOffset, service: &Stream, memory: &DeviceMemory) -> Result<(), TransferError> {
    let is_word = word.0.is_multiple_of(4) && memory.range(word.0, 4).is_ok();
    if is_word { epochs.watch(word, service, memory) } else { Ok(()) }
}

/// Words behind the GPU's BAR, where they may be wanted: most machines have none, and nobody minds unless they were asked for.
fn bar_words(context: &Arc<Context>, service: &Stream, config: &CudaConfig) -> Result<Option<BarWords>, GpuError> {
    if !matches!(config.flag_route, None | Some(FlagRoute::Bar)) {
        return Ok(None);
    }
    match BarWords::new(context, service, WORDS_MAX, config.bar_library.as_deref()) {
        Ok(words) => Ok(Some(words)),
        Err(BarError::Driver(error)) => Err(error.into()),
        Err(error) if config.flag_route.is_some() => Err(DeviceError::Unavailable(error.to_string()).into()),
        Err(error) => {
            tracing::debug!(%error, "no words behind the GPU's BAR");
            Ok(None)
        }
    }
}

/// What raising and reading a flag costs. A driver that does not take the kernels of that may take others, as machine code.
fn measured(context: &Arc<Context>, service: &Stream, bar: Option<&BarWords>) -> Result<Option<FlagRoutes>, GpuError> {
    match FlagRoutes::measure(context, service, bar) {
        Ok(routes) => Ok(Some(routes)),
        Err(MeasureError::Load(error)) => {
            tracing::warn!(%error, "where kernels best look for epochs cannot be measured; they look in host memory");
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
            "the GPU has no {bytes} bytes of memory in one piece: {free} of its {total} are free; end what else uses it, or set a memory limit"
        ))
        .into(),
        false => error.into(),
    })
}

fn describe(context: &Arc<Context>, partition: Option<&Partition>, memory_bytes: u64) -> Result<DeviceFacts, GpuError> {
    let gpu = context.gpu();
    let all = || gpu.attribute(Attribute::ComputeUnits);
    Ok(DeviceFacts {
        targets: atoll_kgraph::nvidia_targets(gpu.capability()?),
        compute_units: partition.map_or_else(all, |partition| Ok(partition.compute_units()))?,
        memory_bytes,
        shared_bytes_max: gpu.attribute(Attribute::SharedBytesMax)?,
        // A part is not divided once more.
        lane_units: match partition {
            Some(_) => LaneUnits::None,
            None => Partition::step(context).map_err(GpuError::from)?.map_or(LaneUnits::None, |step| LaneUnits::Ranges { step }),
        },
    })
}

impl Launching for CudaDevice {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        let answer = watch(&mut self.epochs, word, &self.service, &self.memory);
        // A refusal is heard of, and kernels look at device memory then.
        let _ = self.transferred(answer);
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.epochs.store(word, epoch);
        if let Err(error) = self.transferred(self.epochs.write_through(word, epoch, &self.service, &self.memory)) {
            tracing::error!(%error, at = word.0, "an epoch is not raised in device memory");
        }
    }

    /// # Panics
    /// If the device has no such queue.
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.lost.get().is_some() {
            return Err(SubmitError::Lost);
        }
        if !self.queue(queue).has_room() {
            return Err(SubmitError::Full);
        }
        self.accept(queue, record, params);
        Ok(())
    }

    fn next_completion(&mut self) -> Option<Completion> {
        // A ring may have come between looking and silencing.
        self.take().or_else(|| self.bell.silence(&self.bell_rang).then(|| self.take()).flatten())
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.reports.take(launch)
    }
}

impl Memory for CudaDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.alive()?;
        self.transferred(self.service.write(&self.memory, at.0, bytes))?;
        self.epochs.changed(|words, set| words.written(at, bytes, set));
        Ok(())
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.alive()?;
        self.transferred(self.service.read(&self.memory, at.0, bytes))
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.alive()?;
        self.transferred(self.service.copy(&self.memory, from.0, to.0, bytes))?;
        self.epochs.changed(|words, _| words.forget(to, bytes));
        Ok(())
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.alive()?;
        self.transferred(self.service.fill(&self.memory, at.0, value, bytes))?;
        self.epochs.changed(|words, set| words.filled(at, value, bytes, set));
        Ok(())
    }
}

impl Modules for CudaDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.alive()?;
        let module = Module::load(&self.context, &self.info, image).inspect_err(|error| self.note(error))?;
        Ok(self.adopt(module))
    }

    fn unload_module(&mut self, module: ModuleId) {
        self.segments.forget();
        self.modules.remove(&module);
    }

    fn occupancy(&self, module: ModuleId, kernel: u32) -> Option<u32> {
        let kernel = self.modules.get(&module)?.kernel(kernel)?;
        let threads = kernel.facts.block.iter().product();
        kernel.handle.occupancy(threads, kernel.facts.shared_bytes).ok().filter(|blocks| *blocks > 0)
    }
}

impl Constants for CudaDevice {}

impl Domains for CudaDevice {}

impl Telemetry for CudaDevice {}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for CudaDevice {
    /// Waits for what runs: nothing that a kernel uses may go before it.
    fn drop(&mut self) {
        self.epochs.raise_all();
        self.flights = None;
        loop {
            match self.ended.recv_timeout(DRAIN_TIME_MAX) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!(device = self.info.name, "a kernel does not end; freeing the device's memory waits for it");
                    return;
                }
            }
        }
    }
}
