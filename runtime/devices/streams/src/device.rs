//! The device: its parts, its memory and modules, and its loss.

use crate::completion::{Common, Ended, Flight};
use crate::driver::Driver;
use crate::error::{check_range, device_error};
use crate::launch::Limits;
use crate::module::Module;
use crate::queue::Queue;
use crate::words::EpochWords;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::doorbell::FdBell;
use atoll_device::{
    Completion, Constants, Device, DeviceError, DeviceFacts, DeviceInfo, Domains, LaneTable, LaunchRecord,
    LaunchReport, LaunchStatus, Launching, Memory, ModuleId, ModuleImage, Modules, SubmitError, Telemetry,
};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How long dropping a device waits for running launches.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a failed call waits until the completion thread has attributed the fault.
const CAUSE_TIME_MAX: Duration = Duration::from_millis(100);

/// A GPU in this process.
#[derive(Debug)]
pub struct StreamDevice<D: Driver> {
    pub(crate) info: DeviceInfo,
    pub(crate) facts: DeviceFacts,
    pub(crate) context: Arc<D::Context>,
    pub(crate) memory: D::Memory,
    /// Carries epochs and transfers. The engine's thread makes both, so they never overlap.
    pub(crate) service: D::Stream,
    pub(crate) epochs: EpochWords<D>,
    pub(crate) modules: HashMap<ModuleId, Module<D>>,
    pub(crate) modules_loaded: u32,
    /// By index; `None` if the queue belongs to no open lane.
    pub(crate) queues: Vec<Option<Queue<D>>>,
    pub(crate) lanes: LaneTable,
    pub(crate) highest_priority: i32,
    pub(crate) queue_capacity: u32,
    /// `None` while the device is being dropped.
    pub(crate) flights: Option<Sender<(QueueId, Flight<D>)>>,
    pub(crate) ended: Receiver<Ended<D>>,
    pub(crate) bell: FdBell,
    pub(crate) common: Common,
    /// Whether running blocks can be killed.
    pub(crate) can_reset: bool,
    /// Whether this process owns the memory.
    pub(crate) is_owner: bool,
}

impl<D: Driver> StreamDevice<D> {
    /// The device in use, for further queries.
    pub fn context(&self) -> &Arc<D::Context> {
        &self.context
    }

    /// Registers a module that any thread may have loaded.
    pub(crate) fn adopt(&mut self, module: Module<D>) -> ModuleId {
        let id = ModuleId(self.modules_loaded);
        self.modules_loaded += 1;
        self.modules.insert(id, module);
        id
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            base: D::address(&self.memory),
            memory_bytes: D::bytes(&self.memory),
            shared_bytes_max: self.info.shared_bytes_max,
            compute_units: self.info.compute_units,
        }
    }

    /// Refuses a range outside the memory, and everything once the device is lost.
    pub(crate) fn check(&self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.alive()?;
        check_range(at.0, bytes, D::bytes(&self.memory))
    }

    pub(crate) fn mark_lost(&self, why: &str) {
        // Prefer the cause that the completion thread finds, since it knows whose launches run. It
        // notices a fault while one of them is in flight, though later than this call did.
        let deadline = Instant::now() + CAUSE_TIME_MAX;
        let lost = &self.common.lost;
        while lost.get().is_none() && self.queues.iter().flatten().any(Queue::is_busy) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        self.set_lost(why);
    }

    /// Records the first cause of a loss.
    pub(crate) fn set_lost(&self, why: &str) {
        if self.common.lost.set(why.to_owned()).is_ok() {
            self.bell.ring(&self.common.bell_rang);
        }
    }

    /// Converts the result of a transfer, and notes the loss of the device.
    pub(crate) fn transferred(&self, answer: Result<(), D::Error>) -> Result<(), DeviceError> {
        answer.map_err(|error| device_error(&error)).inspect_err(|error| self.note(error))
    }

    /// Marks the device as lost if an error says so.
    fn note(&self, error: &DeviceError) {
        if let DeviceError::Lost(why) = error {
            self.mark_lost(why);
        }
    }

    pub(crate) fn alive(&self) -> Result<(), DeviceError> {
        self.common.lost.get().map_or(Ok(()), |why| Err(DeviceError::Lost(why.clone())))
    }

    /// The oldest completion that was not returned yet.
    fn take(&mut self) -> Option<Completion> {
        let Ended { queue, mut completion, evicted_word, slot } = self.ended.try_recv().ok()?;
        let is_killed = self.queue(queue).ended(slot);
        if is_killed && completion.status == LaunchStatus::Evicted {
            // How many blocks ran is not known.
            completion.reexecuted_blocks = 1;
        }
        // Sets the evicted word at the offset where the engine reads it.
        if let Some(word) = evicted_word.filter(|_| completion.status == LaunchStatus::Evicted) {
            let mut written = D::fill_word(&self.service, &self.memory, word.0, 1);
            if !self.is_owner {
                // The owner's next transfers must come after it.
                written = written.and_then(|()| D::synchronize(&self.service));
            }
            // An error is noted; nothing else can be done here.
            let _ = self.transferred(written);
        }
        Some(completion)
    }
}

impl<D: Driver> Launching for StreamDevice<D> {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        if self.check(word, 4).is_ok() {
            let answer = self.epochs.watch(word, &self.service, &self.memory);
            // An error is noted; kernels then read device memory.
            let _ = self.transferred(answer);
        }
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.epochs.store(word, epoch);
        let written = self
            .check(word, 4)
            .and_then(|()| self.transferred(self.epochs.write_through(word, epoch, &self.service, &self.memory)));
        if let Err(error) = written {
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

    fn interrupt(&mut self, queue: QueueId, launch: LaunchId, _blocks: u64) {
        self.interrupt_all(queue, launch);
    }

    fn next_completion(&mut self) -> Option<Completion> {
        // The bell may have rung after the first `take` and before it was silenced.
        self.take().or_else(|| self.bell.silence(&self.common.bell_rang).then(|| self.take()).flatten())
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.common.reports.take(launch)
    }
}

impl<D: Driver> Memory for StreamDevice<D> {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(at, bytes.len() as u64)?;
        self.transferred(D::write(&self.service, &self.memory, at.0, bytes))?;
        self.epochs.changed(|words, set| words.written(at, bytes, set));
        Ok(())
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check(at, bytes.len() as u64)?;
        self.transferred(D::read(&self.service, &self.memory, at.0, bytes))
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        self.transferred(D::copy(&self.service, &self.memory, from.0, to.0, bytes))?;
        self.epochs.changed(|words, _| words.forget(to, bytes));
        Ok(())
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.check(at, bytes)?;
        self.transferred(D::fill(&self.service, &self.memory, at.0, value, bytes))?;
        self.epochs.changed(|words, set| words.filled(at, value, bytes, set));
        Ok(())
    }
}

impl<D: Driver> Modules for StreamDevice<D> {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.alive()?;
        let module = Module::<D>::load(&self.context, &self.info, image).inspect_err(|error| self.note(error))?;
        Ok(self.adopt(module))
    }

    fn unload_module(&mut self, module: ModuleId) {
        self.modules.remove(&module);
    }

    fn occupancy(&self, module: ModuleId, kernel: u32) -> Option<u32> {
        let kernel = self.modules.get(&module)?.kernel(kernel)?;
        let threads = kernel.facts.block.iter().product();
        D::occupancy(&kernel.handle, threads, kernel.facts.shared_bytes).filter(|blocks| *blocks > 0)
    }
}

impl<D: Driver> Constants for StreamDevice<D> {}

impl<D: Driver> Domains for StreamDevice<D> {}

impl<D: Driver> Telemetry for StreamDevice<D> {}

impl<D: Driver> Device for StreamDevice<D> {
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

impl<D: Driver> Drop for StreamDevice<D> {
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
