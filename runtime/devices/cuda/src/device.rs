//! The device: its parts, its memory and modules, and its loss.

use crate::completion::{Common, Ended, Flight};
use crate::error::GpuError;
use crate::flag::FlagRoutes;
use crate::module::Module;
use crate::queue::Queue;
use crate::segment::Segments;
use crate::words::EpochWords;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_cuda::{Context, DeviceMemory, Gpu, Partition, Stream, TransferError};
use atoll_device::doorbell::FdBell;
use atoll_device::{
    Completion, Constants, Device, DeviceError, DeviceFacts, DeviceInfo, Domains, LaneTable, LaunchRecord,
    LaunchReport, LaunchStatus, Launching, Memory, ModuleId, ModuleImage, Modules, SubmitError, Telemetry,
};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long dropping a device waits for running launches.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a failed call waits until the completion thread has attributed the fault.
const CAUSE_TIME_MAX: Duration = Duration::from_millis(100);

/// An NVIDIA GPU in this process.
#[derive(Debug)]
pub struct CudaDevice {
    pub(super) info: DeviceInfo,
    pub(super) facts: DeviceFacts,
    pub(super) context: Arc<Context>,
    pub(super) memory: DeviceMemory,
    /// Carries epochs and transfers. The engine's thread makes both, so they never overlap.
    pub(super) service: Stream,
    pub(super) epochs: EpochWords,
    /// The measured routes, if they were measured.
    pub(super) flag_routes: Option<FlagRoutes>,
    pub(super) modules: HashMap<ModuleId, Module>,
    pub(super) modules_loaded: u32,
    /// By index; `None` if the queue belongs to no open lane.
    pub(super) queues: Vec<Option<Queue>>,
    pub(super) lanes: LaneTable,
    pub(super) highest_priority: i32,
    pub(super) queue_capacity: u32,
    pub(super) segments: Segments,
    /// `None` while the device is being dropped.
    pub(super) flights: Option<Sender<(QueueId, Flight)>>,
    pub(super) ended: Receiver<Ended>,
    /// Completions received but not yet returned.
    pub(super) ready: VecDeque<(Completion, Option<DeviceOffset>)>,
    pub(super) bell: FdBell,
    pub(super) common: Common,
}

impl CudaDevice {
    /// The GPU, for further queries.
    pub fn gpu(&self) -> &Gpu {
        self.context.gpu()
    }

    /// The smallest number of compute units of a partition. The error tells why the GPU cannot be
    /// partitioned.
    pub fn smallest_partition(&self) -> Result<u32, DeviceError> {
        Ok(Partition::new(&self.context, 1).map_err(GpuError::from)?.compute_units())
    }

    /// The measured costs of raising and reading a flag, if they were measured.
    pub fn flag_routes(&self) -> Option<&FlagRoutes> {
        self.flag_routes.as_ref()
    }

    /// Registers a module that any thread may have loaded.
    pub(super) fn adopt(&mut self, module: Module) -> ModuleId {
        let id = ModuleId(self.modules_loaded);
        self.modules_loaded += 1;
        self.modules.insert(id, module);
        id
    }

    /// Marks the device as lost if an error says so.
    fn note(&self, error: &DeviceError) {
        if let DeviceError::Lost(why) = error {
            self.mark_lost(why);
        }
    }

    pub(super) fn mark_lost(&self, why: &str) {
        // Prefer the cause that the completion thread finds, since it knows whose launches run. It
        // notices a fault while one of them is in flight, though later than this call did.
        let deadline = Instant::now() + CAUSE_TIME_MAX;
        while self.common.lost.get().is_none()
            && self.queues.iter().flatten().any(Queue::is_busy)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_micros(100));
        }
        if self.common.lost.set(why.to_owned()).is_ok() {
            self.bell.ring(&self.common.bell_rang);
        }
    }

    /// Converts the result of a transfer.
    pub(super) fn transferred(&self, answer: Result<(), TransferError>) -> Result<(), DeviceError> {
        answer.map_err(|error| GpuError::from(error).0).inspect_err(|error| self.note(error))
    }

    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        self.common.lost.get().map_or(Ok(()), |why| Err(DeviceError::Lost(why.clone())))
    }

    /// The oldest completion that was not returned yet.
    fn take(&mut self) -> Option<Completion> {
        if self.common.lost.get().is_some() {
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
        // Sets the evicted word at the offset where the engine reads it.
        if let Some(word) = evicted_word.filter(|_| completion.status == LaunchStatus::Evicted) {
            let written = self.service.fill_word(&self.memory, word.0, 1);
            // An error is noted; nothing else can be done here.
            let _ = self.transferred(written);
        }
        Some(completion)
    }
}

/// Makes sure that kernels can read an epoch word where they look for it. A word outside device
/// memory is refused when its launch is checked.
pub(super) fn watch(
    epochs: &mut EpochWords,
    word: DeviceOffset,
    service: &Stream,
    memory: &DeviceMemory,
) -> Result<(), TransferError> {
    let is_word = word.0.is_multiple_of(4) && memory.range(word.0, 4).is_ok();
    if is_word { epochs.watch(word, service, memory) } else { Ok(()) }
}

impl Launching for CudaDevice {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        let answer = watch(&mut self.epochs, word, &self.service, &self.memory);
        // An error is noted; kernels then read device memory.
        let _ = self.transferred(answer);
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.epochs.store(word, epoch);
        if let Err(error) = self.transferred(self.epochs.write_through(word, epoch, &self.service, &self.memory)) {
            tracing::error!(%error, at = word.0, "cannot raise an epoch in device memory");
        }
    }

    /// # Panics
    /// If the device has no such queue.
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.common.lost.get().is_some() {
            return Err(SubmitError::Lost);
        }
        if !self.queue(queue).has_room() {
            return Err(SubmitError::Full);
        }
        self.accept(queue, record, params);
        Ok(())
    }

    fn next_completion(&mut self) -> Option<Completion> {
        // The bell may have rung between the look and the silencing.
        self.take().or_else(|| self.bell.silence(&self.common.bell_rang).then(|| self.take()).flatten())
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.common.reports.take(launch)
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
        self.common.lost.get().cloned()
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for CudaDevice {
    /// Waits for running launches: memory that a kernel uses must not be freed before the kernel
    /// ends.
    fn drop(&mut self) {
        self.epochs.raise_all();
        self.flights = None;
        loop {
            match self.ended.recv_timeout(DRAIN_TIME_MAX) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!(
                        device = self.info.name,
                        "a kernel does not end; freeing the device's memory waits for it"
                    );
                    return;
                }
            }
        }
    }
}
