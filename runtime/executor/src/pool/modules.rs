//! Modules and domains of a pool: a module is loaded by the executor of its domain.

use super::addresses::{DOMAIN_SHIFT, split};
use super::lifecycle::is_kept;
use super::{ExecutorPool, NUMBERS_MAX};
use crate::domain::{Domain, Module, State};
use crate::pair::Pair;
use crate::parts::{FROM_START, Parts};
use crate::regions::TenantRegion;
use crate::sealed::SealedModule;
use atoll_core::DeviceOffset;
use atoll_device::space::MEMORY_ADDRESS;
use atoll_device::{DeviceError, DomainState, Domains, ExecutorStatistics, ModuleId, ModuleImage, Modules};
use std::time::Duration;

/// Places in the memory of a domain where devices begin to look for room for parts whose address
/// kernels keep.
const PLACES: u64 = 8;

/// The number in the name of a device, as in `host:1`.
fn device_number(name: &str) -> u64 {
    name.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or_default()
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
        self.give_module(image.domain, id).inspect_err(|_| self.unload_module(id))?;
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
        let lost = domain.executor().and_then(Pair::lost);
        let is_loaded = module.was_loaded && module.ready().is_some();
        if lost.is_some() {
            self.advance();
        }
        is_loaded.then_some(Ok(()))
    }

    fn unload_module(&mut self, id: ModuleId) {
        let Some(index) = self.modules.remove(&id) else { return };
        self.regions.iter_mut().for_each(|regions| regions.remove_module(id));
        let domain = &mut self.domains[index];
        let module = domain.modules.remove(&id);
        if let (State::Running(device), Some(local)) = (&mut domain.state, module.and_then(|module| module.local)) {
            device.unload_module(local);
        }
        // A domain without modules needs no process.
        if domain.modules.is_empty() && !is_kept(&domain.name) && !self.launches.values().any(|other| *other == index) {
            self.end(index);
        }
    }
}

impl Domains for ExecutorPool {
    fn domain(&mut self, name: &str) -> Result<DeviceOffset, DeviceError> {
        if self.has_region(name) {
            let number = self.region(name)?.number.unwrap_or(NUMBERS_MAX);
            return Ok(DeviceOffset(number << DOMAIN_SHIFT));
        }
        let index = self.domain_index(name);
        Ok(DeviceOffset(self.memory(index)?.number << DOMAIN_SHIFT))
    }

    fn allow_memory(&mut self, name: &str, bytes: u64) {
        let index = self.domain_index(name);
        self.domains[index].allowed_bytes = bytes;
        if let Some(executor) = self.domains[index].executor() {
            executor.allow_memory(bytes);
        }
    }

    fn bound_memory(&mut self, name: &str, bytes: u64) {
        if let Some(regions) = self.regions.as_mut().filter(|_| !is_kept(name)) {
            return regions.bound(name, bytes);
        }
        // A control group limits the process exactly. Code in the domain `local` is trusted.
        if self.is_remote() || self.config.groups.is_some() || is_kept(name) {
            return;
        }
        let (index, device_bytes) = (self.domain_index(name), self.info.memory_bytes);
        let domain = &mut self.domains[index];
        if domain.parts.is_none() && domain.memory.is_none() {
            domain.parts = Parts::new(bytes, device_bytes);
        }
    }

    fn memory_start(&mut self, name: &str) -> Result<DeviceOffset, DeviceError> {
        let base = self.domain(name)?;
        let has_parts = self.has_parts(name);
        Ok(if has_parts { DeviceOffset(base.0 | FROM_START) } else { base })
    }

    fn memory_mask(&self, name: &str) -> Option<u64> {
        self.regions.as_ref()?.get(name).map(TenantRegion::mask)
    }

    fn kernel_address(&self, at: DeviceOffset) -> Option<u64> {
        let (number, within) = split(at);
        if self.is_remote() {
            return self.region_address(at).or_else(|| self.shared_address(at));
        }
        let domain = self.domains.iter().find(|domain| domain.number() == number)?;
        domain.local(within).map(|local| MEMORY_ADDRESS + local.0)
    }

    fn place_part(&mut self, name: &str, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let owner = if self.has_region(name) { "the tenant" } else { "the tenant's process" };
        let Some((parts, _)) = self.parts(name)? else { return Ok(()) };
        match parts.place(at.0, bytes) {
            true => Ok(()),
            false => Err(DeviceError::Unavailable(format!(
                "{owner} has {} MiB of memory, and no free piece of it has the {bytes} bytes that the call needs",
                parts.bytes() >> 20
            ))),
        }
    }

    fn place_part_at(
        &mut self,
        name: &str,
        at: DeviceOffset,
        bytes: u64,
        address: Option<u64>,
    ) -> Result<(), DeviceError> {
        let (number, start) = (device_number(&self.info.name), self.start_address());
        let in_use = |address: u64| DeviceError::Unavailable(format!("the {bytes} bytes at {address:#x} are in use"));
        let Some((parts, start)) = self.parts(name)? else {
            return match address.filter(|address| address.wrapping_sub(start) != at.0) {
                Some(address) => Err(in_use(address)),
                None => Ok(()),
            };
        };
        let is_placed = match address {
            Some(address) => parts.place_at(at.0, bytes, address.wrapping_sub(start)),
            None => {
                let from = parts.bytes() / PLACES * (1 + number % (PLACES - 1));
                parts.place_from(at.0, bytes, from)
            }
        };
        match address.filter(|_| !is_placed) {
            Some(address) => Err(in_use(address)),
            None if is_placed => Ok(()),
            // Fails as well, with a reason.
            None => self.place_part(name, at, bytes),
        }
    }

    fn offset_of(&self, name: &str, address: u64) -> Option<DeviceOffset> {
        let start = (!self.has_parts(name)).then(|| self.start_address())?;
        address.checked_sub(start).map(DeviceOffset)
    }

    fn reserve_address(&mut self, name: &str, address: u64, bytes: u64) {
        if let Ok(Some((parts, start))) = self.parts(name) {
            parts.reserve(address.wrapping_sub(start), bytes);
        }
    }

    fn release_address(&mut self, name: &str, address: u64) {
        if let Ok(Some((parts, start))) = self.parts(name) {
            parts.release(address.wrapping_sub(start));
        }
    }

    fn remove_part(&mut self, name: &str, at: DeviceOffset) {
        if let Some(regions) = &mut self.regions {
            return regions.remove_part(name, at);
        }
        let index = self.domain_index(name);
        if let Some(parts) = &mut self.domains[index].parts {
            parts.remove(at.0);
        }
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
        let alive: u64 =
            self.domains.iter().filter_map(Domain::executor).map(|pair| pair.started().count() as u64).sum();
        ExecutorStatistics {
            alive,
            processes: self.domains.iter().flat_map(Domain::processes).collect(),
            domains: self.domains.iter().map(Domain::usage).collect(),
            ..self.statistics.clone()
        }
    }
}
