//! The daemon's side of an executor.

use super::channel::{Channel, ChannelError};
use super::supervisor::{self, Patience, Start, Supervised};
use super::wire::{CODE_BYTES_MAX, ConstantRange, DESCRIPTORS_MAX, FACTS_BYTES_MAX, Order, PROTOCOL_VERSION, RANGES_MAX};
use crate::extent::{Extent, discard};
use crate::host::{CONSTANTS_BASE, ConstantStore, EngineSide, EngineSpace, HostConfig, memory_region};
use crate::record::{ChunkRecord, Completion, ComputeUnitUse, LaunchRecord};
use crate::report::{Fault, FaultKind, LaunchReport};
use crate::shm::Region;
use crate::{Device, DeviceError, DeviceInfo, ModuleId, ModuleImage, SubmitError};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use rustix::fs::{MemfdFlags, SealFlags};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long dropping a device waits for its process to be reaped. It was killed; only the system can take longer.
const REAP_WITHIN: Duration = Duration::from_secs(5);

/// A module that is never loaded.
const NO_MODULE: ModuleId = ModuleId(u32::MAX);

/// How an executor is made, and what it may take.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The device that it runs.
    pub host: HostConfig,
    /// The program that calls [`super::serve`] with its standard input.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How long it may show no sign of life while it has something to do.
    pub hang_after: Duration,
    /// How long it may take to start, and to load a module.
    pub answer_within: Duration,
    /// How much less urgent than others its compute units are, as for nice(2).
    pub nice: i32,
}

impl ExecutorConfig {
    /// An executor of this program, `atoll executor`.
    pub fn new(host: HostConfig) -> ExecutorConfig {
        ExecutorConfig {
            host,
            program: "/proc/self/exe".into(),
            arguments: vec!["executor".into()],
            hang_after: Duration::from_secs(3),
            answer_within: Duration::from_secs(30),
            nice: 0,
        }
    }

    fn patience(&self) -> Patience {
        // A launch may be stopped for those of every more urgent queue, each of which may take its whole time.
        let launches = self.host.time_limit.saturating_mul(self.host.queues);
        let launch_within = launches.saturating_add(self.hang_after);
        Patience { hang_after: self.hang_after, answer_within: self.answer_within, launch_within }
    }
}

/// A host device whose compute units are in another process.
#[derive(Debug)]
pub struct ExecutorDevice {
    info: DeviceInfo,
    engine_side: EngineSide,
    executor: Arc<Supervised>,
    pid: u32,
    answer_within: Duration,
    /// Whether the module of each number ever given is loaded, or about to be.
    modules: Vec<bool>,
    /// Launches of a dead executor that were answered for, per queue: the first of each may have been running.
    abandoned: Vec<QueueId>,
}

impl ExecutorDevice {
    /// Starts an executor. Does not wait until it runs; the first load does.
    pub fn start(config: ExecutorConfig) -> Result<ExecutorDevice, DeviceError> {
        let memory = memory_region(config.host.memory_bytes)?;
        Self::start_in(config, memory)
    }

    /// The same with memory that is there.
    pub(crate) fn start_in(config: ExecutorConfig, memory: Arc<Region>) -> Result<ExecutorDevice, DeviceError> {
        let patience = config.patience();
        let host = HostConfig { memory_bytes: memory.bytes(), ..config.host }.checked()?;
        let space = EngineSpace { memory, constants: ConstantStore::new(host.constants_bytes) };
        let mut engine_side = EngineSide::new(&host, space)?.distrustful();
        let (channel, socket) = Channel::pair().map_err(os("create a channel"))?;
        let executor = Supervised::new(channel, engine_side.link.clone(), engine_side.device_bell()?, patience);
        let hello = Order::Hello {
            version: PROTOCOL_VERSION,
            daemon: rustix::process::getpid().as_raw_nonzero().get(),
            config: host.clone(),
            nice: config.nice,
        };
        let (link, memory) = (engine_side.link.as_fd(), engine_side.space.memory.as_fd());
        executor.greet(&hello, &[link, memory, engine_side.completion_fd()]).map_err(lost)?;
        let executor = Arc::new(executor);
        let start = Start { program: config.program, arguments: config.arguments, socket, executor: executor.clone() };
        let pid = supervisor::start(start).map_err(os("start an executor"))?;
        engine_side.set_process(pid.cast_signed());
        let answer_within = config.answer_within;
        Ok(ExecutorDevice { info: host.info(), engine_side, executor, pid, answer_within, modules: Vec::new(), abandoned: Vec::new() })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it runs; the answer is what its jail lacks on this machine.
    pub fn wait_ready(&self) -> Result<Vec<String>, DeviceError> {
        let until = Instant::now() + self.answer_within * 2;
        loop {
            if let Some(lacks) = self.jail_lacks() {
                return Ok(lacks);
            }
            self.check_lost()?;
            if !self.executor.wait_for_news(until) {
                return Err(DeviceError::Lost(format!("executor {} does not answer", self.pid)));
            }
        }
    }

    /// What its jail lacks on this machine; nothing before it runs.
    pub fn jail_lacks(&self) -> Option<Vec<String>> {
        self.executor.ready()
    }

    /// Begins to load a module.
    pub(crate) fn begin_load_sealed(&mut self, image: &SealedModule) -> Result<ModuleId, DeviceError> {
        self.check_lost()?;
        let file = image.file.try_clone().map_err(os("duplicate the descriptor of a module"))?;
        let module = self.modules.len() as u32;
        self.modules.push(true);
        let (target, code_bytes, facts_bytes) = (image.target.clone(), image.code_bytes, image.facts_bytes);
        self.executor.send(Order::Load { module, target, code_bytes, facts_bytes }, vec![file]);
        Ok(ModuleId(module))
    }

    /// Has constants mapped, which it may read from then on.
    pub(crate) fn begin_show<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        let open = |(at, extent): (DeviceOffset, &Extent)| Ok((range(at, extent), extent.read_only()?));
        match constants.into_iter().map(open).collect::<std::io::Result<Vec<_>>>() {
            Ok(mut pairs) => {
                while !pairs.is_empty() {
                    let (constants, files) = pairs.drain(..pairs.len().min(DESCRIPTORS_MAX)).unzip();
                    self.executor.send(Order::Show { constants }, files);
                }
            }
            Err(error) => self.executor.end(format!("cannot be shown its constants: {error}")),
        }
    }

    /// Has constants unmapped.
    pub(crate) fn begin_hide<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        let ranges: Vec<_> = constants.into_iter().map(|(at, extent)| range(at, extent)).collect();
        for constants in ranges.chunks(RANGES_MAX) {
            self.executor.send(Order::Hide { constants: constants.to_vec() }, Vec::new());
        }
    }

    /// Whether all constants are mapped that it was told to map.
    pub(crate) fn has_shown_all(&self) -> bool {
        self.executor.has_shown_all()
    }

    /// Chunks of its compute units that nobody took.
    pub(crate) fn chunks_left(&self) -> u64 {
        self.engine_side.chunks_left()
    }

    /// Ends it for a reason that is told as "executor 123 `why`".
    pub(crate) fn kill(&self, why: &str) {
        self.executor.end(why.to_owned());
    }

    /// Answers for a launch that a dead executor took with it.
    fn abandon(&mut self) -> Option<Completion> {
        let cause = self.executor.fate()?.to_owned();
        let (queue, completion) = self.engine_side.abandon()?;
        let was_first = !self.abandoned.contains(&queue);
        if was_first {
            self.abandoned.push(queue);
        }
        self.executor.note_lost(completion.launch, &Fault::of_kernel(FaultKind::Lost { cause, may_have_run: was_first }, ""));
        Some(completion)
    }

    /// True if the module was loaded.
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

    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        let module = self.begin_load(image)?;
        let until = Instant::now() + self.answer_within * 2;
        loop {
            match self.poll_load(module) {
                Some(answer) => return answer.map(|()| module),
                None if self.executor.wait_for_news(until) => {}
                None => return Err(DeviceError::Lost(format!("executor {} does not answer", self.pid))),
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
        if self.forget(module) && self.executor.fate().is_none() {
            self.executor.send(Order::Unload { module: module.0 }, Vec::new());
        }
    }

    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.engine_side.space.place(at).write(bytes)
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.engine_side.space.place(at).read(bytes)
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.engine_side.space.place(from).copy_to(self.engine_side.space.place(to), bytes)
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.engine_side.space.place(at).fill(value, bytes)
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.engine_side.space.place(at).give_back(bytes)
    }

    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.engine_side.space.constants.reserve(at, bytes).map(|_| ())
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        if let Some(extent) = self.engine_side.space.constants.release(at) {
            self.begin_hide([(at, &extent)]);
            discard(extent);
        }
    }

    fn show_constants(&mut self, _domain: &str, constants: &[DeviceOffset]) {
        let store = &self.engine_side.space.constants;
        self.begin_show(constants.iter().filter_map(|at| Some((*at, store.get(*at)?))));
    }

    fn hide_constants(&mut self, _domain: &str, constants: &[DeviceOffset]) {
        let store = &self.engine_side.space.constants;
        self.begin_hide(constants.iter().filter_map(|at| Some((*at, store.get(*at)?))));
    }

    fn sees_constants(&self, _domain: &str) -> bool {
        self.has_shown_all()
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.engine_side.store_epoch(word, epoch);
    }

    /// # Panics
    /// If the device has no such queue.
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.executor.fate().is_some() {
            return Err(SubmitError::Lost);
        }
        // The message that unloads it may still be on its way.
        let is_loaded = self.modules.get(record.module.0 as usize).is_some_and(|is_loaded| *is_loaded);
        let record = if is_loaded { *record } else { LaunchRecord { module: NO_MODULE, ..*record } };
        self.engine_side.submit(queue, &record, params)?;
        self.executor.activity.in_flight.fetch_add(1, Relaxed);
        Ok(())
    }

    /// # Panics
    /// If the device has no such queue.
    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        self.engine_side.abort(queue, launch);
    }

    /// By the word of the executor, which code that broke out of its kernel could change.
    fn busy_ns(&self) -> Option<u64> {
        Some(self.engine_side.link.busy_ns())
    }

    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        self.engine_side.compute_units()
    }

    fn take_chunks(&mut self, max: u64, take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        self.engine_side.take_chunks(max, &mut |chunk| take(None, chunk))
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.engine_side.next_completion().or_else(|| self.abandon());
        let activity = &self.executor.activity;
        match completion {
            Some(_) => {
                activity.in_flight.fetch_sub(1, Relaxed);
                activity.completed.fetch_add(1, Relaxed);
            }
            None => {
                activity.idle_rings.store(self.engine_side.idle_rings(), Relaxed);
                if self.engine_side.is_lost() {
                    self.executor.end("broke the rules of the rings, or lost a compute unit".to_owned());
                }
            }
        }
        completion
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.executor.take_report(launch)
    }

    fn lost(&self) -> Option<String> {
        self.executor.fate().map(str::to_owned)
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.engine_side.completion_fd()
    }
}

impl Drop for ExecutorDevice {
    fn drop(&mut self) {
        self.executor.end("was told to end".to_owned());
        let until = Instant::now() + REAP_WITHIN;
        while self.executor.fate().is_none() && self.executor.wait_for_news(until) {}
    }
}

/// A module in a memory file, as it goes to executors; it can go to several, one after the other.
#[derive(Debug)]
pub(crate) struct SealedModule {
    file: OwnedFd,
    target: String,
    code_bytes: u64,
    facts_bytes: u64,
}

impl SealedModule {
    pub(crate) fn new(image: ModuleImage<'_>) -> Result<SealedModule, DeviceError> {
        let facts = serde_json::to_vec(image.kernels).map_err(|error| DeviceError::BadModule(error.to_string()))?;
        let (code_bytes, facts_bytes) = (image.code.len() as u64, facts.len() as u64);
        if code_bytes > CODE_BYTES_MAX || facts_bytes > FACTS_BYTES_MAX {
            return Err(DeviceError::BadModule(format!("{code_bytes} bytes of code and {facts_bytes} of facts are too many")));
        }
        let file = sealed_file(&[image.code, &facts]).map_err(os("create memory for a module"))?;
        Ok(SealedModule { file, target: image.target.to_owned(), code_bytes, facts_bytes })
    }
}

/// A memory file that nobody can change any more.
fn sealed_file(parts: &[&[u8]]) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("atoll-module", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest)?..];
        }
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}

fn range(at: DeviceOffset, extent: &Extent) -> ConstantRange {
    ConstantRange { at: at.0 - CONSTANTS_BASE.0, bytes: extent.bytes() }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}

fn lost(error: ChannelError) -> DeviceError {
    DeviceError::Lost(format!("the new executor cannot be greeted: {error}"))
}
