//! One physical device under several executors: one for each domain of those who trust each other.
//!
//! Towards the engine it is a single [`Device`] with one scheduler above it. A module belongs to a
//! domain, its launches go to that domain's executor. Constants are held once and mapped by the
//! executors of those domains that they were shown to; memory belongs to one domain. An executor
//! that is lost is replaced after a pause that grows with how often that happens, and gets its
//! modules again; its launches end as failed, with the cause, and the other domains go on. A domain
//! whose executors keep dying is unavailable for a while, with the cause.
//!
//! A device with memory of its own, as a GPU, is one executor for all domains, since processes
//! share its compute units badly: to all of them it is the domain [`EVERYBODY`]. Its constants lie
//! in the memory that goes with it; whoever put them there is told
//! ([`Constants::take_constants_lost`]) and puts them there again, and until then nothing is
//! started anew.
//!
//! *Memory of a domain* is found at [`Domains::domain`]: the domain's number in the upper bits of
//! the offset. A lost executor's memory is lost too: the domain gets a new number and new memory,
//! which is zero, so that nobody mistakes one for the other, and whatever still carries the old
//! number is refused.

mod lives;
mod places;

pub(super) use places::NUMBERS_MAX;

use super::config::ExecutorConfig;
use super::device::{ExecutorDevice, SealedModule};
use super::domain::{Domain, Module, State};
use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::extent::discard;
use atoll_device::process::{DevicePlan, KeptService, MemoryHome, ProcessService};
use atoll_device::space::ConstantStore;
use atoll_device::{
    ChunkRecord, Completion, ComputeUnitUse, Constants, Device, DeviceError, DeviceFacts, DeviceInfo, DomainState,
    Domains, ExecutorStatistics, Fault, FaultKind, Lane, LaneSpec, LaneTable, Lanes, LaunchRecord, LaunchReport,
    LaunchStatus, Launching, Memory, ModuleId, ModuleImage, Modules, SubmitError, Telemetry,
};
use lives::{is_kept, watch};
use places::{DOMAIN_SHIFT, split, translate};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The one domain of a device that keeps none apart; no tenant has this name.
const EVERYBODY: &str = "*";

/// A device that is several executors.
#[derive(Debug)]
pub struct ExecutorPool {
    info: DeviceInfo,
    config: ExecutorConfig,
    /// What the device is, where its executor said that.
    facts: Option<DeviceFacts>,
    constants: ConstantStore,
    domains: Vec<Domain>,
    numbers: u64,
    /// Where each module is.
    modules: HashMap<ModuleId, usize>,
    modules_given: u32,
    /// Launches that were taken and whose completion was not, with their domain.
    launches: HashMap<LaunchId, usize>,
    /// Completions of launches whose executor took them with it.
    buried: VecDeque<Completion>,
    /// Completions of launches that no executor took, with their domain; they wait for earlier
    /// launches of it, since those of a queue end in order.
    refused: VecDeque<(Option<usize>, Completion)>,
    reports: HashMap<LaunchId, LaunchReport>,
    lanes: LaneTable,
    /// The parameters of the launch that is being submitted, as its executor understands them.
    params: Vec<u8>,
    statistics: ExecutorStatistics,
    /// What executors that are gone had counted.
    busy_before_ns: u64,
    units_before: Vec<ComputeUnitUse>,
    /// Constants went with an executor, and nobody was told yet.
    constants_lost: bool,
    /// Chunks that they took with them, and nobody was told yet.
    chunks_lost: u64,
    /// Readable while there is something to do: executors, the timer, the bell.
    ready: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
    /// The service that executors are clients of, where it is this pool's to keep running; it
    /// outlives them.
    service: Option<Box<dyn KeptService>>,
}

impl ExecutorPool {
    /// A device whose executors are started when something is loaded; that of a device with memory
    /// of its own is now, since it says what the device is.
    ///
    /// # Errors
    /// If there is no such device, or the system refuses.
    pub fn new(config: ExecutorConfig) -> Result<ExecutorPool, DeviceError> {
        match config.device.memory {
            MemoryHome::Daemon => {
                let info = config.device.info.clone();
                let units = info.compute_units as usize;
                Ok(ExecutorPool { units_before: vec![ComputeUnitUse::default(); units], ..Self::with(config, info)? })
            }
            MemoryHome::Process => {
                let service = config.device.service.as_deref().map(ProcessService::keep).transpose()?.flatten();
                let executor = ExecutorDevice::start(config.clone())?;
                if service.as_ref().map(|service| service.has_client(executor.pid())).transpose()? == Some(false) {
                    let why = "the GPU's driver does not use MPS in its executor, so nothing keeps that to its share";
                    return Err(DeviceError::Unavailable(why.to_owned()));
                }
                // One that takes its place has as much memory, whatever others have taken
                // meanwhile.
                let device = DevicePlan { memory_bytes: Some(executor.info().memory_bytes), ..config.device };
                let mut pool = Self::with(ExecutorConfig { device, ..config }, executor.info().clone())?;
                pool.facts = executor.facts();
                pool.service = service;
                let index = pool.domain_index(EVERYBODY);
                pool.memory(index)?;
                pool.begun(index, executor)?;
                Ok(pool)
            }
        }
    }

    fn with(config: ExecutorConfig, info: DeviceInfo) -> Result<ExecutorPool, DeviceError> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("create an epoll descriptor"))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(os("create a timer"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("create an eventfd"))?;
        watch(&ready, timer.as_fd())?;
        watch(&ready, bell.as_fd())?;
        Ok(ExecutorPool {
            constants: ConstantStore::new(info.constants_bytes),
            lanes: LaneTable::new(config.device.link, info.compute_units, info.lane_units),
            info,
            config,
            facts: None,
            domains: Vec::new(),
            numbers: 0,
            modules: HashMap::new(),
            modules_given: 0,
            launches: HashMap::new(),
            buried: VecDeque::new(),
            refused: VecDeque::new(),
            reports: HashMap::new(),
            params: Vec::new(),
            statistics: ExecutorStatistics::default(),
            busy_before_ns: 0,
            units_before: Vec::new(),
            constants_lost: false,
            chunks_lost: 0,
            ready,
            timer,
            bell,
            service: None,
        })
    }

    /// Whether all domains are one, and its memory is only reached through its executor.
    fn is_remote(&self) -> bool {
        self.config.device.memory == MemoryHome::Process
    }

    /// The name under which a domain is known here.
    fn name<'a>(&self, name: &'a str) -> &'a str {
        if self.is_remote() { EVERYBODY } else { name }
    }

    /// A domain, if anything was ever asked about it.
    fn known(&self, name: &str) -> Option<&Domain> {
        let name = self.name(name);
        self.domains.iter().find(|domain| domain.name == name)
    }

    fn domain_index(&mut self, name: &str) -> usize {
        let name = self.name(name);
        if let Some(index) = self.domains.iter().position(|domain| domain.name == name) {
            return index;
        }
        self.domains.push(Domain::new(name));
        self.domains.len() - 1
    }

    /// Ends a launch whose executor is not there.
    fn refuse_lost(&mut self, domain: Option<usize>, launch: LaunchId, cause: &str) {
        self.refuse(domain, launch, FaultKind::Lost { cause: cause.to_owned(), may_have_run: false });
    }

    /// Ends a launch that no executor takes.
    fn refuse(&mut self, domain: Option<usize>, launch: LaunchId, why: FaultKind) {
        let fault = Fault::of_kernel(why, "");
        self.reports.insert(launch, LaunchReport { fault: Some(fault), ..LaunchReport::default() });
        self.refused.push_back((domain, Completion::unrun(launch, LaunchStatus::Failed)));
        self.ring();
    }

    /// Wakes whoever waits for completions.
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The next completion of any executor.
    fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.buried.pop_front() {
            return Some(completion);
        }
        let completion = self.domains.iter_mut().find_map(|domain| match &mut domain.state {
            State::Running(device) => device.next_completion(),
            _ => None,
        });
        completion.or_else(|| self.next_refused())
    }

    /// The executors that run.
    fn executors(&mut self) -> impl Iterator<Item = &mut ExecutorDevice> {
        self.domains.iter_mut().filter_map(|domain| match &mut domain.state {
            State::Running(device) => Some(&mut **device),
            _ => None,
        })
    }

    /// The first of those that were refused before which nothing of its domain is in flight.
    fn next_refused(&mut self) -> Option<Completion> {
        let is_next = |(domain, completion): &(Option<usize>, Completion)| {
            !self.launches.iter().any(|(launch, other)| Some(*other) == *domain && launch.0 < completion.launch.0)
        };
        let at = self.refused.iter().position(is_next)?;
        self.refused.remove(at).map(|(_, completion)| completion)
    }
}

impl Device for ExecutorPool {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Launching for ExecutorPool {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        if let Ok(Some((device, word))) = self.far(word) {
            device.watch_epoch(word);
        }
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        let (number, within) = split(word);
        if let Some(executor) = self.domains.iter().find(|domain| domain.number() == number).and_then(Domain::executor)
        {
            executor.store_epoch(within, epoch);
        }
    }

    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        let index = self.modules.get(&record.module).copied();
        let module = index.and_then(|index| self.domains[index].modules.get(&record.module));
        if let Some(reason) = module.and_then(|module| module.refusal.clone()) {
            self.refuse(index, record.launch, FaultKind::Refused { reason });
            return Ok(());
        }
        let constants = if self.is_remote() { DeviceOffset(0) } else { self.info.constants_base };
        let domain = index.map(|index| &mut self.domains[index]);
        let number = domain.as_ref().map_or(NUMBERS_MAX, |domain| domain.number());
        let Some(record_there) = translate(record, params, number, constants, &mut self.params) else {
            self.refuse_lost(index, record.launch, "the executor that had its memory is gone");
            return Ok(());
        };
        let answer = match domain {
            Some(Domain { state: State::Running(device), modules, .. }) => {
                match modules.get(&record.module).map(Module::ready) {
                    // The executor took the place of another one and does not have it yet.
                    Some(None) => Err(SubmitError::Lost),
                    ready => {
                        let local = ready.flatten().unwrap_or(ModuleId(u32::MAX));
                        device.submit(queue, &LaunchRecord { module: local, ..record_there }, &self.params)
                    }
                }
            }
            _ => Err(SubmitError::Lost),
        };
        match answer {
            Ok(()) => {
                self.launches.insert(record.launch, index.unwrap_or_default());
                Ok(())
            }
            Err(SubmitError::Lost) => {
                self.refuse_lost(index, record.launch, "its executor is gone");
                Ok(())
            }
            Err(full) => Err(full),
        }
    }

    fn interrupt(&mut self, queue: QueueId, launch: LaunchId, blocks: u64) {
        if let Some(index) = self.launches.get(&launch)
            && let State::Running(device) = &mut self.domains[*index].state
        {
            device.interrupt(queue, launch, blocks);
        }
    }

    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        if let Some(index) = self.launches.get(&launch)
            && let State::Running(device) = &mut self.domains[*index].state
        {
            device.abort(queue, launch);
        }
    }

    fn kill(&mut self, launch: LaunchId, why: &str) -> bool {
        let Some(index) = self.launches.get(&launch) else { return false };
        if let State::Running(device) = &self.domains[*index].state {
            device.kill(why);
        }
        true
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let completion = loop {
            if let Some(completion) = self.poll() {
                break completion;
            }
            // Last, and after each poll: that silences the bells of executors, which ring for their
            // ends, too.
            if !self.advance() {
                return None;
            }
        };
        if let Some(index) = self.launches.remove(&completion.launch)
            && let State::Running(device) = &mut self.domains[index].state
            && let Some(report) = device.report(completion.launch)
        {
            self.reports.insert(completion.launch, report);
        }
        Some(completion)
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.reports.remove(&launch)
    }
}

impl Memory for ExecutorPool {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.far(at)? {
            Some((device, at)) => device.write(at, bytes),
            None => self.place(at)?.write(bytes),
        }
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.far(at)? {
            Some((device, at)) => device.read(at, bytes),
            None => self.place(at)?.read(bytes),
        }
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        // Both are in the same memory, if that is there.
        let to_there = self.far(to)?.map(|(_, to)| to);
        match (self.far(from)?, to_there) {
            (Some((device, from)), Some(to)) => device.copy(from, to, bytes),
            _ => self.place(from)?.copy_to(self.place(to)?, bytes),
        }
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self.far(at)? {
            Some((device, at)) => device.fill(at, value, bytes),
            None => self.place(at)?.fill(value, bytes),
        }
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let given = match self.far(at) {
            Ok(Some((device, at))) => device.give_back(at, bytes),
            Ok(None) => self.place(at).and_then(|place| place.give_back(bytes)),
            Err(error) => Err(error),
        };
        match given {
            // It went with its executor.
            Err(DeviceError::DomainLost(_)) => Ok(()),
            other => other,
        }
    }
}

impl Constants for ExecutorPool {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        // On a device with memory of its own it is memory like any other.
        if self.is_remote() { Ok(()) } else { self.constants.reserve(at, bytes).map(|_| ()) }
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        let Some(extent) = self.constants.release(at) else { return };
        for domain in &mut self.domains {
            if domain.constants.remove(&at)
                && let Some(executor) = domain.executor()
            {
                executor.begin_hide([(at, &extent)]);
            }
        }
        discard(extent);
    }

    fn take_constants_lost(&mut self) -> bool {
        std::mem::take(&mut self.constants_lost)
    }

    fn show_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        // What has no domain has nothing loaded that could read them.
        let Some(domain) = self.domains.iter_mut().find(|known| known.name == domain) else { return };
        let new: Vec<_> = constants.iter().copied().filter(|at| domain.constants.insert(*at)).collect();
        domain.show(new.into_iter(), &self.constants);
    }

    fn hide_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        let Some(domain) = self.domains.iter_mut().find(|known| known.name == domain) else { return };
        let hidden: Vec<_> = constants.iter().copied().filter(|at| domain.constants.remove(at)).collect();
        if let Some(executor) = domain.executor() {
            executor.begin_hide(hidden.into_iter().filter_map(|at| Some((at, self.constants.get(at)?))));
        }
    }

    fn sees_constants(&self, domain: &str) -> bool {
        // Another executor maps them before it is ready.
        let executor = self.known(domain).and_then(Domain::executor);
        executor.is_none_or(|executor| executor.lost().is_some() || executor.has_shown_all())
    }
}

impl Modules for ExecutorPool {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        let module = self.begin_load(image)?;
        loop {
            match self.poll_load(module) {
                Some(answer) => return answer.map(|()| module),
                None => {
                    std::thread::sleep(Duration::from_millis(1));
                    self.advance();
                }
            }
        }
    }

    fn begin_load(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        let index = self.domain_index(image.domain);
        if let State::Pausing { cause, is_unavailable: true, .. } = &self.domains[index].state {
            return Err(DeviceError::DomainLost(cause.clone()));
        }
        let sealed = SealedModule::new(image)?;
        let id = ModuleId(self.modules_given);
        self.modules_given += 1;
        let module = Module { sealed, local: None, was_loaded: false, is_loading: false, losses: 0, refusal: None };
        self.domains[index].modules.insert(id, module);
        self.modules.insert(id, index);
        match &self.domains[index].state {
            State::Absent => self.wake(index).inspect_err(|_| self.unload_module(id))?,
            State::Running(_) => self.domains[index].load_all(),
            State::Pausing { .. } => {}
        }
        Ok(id)
    }

    fn poll_load(&mut self, id: ModuleId) -> Option<Result<(), DeviceError>> {
        let gone = || Some(Err(DeviceError::BadModule("it was unloaded".to_owned())));
        let Some(&index) = self.modules.get(&id) else { return gone() };
        self.domains[index].take_loaded();
        let domain = &self.domains[index];
        let Some(module) = domain.modules.get(&id) else { return gone() };
        if let Some(refusal) = module.refusal.clone() {
            self.unload_module(id);
            return Some(Err(DeviceError::BadModule(refusal)));
        }
        if let State::Pausing { cause, is_unavailable: true, .. } = &domain.state {
            let cause = cause.clone();
            self.unload_module(id);
            return Some(Err(DeviceError::DomainLost(cause)));
        }
        let lost = domain.executor().and_then(Device::lost);
        let is_loaded = module.was_loaded && module.ready().is_some();
        if lost.is_some() {
            self.advance();
        }
        is_loaded.then_some(Ok(()))
    }

    fn unload_module(&mut self, id: ModuleId) {
        let Some(index) = self.modules.remove(&id) else { return };
        let domain = &mut self.domains[index];
        let module = domain.modules.remove(&id);
        if let (State::Running(device), Some(local)) = (&mut domain.state, module.and_then(|module| module.local)) {
            device.unload_module(local);
        }
        // What has nothing to run needs no process.
        if domain.modules.is_empty() && !is_kept(&domain.name) && !self.launches.values().any(|other| *other == index) {
            self.end(index);
        }
    }
}

impl Domains for ExecutorPool {
    fn domain(&mut self, name: &str) -> Result<DeviceOffset, DeviceError> {
        let index = self.domain_index(name);
        Ok(DeviceOffset(self.memory(index)?.number << DOMAIN_SHIFT))
    }

    fn domain_state(&self, name: &str) -> DomainState {
        let Some(domain) = self.known(name) else { return DomainState::Ready };
        match &domain.state {
            State::Pausing { cause, is_unavailable: true, .. } => DomainState::Unavailable(cause.clone()),
            State::Absent if domain.modules.is_empty() && !self.is_remote() => DomainState::Ready,
            _ if domain.is_ready() => DomainState::Ready,
            _ => DomainState::Restarting,
        }
    }

    fn is_unready(&self) -> bool {
        self.is_remote() && !self.domains.first().is_some_and(Domain::has_begun)
    }

    fn executors(&self) -> ExecutorStatistics {
        let alive = self.domains.iter().filter(|domain| domain.executor().is_some()).count() as u64;
        ExecutorStatistics {
            alive,
            processes: self.domains.iter().filter_map(Domain::process).collect(),
            ..self.statistics.clone()
        }
    }
}

impl Telemetry for ExecutorPool {
    fn busy_ns(&self) -> Option<u64> {
        if self.is_remote() {
            return None;
        }
        let running = self.domains.iter().filter_map(|domain| domain.executor()?.busy_ns());
        // An executor may say what it likes.
        Some(running.fold(self.busy_before_ns, u64::saturating_add))
    }

    /// Compute units of one index in several executors share a CPU, and count as one.
    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        let mut units = self.units_before.clone();
        for executor in self.domains.iter().filter_map(Domain::executor) {
            units.iter_mut().zip(executor.compute_units()).for_each(|(unit, more)| *unit = unit.plus(more));
        }
        units
    }

    fn take_chunks(&mut self, max: u64, take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        let mut lost = std::mem::take(&mut self.chunks_lost);
        for Domain { name, state, .. } in &mut self.domains {
            if let State::Running(device) = state {
                lost = lost.saturating_add(device.take_chunks(max, &mut |_, chunk| take(Some(name), chunk)));
            }
        }
        lost
    }
}

/// All executors have the same lanes, those that start later too.
impl Lanes for ExecutorPool {
    fn open_lane(&mut self, spec: &LaneSpec) -> Result<Lane, DeviceError> {
        let lane = self.lanes.open(spec)?;
        self.executors().for_each(|device| device.serve_lane(&lane, &spec.units));
        Ok(lane)
    }

    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        let queues = self.lanes.find(lane)?.queues.clone();
        if !self.executors().all(|device| device.is_idle(queues.clone())) {
            return Err(DeviceError::Lanes(format!("lane {} holds launches", lane.0)));
        }
        self.executors().for_each(|device| device.leave_lane(queues.clone()));
        self.lanes.close(lane);
        Ok(())
    }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}
