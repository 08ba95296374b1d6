//! A pool: one physical device, run by one executor per domain.
//!
//! The engine sees a single [`Device`] with one scheduler. A module belongs to a domain, and its
//! launches go to that domain's executor. Constants are stored once and mapped by the executors of
//! the domains to which they are shown; memory belongs to one domain. A lost executor is replaced,
//! after a pause that grows with the number of losses, and its modules are loaded again. Its
//! launches complete as failed, with the cause; other domains are not affected. A domain whose
//! executors keep dying is unavailable for a while, with the cause.
//!
//! A device with memory of its own, such as a GPU, has one executor for all domains, since several
//! processes share its compute units badly. That executor belongs to the domain [`SHARED_DOMAIN`].
//! Constants are in its memory, and are lost with it. The engine learns of the loss from
//! [`Constants::take_constants_lost`] and writes them again; no new executor gets memory before
//! that call. If the device can stop running blocks, best-effort work has a second executor
//! (`pair`). Tenants' functions run there if memory is reserved for regions ([`crate::regions`],
//! `tenants`): the domain of a tenant then has a region, and otherwise its memory is that of all.
//!
//! *Memory of a domain* is at [`atoll_device::Domains::domain`]: the upper bits of an offset hold
//! the domain's number. When an executor is lost, so is its memory: the domain gets a new number
//! and new, zeroed memory, and offsets with the old number are refused.

mod addresses;
mod lifecycle;
mod modules;
mod second;
mod start;
mod tenants;

pub(super) use addresses::NUMBERS_MAX;

use super::config::ExecutorConfig;
use super::domain::{Domain, Module, State};
use super::imports::ExecutorImports;
use super::pair::Pair;
use super::regions::{Regions, TenantRegion};
use addresses::{OwnMemory, split, translate};
use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::extent::discard;
use atoll_device::process::{KeptService, MemoryHome};
use atoll_device::space::ConstantStore;
use atoll_device::{
    ChunkRecord, Completion, ComputeUnitUse, Constants, Device, DeviceError, DeviceFacts, DeviceInfo,
    ExecutorStatistics, Fault, FaultKind, Imports, Lane, LaneSpec, LaneTable, Lanes, LaunchRecord, LaunchReport,
    LaunchStatus, Launching, Memory, ModuleId, SubmitError, Telemetry,
};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The only domain of a device that does not keep domains apart; no tenant can have this name.
const SHARED_DOMAIN: &str = "*";

/// A device that is run by several executors.
#[derive(Debug)]
pub struct ExecutorPool {
    info: DeviceInfo,
    config: ExecutorConfig,
    /// The facts of the device, if its executor reported them.
    facts: Option<DeviceFacts>,
    constants: ConstantStore,
    domains: Vec<Domain>,
    /// The memory of tenants, if an executor owns the memory and some of it is reserved for them.
    regions: Option<Regions>,
    numbers: u64,
    /// The domain of each module.
    modules: HashMap<ModuleId, usize>,
    modules_given: u32,
    /// Launches in flight, with their domain.
    launches: HashMap<LaunchId, usize>,
    /// Completions of launches that were lost with their executor.
    abandoned: VecDeque<Completion>,
    /// Completions of launches that no executor took, with their domain. They wait for earlier
    /// launches of the domain, since launches of a queue complete in order.
    refused: VecDeque<(Option<usize>, Completion)>,
    reports: HashMap<LaunchId, LaunchReport>,
    lanes: LaneTable,
    /// The parameters of the launch that is being submitted, translated for its executor.
    params: Vec<u8>,
    statistics: ExecutorStatistics,
    /// Counts of executors that are gone.
    busy_before_ns: u64,
    units_before: Vec<ComputeUnitUse>,
    /// Constants were lost with an executor, and the engine has not been told yet.
    constants_lost: bool,
    /// Chunks that were lost with executors and not reported yet.
    chunks_lost: u64,
    /// An epoll descriptor over executors, the timer and the bell.
    ready: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
    /// Whether best-effort work has an executor of its own, so that a kill of running blocks hits
    /// nothing else.
    is_split: bool,
    /// The service whose clients the executors are, if this pool keeps it running; it outlives
    /// them.
    service: Option<Box<dyn KeptService>>,
    /// Access to memory of other processes, if the device can open it.
    imports: Option<Arc<ExecutorImports>>,
}

impl ExecutorPool {
    /// Whether an executor owns the memory, so that all domains share one executor or a pair of them.
    fn is_remote(&self) -> bool {
        self.config.device.memory == MemoryHome::Process
    }

    /// The name of a domain in this pool.
    fn name<'a>(&self, name: &'a str) -> &'a str {
        if self.is_remote() { SHARED_DOMAIN } else { name }
    }

    /// The domain with a name, if it is known.
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

    /// Completes a launch as lost, because its executor is gone.
    fn refuse_lost(&mut self, domain: Option<usize>, launch: LaunchId, cause: &str) {
        self.refuse(domain, launch, FaultKind::Lost { cause: cause.to_owned(), may_have_run: false });
    }

    /// Completes a launch that no executor takes.
    fn refuse(&mut self, domain: Option<usize>, launch: LaunchId, why: FaultKind) {
        let fault = Fault::of_kernel(why, "");
        self.reports.insert(launch, LaunchReport { fault: Some(fault), ..LaunchReport::default() });
        self.refused.push_back((domain, Completion::unrun(launch, LaunchStatus::Failed)));
        self.ring();
    }

    /// Wakes a waiter for completions.
    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The next completion of any executor.
    fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.abandoned.pop_front() {
            return Some(completion);
        }
        let completion = self.domains.iter_mut().find_map(|domain| match &mut domain.state {
            State::Running(device) => device.next_completion(),
            _ => None,
        });
        completion.or_else(|| self.next_refused())
    }

    /// The executors that run.
    fn executors(&mut self) -> impl Iterator<Item = &mut Pair> {
        self.domains.iter_mut().filter_map(|domain| match &mut domain.state {
            State::Running(device) => Some(&mut **device),
            _ => None,
        })
    }

    /// The first refused launch whose domain has no earlier launch in flight.
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

    fn imports(&self) -> Option<Arc<dyn Imports>> {
        self.imports.clone().map(|imports| imports as Arc<dyn Imports>)
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Launching for ExecutorPool {
    fn watch_epoch(&mut self, word: DeviceOffset) {
        if let Ok(Some((device, word))) = self.remote(word) {
            device.watch_epoch(word);
        }
    }

    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        let (number, within) = split(word);
        if let Some((executor, place)) = self.place_in_region(word) {
            return executor.store_epoch(place, epoch);
        }
        let Some(domain) = self.domains.iter().find(|domain| domain.number() == number) else { return };
        if let (Some(executor), Some(local)) = (domain.executor(), domain.local(within)) {
            executor.store_epoch(local, epoch);
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
        let region = self.regions.as_ref().and_then(|regions| regions.of_module(record.module));
        let domain = index.map(|index| &mut self.domains[index]);
        let own = region.map_or(OwnMemory::Domain(domain.as_deref(), constants), OwnMemory::Region);
        let Some(record_there) = translate(record, params, own, &mut self.params) else {
            match region.and_then(TenantRegion::refusal) {
                Some(reason) => self.refuse(index, record.launch, FaultKind::Refused { reason }),
                None => self.refuse_lost(index, record.launch, "the executor that had its memory is gone"),
            }
            return Ok(());
        };
        let answer = match domain {
            Some(Domain { state: State::Running(device), modules, .. }) => {
                match modules.get(&record.module).map(Module::ready) {
                    // The replaced executor has not loaded the module yet.
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
            // Last, and after each poll: polling silences the bells of executors, which also ring
            // when they end.
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
        match self.remote(at)? {
            Some((device, there)) => {
                device.write(there, bytes)?;
                self.write_copies(at, bytes)
            }
            None => self.place(at)?.write(bytes),
        }
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.remote(at)? {
            Some((device, at)) => device.read(at, bytes),
            None => self.place(at)?.read(bytes),
        }
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        // Both are in the same memory, if it exists.
        let to_there = self.remote(to)?.map(|(_, to)| to);
        match (self.remote(from)?, to_there) {
            (Some((device, from)), Some(to)) => device.copy(from, to, bytes),
            _ => self.place(from)?.copy_to(self.place(to)?, bytes),
        }
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self.remote(at)? {
            Some((device, at)) => device.fill(at, value, bytes),
            None => self.place(at)?.fill(value, bytes),
        }
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let given = match self.remote(at) {
            Ok(Some((device, at))) => device.give_back(at, bytes),
            Ok(None) => self.place(at).and_then(|place| place.give_back(bytes)),
            Err(error) => Err(error),
        };
        match given {
            // The memory was lost with its executor.
            Err(DeviceError::DomainLost(_)) => Ok(()),
            other => other,
        }
    }
}

impl Constants for ExecutorPool {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        // On a device with memory of its own, constants are ordinary memory.
        if self.is_remote() {
            self.regions.iter_mut().for_each(|regions| regions.add_constant(at, bytes));
            return Ok(());
        }
        self.constants.reserve(at, bytes).map(|_| ())
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        self.regions.iter_mut().for_each(|regions| regions.remove_constant(at));
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
        if self.has_region(domain) {
            return self.copy_constants(domain, constants);
        }
        // An unknown domain has no module that could read constants.
        let Some(domain) = self.domains.iter_mut().find(|known| known.name == domain) else { return };
        let new: Vec<_> = constants.iter().copied().filter(|at| domain.constants.insert(*at)).collect();
        domain.show(new.into_iter(), &self.constants);
    }

    fn hide_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        if let Some(regions) = &mut self.regions {
            return regions.hide(domain, constants);
        }
        let Some(domain) = self.domains.iter_mut().find(|known| known.name == domain) else { return };
        let hidden: Vec<_> = constants.iter().copied().filter(|at| domain.constants.remove(at)).collect();
        if let Some(executor) = domain.executor() {
            executor.begin_hide(hidden.into_iter().filter_map(|at| Some((at, self.constants.get(at)?))));
        }
    }

    fn sees_constants(&self, domain: &str) -> bool {
        // A replacement executor maps all constants of the domain before it is ready.
        let executor = self.known(domain).and_then(Domain::executor);
        executor.is_none_or(|executor| executor.lost().is_some() || executor.has_shown_all())
    }
}

impl Telemetry for ExecutorPool {
    fn busy_ns(&self) -> Option<u64> {
        if self.is_remote() {
            return None;
        }
        let running = self.domains.iter().filter_map(|domain| domain.executor()?.busy_ns());
        // Saturating, since executors report their own counts.
        Some(running.fold(self.busy_before_ns, u64::saturating_add))
    }

    /// Compute units with the same index in several executors share a CPU and count as one.
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

/// All executors have the same lanes, including later ones.
impl Lanes for ExecutorPool {
    fn open_lane(&mut self, spec: &LaneSpec) -> Result<Lane, DeviceError> {
        let lane = self.lanes.open(spec)?;
        self.executors().for_each(|device| device.attach_lane(&lane, &spec.units));
        Ok(lane)
    }

    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        let queues = self.lanes.find(lane)?.queues.clone();
        if !self.executors().all(|device| device.is_idle(queues.clone())) {
            return Err(DeviceError::Lanes(format!("lane {} holds launches", lane.0)));
        }
        self.executors().for_each(|device| device.detach_lane(queues.clone()));
        self.lanes.close(lane);
        Ok(())
    }
}

fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}
