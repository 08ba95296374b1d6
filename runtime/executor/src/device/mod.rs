//! The daemon's side of an executor.

mod completions;
mod lanes;
mod paired;
mod telemetry;

use crate::cgroup::GroupSpec;
use crate::channel::{Channel, ChannelError};
use crate::config::ExecutorConfig;
use crate::memory::ExecutorMemory;
use crate::port::Port;
use crate::remote::RemoteMemory;
use crate::sealed::SealedModule;
use crate::supervisor::{self, Loss, Start, Supervised};
use crate::wire::{ConstantRange, DESCRIPTORS_MAX, Order, PROTOCOL_VERSION, RANGES_MAX};
use atoll_core::{DeviceOffset, Epoch, LaunchId, PreemptLevel, QueueId};
use atoll_device::doorbell::FdBell;
use atoll_device::extent::{Extent, discard};
use atoll_device::link::EngineSide;
use atoll_device::process::MemoryHome;
use atoll_device::shm::Region;
use atoll_device::space::{CONSTANTS_BASE, ConstantStore, EngineSpace, memory_region};
use atoll_device::{
    Completion, Constants, Device, DeviceError, DeviceFacts, DeviceInfo, Domains, FaultKind, LaunchRecord,
    LaunchReport, Launching, LossCause, Memory, ModuleId, ModuleImage, Modules, SubmitError,
};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

/// How long dropping a device waits for its process to be reaped. The process has been killed, so a
/// longer wait is up to the system.
const REAP_WITHIN: Duration = Duration::from_secs(5);

/// An id that no module has.
const NO_MODULE: ModuleId = ModuleId(u32::MAX);

/// A device that runs in another process.
#[derive(Debug)]
pub struct ExecutorDevice {
    info: DeviceInfo,
    engine_side: EngineSide,
    memory: ExecutorMemory,
    executor: Arc<Supervised>,
    pid: u32,
    answer_within: Duration,
    load_within: Duration,
    /// For each id ever assigned: whether the module is loaded or being loaded.
    modules: Vec<bool>,
    /// Completions whose launches may have reports that are still to be received, oldest first, with
    /// the number of reports sent before.
    held: VecDeque<(u64, Completion)>,
    /// Queues of a dead executor for which a launch was completed: only the first launch of each
    /// may have been running.
    abandoned: Vec<QueueId>,
}

impl ExecutorDevice {
    /// Starts an executor. Waits until it runs only if the executor has to report the facts of the
    /// device; otherwise the first load waits.
    ///
    /// # Errors
    /// If the process cannot be started, or does not report the facts of its device.
    pub fn start(config: ExecutorConfig) -> Result<ExecutorDevice, DeviceError> {
        match config.device.memory {
            MemoryHome::Daemon => Self::start_shared(&config, memory_region(config.device.info.memory_bytes)?),
            MemoryHome::Process => Self::start_remote(&config, None),
        }
    }

    /// An executor with existing memory that the daemon owns.
    pub(crate) fn start_shared(config: &ExecutorConfig, memory: Arc<Region>) -> Result<ExecutorDevice, DeviceError> {
        let info = config.device.info.clone();
        let engine_side = EngineSide::new(config.device.link)?.with_untrusted_peer();
        let start = Self::prepare(config, &engine_side, &[memory.as_fd()], Some(memory.clone()))?;
        let space = EngineSpace { memory, constants: ConstantStore::new(info.constants_bytes) };
        Self::launch_process(config, start, info, engine_side, ExecutorMemory::Shared(space))
    }

    /// An executor of a device with memory of its own. Its facts are known already, or reported
    /// before this returns.
    pub(crate) fn start_remote(
        config: &ExecutorConfig,
        facts: Option<DeviceFacts>,
    ) -> Result<ExecutorDevice, DeviceError> {
        let engine_side = EngineSide::new(config.device.link)?.with_untrusted_peer();
        let port = Port::create().map_err(os("create memory for transfers"))?;
        let wake = FdBell::new().map_err(os("create an eventfd"))?;
        let start = Self::prepare(config, &engine_side, &[port.as_fd(), wake.as_fd()], None)?;
        let executor = start.executor.clone();
        let bytes = facts.as_ref().map_or(0, |facts| facts.memory_bytes);
        let memory = RemoteMemory::new(port, wake, executor, bytes, config.answer_within);
        let is_known = facts.is_some();
        let info = facts.unwrap_or_default().complete(config.device.info.clone());
        let mut device = Self::launch_process(config, start, info, engine_side, ExecutorMemory::Remote(memory))?;
        if !is_known {
            device.wait_for_facts()?;
        }
        Ok(device)
    }

    /// Waits until the executor has reported the facts of its device.
    fn wait_for_facts(&mut self) -> Result<(), DeviceError> {
        let unavailable = |error| self.executor.refusal().map_or(error, DeviceError::Unavailable);
        self.wait_ready().map_err(unavailable)?;
        let nothing = || DeviceError::Lost(format!("executor {} did not report its device", self.pid));
        let facts = self.executor.facts().ok_or_else(nothing)?;
        if let ExecutorMemory::Remote(memory) = &mut self.memory {
            memory.bytes = facts.memory_bytes;
        }
        self.info = facts.complete(self.info.clone());
        Ok(())
    }

    /// The facts of the device, if only the executor knows them; `None` before it reported them.
    pub(crate) fn facts(&self) -> Option<DeviceFacts> {
        self.executor.facts()
    }

    /// Sends the first message to an executor that is about to be started.
    fn prepare(
        config: &ExecutorConfig,
        engine_side: &EngineSide,
        memory: &[BorrowedFd<'_>],
        shared: Option<Arc<Region>>,
    ) -> Result<Start, DeviceError> {
        let (channel, socket) = Channel::pair().map_err(os("create a channel"))?;
        let (link, bell) = (engine_side.link.clone(), engine_side.device_bell()?);
        let service = config.device.service.clone();
        let executor = Supervised::new(channel, link, bell, config.time_limits(), service, shared);
        let hello = Order::Hello {
            version: PROTOCOL_VERSION,
            daemon: rustix::process::getpid().as_raw_nonzero().get(),
            device: config.device.kind.to_owned(),
            config: config.device.config.clone(),
            memory_bytes: config.device.memory_bytes,
            nice: config.nice,
        };
        let descriptors = [&[engine_side.link.as_fd(), engine_side.completion_fd()], memory].concat();
        executor.send_hello(&hello, &descriptors).map_err(lost)?;
        Ok(Start {
            program: config.program.clone(),
            arguments: config.arguments.clone(),
            environment: config.environment.clone(),
            socket,
            executor: Arc::new(executor),
            group: config.groups.clone().filter(|_| config.device.memory == MemoryHome::Daemon).map(|groups| {
                let DeviceInfo { memory_bytes: device_bytes, compute_units, .. } = config.device.info;
                let is_own = config.nice == 0;
                (groups, GroupSpec { domain: config.domain.clone(), is_own, device_bytes, compute_units })
            }),
        })
    }

    /// Starts the process.
    fn launch_process(
        config: &ExecutorConfig,
        start: Start,
        info: DeviceInfo,
        mut engine_side: EngineSide,
        memory: ExecutorMemory,
    ) -> Result<ExecutorDevice, DeviceError> {
        let executor = start.executor.clone();
        let pid = supervisor::start(start).map_err(os("start an executor"))?;
        engine_side.set_process(pid.cast_signed());
        let ExecutorConfig { answer_within, load_within, .. } = *config;
        Ok(ExecutorDevice {
            info,
            engine_side,
            memory,
            executor,
            pid,
            answer_within,
            load_within,
            modules: Vec::new(),
            held: VecDeque::new(),
            abandoned: Vec::new(),
        })
    }

    /// The executor's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the executor runs; returns what its jail lacks on this machine.
    pub fn wait_ready(&self) -> Result<Vec<String>, DeviceError> {
        let until = Instant::now() + self.answer_within * 2;
        loop {
            if let Some(lacks) = self.jail_lacks() {
                return Ok(lacks);
            }
            self.check_lost()?;
            if !self.executor.wait_for_change(until) {
                return Err(DeviceError::Lost(format!("executor {} did not answer", self.pid)));
            }
        }
    }

    /// Sets how many bytes of its memory the executor may touch.
    pub(crate) fn allow_memory(&self, bytes: u64) {
        self.executor.allow_memory(bytes);
    }

    /// What the executor's jail lacks on this machine; `None` before the executor runs.
    pub fn jail_lacks(&self) -> Option<Vec<String>> {
        self.executor.ready()
    }

    /// Starts loading a module.
    pub(crate) fn begin_load_sealed(&mut self, image: &SealedModule) -> Result<ModuleId, DeviceError> {
        self.check_lost()?;
        let file = image.file.try_clone().map_err(os("duplicate the descriptor of a module"))?;
        let module = self.modules.len() as u32;
        self.modules.push(true);
        self.executor.allow_scratch(u64::from(image.scratch_bytes));
        let SealedModule { code_bytes, ptx_bytes, facts_bytes, .. } = *image;
        self.executor
            .send(Order::Load { module, target: image.target.clone(), code_bytes, ptx_bytes, facts_bytes }, vec![file]);
        Ok(ModuleId(module))
    }

    /// Tells the executor to map constants.
    pub(crate) fn begin_show<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        let open = |(at, extent): (DeviceOffset, &Extent)| Ok((range(at, extent), extent.read_only()?));
        match constants.into_iter().map(open).collect::<std::io::Result<Vec<_>>>() {
            Ok(mut pairs) => {
                while !pairs.is_empty() {
                    let (constants, files) = pairs.drain(..pairs.len().min(DESCRIPTORS_MAX)).unzip();
                    self.executor.send(Order::Show { constants }, files);
                }
            }
            Err(error) => self.executor.end(LossCause::Ended(format!("cannot be given its constants: {error}"))),
        }
    }

    /// Tells the executor to unmap constants.
    pub(crate) fn begin_hide<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        let ranges: Vec<_> = constants.into_iter().map(|(at, extent)| range(at, extent)).collect();
        for constants in ranges.chunks(RANGES_MAX) {
            self.executor.send(Order::Hide { constants: constants.to_vec() }, Vec::new());
        }
    }

    /// Whether the executor has mapped all constants that it was told to map.
    pub(crate) fn has_shown_all(&self) -> bool {
        self.executor.has_shown_all()
    }

    /// Number of the executor's chunks that have not been taken.
    pub(crate) fn chunks_left(&self) -> u64 {
        self.engine_side.chunks_left()
    }

    /// The executor's state, for other threads.
    pub(crate) fn supervised(&self) -> &Arc<Supervised> {
        &self.executor
    }

    /// Why the executor is gone; `None` while it lives.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.executor.loss()
    }

    /// Whether the executor ran and then reported that it cannot continue.
    pub(crate) fn gave_up(&self) -> bool {
        self.jail_lacks().is_some() && self.executor.refusal().is_some()
    }

    /// Kills the executor; the loss is reported as "executor 123 `why`".
    pub(crate) fn kill(&self, why: &str) {
        self.executor.end(LossCause::Ended(why.to_owned()));
    }

    /// Forgets a module; true if it was loaded.
    fn forget(&mut self, module: ModuleId) -> bool {
        self.modules.get_mut(module.0 as usize).is_some_and(std::mem::take)
    }

    fn check_lost(&self) -> Result<(), DeviceError> {
        self.lost().map_or(Ok(()), |cause| Err(DeviceError::Lost(cause)))
    }
}

impl Device for ExecutorDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lost(&self) -> Option<String> {
        self.executor.loss().map(Loss::to_string)
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.engine_side.completion_fd()
    }
}

impl Launching for ExecutorDevice {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        if let ExecutorMemory::Remote(memory) = &mut self.memory {
            // The loss of the executor is detected elsewhere.
            let _ = memory.watch(word);
        }
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.memory.store_epoch(word, epoch);
    }

    /// # Panics
    /// If the device has no such queue.
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.executor.loss().is_some() {
            return Err(SubmitError::Lost);
        }
        // The message that unloads it may not have been sent yet.
        let is_loaded = self.modules.get(record.module.0 as usize).is_some_and(|is_loaded| *is_loaded);
        let record = if is_loaded { *record } else { LaunchRecord { module: NO_MODULE, ..*record } };
        if let ExecutorMemory::Remote(memory) = &mut self.memory
            && record.preemptible == 1
        {
            memory.watch(record.epoch_word).map_err(|_| SubmitError::Lost)?;
        }
        let activity = &self.executor.activity;
        activity.submitted.fetch_add(1, Release);
        if let Err(error) = self.engine_side.submit(queue, &record, params) {
            activity.submitted.fetch_sub(1, Release);
            return Err(error);
        }
        activity.in_flight.fetch_add(1, Relaxed);
        if let ExecutorMemory::Remote(memory) = &self.memory {
            memory.wake();
        }
        Ok(())
    }

    /// # Panics
    /// If the device has no such queue.
    fn interrupt(&mut self, queue: QueueId, launch: LaunchId, blocks: u64) {
        match &self.memory {
            ExecutorMemory::Shared(_) => self.engine_side.interrupt(queue, launch, blocks),
            ExecutorMemory::Remote(_) if self.info.preempt_level == PreemptLevel::Interrupt => {
                self.executor.send(Order::Interrupt { queue: queue.0, launch: launch.0 }, Vec::new());
            }
            ExecutorMemory::Remote(_) => {}
        }
    }

    /// # Panics
    /// If the device has no such queue.
    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        self.engine_side.abort(queue, launch);
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.take_completion()
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        let mut report = self.executor.take_report(launch)?;
        // If the daemon killed the executor, the executor's own explanation is not the cause.
        if let Some(why) = self.executor.kill_reason()
            && let Some(FaultKind::Lost { cause, .. } | FaultKind::Fatal { cause }) =
                report.fault.as_mut().map(|fault| &mut fault.kind)
        {
            *cause = format!("executor {} {why}", self.pid);
        }
        Some(report)
    }
}

impl Memory for ExecutorDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.memory.write(at, bytes)
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(at, bytes)
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.memory.copy(from, to, bytes)
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.memory.fill(at, value, bytes)
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.memory.give_back(at, bytes)
    }
}

impl Constants for ExecutorDevice {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.memory.constants_mut().map_or(Ok(()), |constants| constants.reserve(at, bytes).map(|_| ()))
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        if let Some(extent) = self.memory.constants_mut().and_then(|constants| constants.release(at)) {
            self.begin_hide([(at, &extent)]);
            discard(extent);
        }
    }

    fn show_constants(&mut self, _domain: &str, constants: &[DeviceOffset]) {
        let store = self.memory.constants();
        self.begin_show(constants.iter().filter_map(|at| Some((*at, store?.get(*at)?))));
    }

    fn hide_constants(&mut self, _domain: &str, constants: &[DeviceOffset]) {
        let store = self.memory.constants();
        self.begin_hide(constants.iter().filter_map(|at| Some((*at, store?.get(*at)?))));
    }

    fn sees_constants(&self, _domain: &str) -> bool {
        self.has_shown_all()
    }
}

impl Modules for ExecutorDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        let module = self.begin_load(image)?;
        let until = Instant::now() + self.answer_within + self.load_within;
        loop {
            match self.poll_load(module) {
                Some(answer) => return answer.map(|()| module),
                None if self.executor.wait_for_change(until) => {}
                None => return Err(DeviceError::Lost(format!("executor {} did not answer", self.pid))),
            }
        }
    }

    fn begin_load(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.begin_load_sealed(&SealedModule::new(image)?)
    }

    fn poll_load(&mut self, module: ModuleId) -> Option<Result<(), DeviceError>> {
        match self.executor.take_loaded(module.0) {
            Some(None) => Some(Ok(())),
            Some(Some(refusal)) => {
                self.forget(module);
                Some(Err(DeviceError::BadModule(refusal)))
            }
            None => self.check_lost().err().map(Err),
        }
    }

    fn unload_module(&mut self, module: ModuleId) {
        if self.forget(module) && self.executor.loss().is_none() {
            self.executor.send(Order::Unload { module: module.0 }, Vec::new());
        }
    }
}

impl Domains for ExecutorDevice {}

impl Drop for ExecutorDevice {
    fn drop(&mut self) {
        self.executor.end(LossCause::Ended("was told to end".to_owned()));
        let until = Instant::now() + REAP_WITHIN;
        while self.executor.loss().is_none() && self.executor.wait_for_change(until) {}
    }
}

fn range(at: DeviceOffset, extent: &Extent) -> ConstantRange {
    ConstantRange { at: at.0 - CONSTANTS_BASE.0, bytes: extent.bytes() }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}

fn lost(error: ChannelError) -> DeviceError {
    DeviceError::Lost(format!("cannot send the first message to a new executor: {error}"))
}
