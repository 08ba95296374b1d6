//! Starts a pool.

use super::lifecycle::watch;
use super::{ExecutorPool, SHARED_DOMAIN, os};
use crate::config::ExecutorConfig;
use crate::device::ExecutorDevice;
use crate::imports::ExecutorImports;
use crate::regions::Regions;
use atoll_core::DeviceOffset;
use atoll_device::process::{DevicePlan, MemoryHome, ProcessService};
use atoll_device::space::ConstantStore;
use atoll_device::{ComputeUnitUse, Device as _, DeviceError, DeviceInfo, ExecutorStatistics, LaneTable};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

impl ExecutorPool {
    /// A device whose executors are started when a module is loaded. The executor of a device with
    /// memory of its own is started now, since it reports the facts of the device.
    ///
    /// # Errors
    /// If there is no such device, or a system call fails.
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
                    let why = "the GPU's driver does not use MPS in its executor, \
                        so the executor is not confined to its share";
                    return Err(DeviceError::Unavailable(why.to_owned()));
                }
                // Replacements reserve the same amount of memory, whatever other processes have
                // allocated meanwhile.
                let device = DevicePlan { memory_bytes: Some(executor.info().memory_bytes), ..config.device };
                let memory_bytes = executor.info().memory_bytes;
                let reserved = config.tenant_memory.map(|memory| memory.of(memory_bytes)).filter(|bytes| *bytes > 0);
                let regions = reserved.map(|bytes| Regions::new(bytes, memory_bytes)).transpose()?;
                let info = without(executor.info().clone(), regions.as_ref());
                let mut pool = Self::with(ExecutorConfig { device, ..config }, info)?;
                pool.regions = regions;
                pool.facts = executor.facts();
                pool.service = service;
                let index = pool.domain_index(SHARED_DOMAIN);
                pool.memory(index)?;
                let second = pool.try_second(&executor);
                pool.is_split = second.is_some();
                let pair = pool.pair(executor);
                pool.install(index, pair)?;
                if let Some(second) = second {
                    pool.join(index, second)?;
                }
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
        let imports = config.device.imports.map(|ordinal| ExecutorImports::new(ordinal, config.answer_within));
        Ok(ExecutorPool {
            imports: imports.transpose()?.map(Arc::new),
            constants: ConstantStore::new(info.constants_bytes),
            lanes: LaneTable::new(config.device.link, info.compute_units, info.lane_units),
            info,
            config,
            facts: None,
            domains: Vec::new(),
            regions: None,
            numbers: 0,
            modules: HashMap::new(),
            modules_given: 0,
            launches: HashMap::new(),
            abandoned: VecDeque::new(),
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
            is_split: false,
            service: None,
        })
    }
}

/// The description of a device without the memory that is reserved for regions.
fn without(info: DeviceInfo, regions: Option<&Regions>) -> DeviceInfo {
    let memory_bytes = regions.map_or(info.memory_bytes, Regions::start);
    DeviceInfo { memory_bytes, constants_base: DeviceOffset(memory_bytes), ..info }
}
