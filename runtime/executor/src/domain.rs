//! A domain of the pool: its modules, its memory, and the executor that runs it.

use super::pair::Pair;
use super::parts::Parts;
use super::pool::NUMBERS_MAX;
use super::sealed::SealedModule;
use atoll_core::DeviceOffset;
use atoll_device::shm::Region;
use atoll_device::space::ConstantStore;
use atoll_device::{DeviceError, DomainUse, ExecutorProcess, GroupUse, ModuleId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// How many lost executors are tolerated while a module is loaded for the first time; the next loss
/// refuses the module. A single loss may have had another cause.
const LOAD_LOSSES_MAX: u32 = 1;

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) name: String,
    /// Its memory, from first use until its executor is gone.
    pub(super) memory: Option<Memory>,
    pub(super) state: State,
    pub(super) modules: BTreeMap<ModuleId, Module>,
    /// The constants that its executor may read; kept for its replacement.
    pub(super) constants: BTreeSet<DeviceOffset>,
    /// When executors were lost recently.
    pub(super) losses: VecDeque<Instant>,
    pub(super) losses_ever: u64,
    /// CPU time of executors that are gone, in nanoseconds.
    pub(super) cpu_before_ns: u64,
    /// The kernel's counts for the control groups of executors that are gone.
    pub(super) group_before: Option<GroupUse>,
    /// Bytes of its memory that its executor may touch.
    pub(super) allowed_bytes: u64,
    /// The parts of its memory, if the memory is limited.
    pub(super) parts: Option<Parts>,
}

/// Memory of a domain.
#[derive(Debug)]
pub(super) struct Memory {
    /// The number in the upper bits of its offsets.
    pub(super) number: u64,
    /// `None` if only its executor can access it.
    pub(super) region: Option<Arc<Region>>,
}

#[derive(Debug)]
pub(super) enum State {
    /// No module is loaded, so there is no executor.
    Absent,
    Running(Box<Pair>),
    /// There is no executor until the pause ends.
    Pausing {
        until: Instant,
        cause: String,
        is_unavailable: bool,
    },
}

#[derive(Debug)]
pub(super) struct Module {
    pub(super) sealed: SealedModule,
    /// Its id in the current executor.
    pub(super) local: Option<ModuleId>,
    /// The module was loaded before. Until then, its errors go to the caller of the load.
    pub(super) was_loaded: bool,
    pub(super) is_loading: bool,
    /// Executors that were lost while they loaded it for the first time; the module may be the
    /// cause.
    pub(super) losses: u32,
    pub(super) refusal: Option<String>,
}

impl Module {
    pub(super) fn lose_executor(&mut self, cause: &str) {
        self.losses += u32::from(self.is_loading && !self.was_loaded);
        if self.losses > LOAD_LOSSES_MAX {
            self.refusal = Some(cause.to_owned());
        }
        (self.local, self.is_loading) = (None, false);
    }

    /// The module's id in the current executor, once the module is loaded there.
    pub(super) fn ready(&self) -> Option<ModuleId> {
        self.local.filter(|_| !self.is_loading)
    }
}

impl Domain {
    pub(super) fn new(name: &str) -> Domain {
        Domain {
            name: name.to_owned(),
            memory: None,
            state: State::Absent,
            modules: BTreeMap::new(),
            constants: BTreeSet::new(),
            losses: VecDeque::new(),
            losses_ever: 0,
            cpu_before_ns: 0,
            group_before: None,
            // Unlimited until the engine sets it. Before that, the domain runs nothing.
            allowed_bytes: u64::MAX,
            parts: None,
        }
    }

    /// The offset in its region of an offset in its memory; `None` if it is in no part of it.
    pub(super) fn local(&self, within: DeviceOffset) -> Option<DeviceOffset> {
        self.parts.as_ref().map_or(Some(within), |parts| parts.local(within.0).map(DeviceOffset))
    }

    pub(super) fn executor(&self) -> Option<&Pair> {
        if let State::Running(device) = &self.state { Some(device) } else { None }
    }

    /// The number of its memory; an impossible number if it has none.
    pub(super) fn number(&self) -> u64 {
        self.memory.as_ref().map_or(NUMBERS_MAX, |memory| memory.number)
    }

    /// Tells the domain's executor, if there is one, to map constants.
    pub(super) fn show(&self, constants: impl Iterator<Item = DeviceOffset>, store: &ConstantStore) {
        if let Some(executor) = self.executor() {
            executor.begin_show(constants.filter_map(|at| Some((at, store.get(at)?))));
        }
    }

    /// Starts loading all modules that are not loaded.
    pub(super) fn load_all(&mut self) {
        let State::Running(device) = &mut self.state else { return };
        for module in self.modules.values_mut().filter(|module| module.local.is_none() && module.refusal.is_none()) {
            // A loss of the executor is detected elsewhere.
            module.local = device.begin_load_sealed(&module.sealed).ok();
            module.is_loading = module.local.is_some();
        }
    }

    pub(super) fn take_loaded(&mut self) {
        let State::Running(device) = &mut self.state else { return };
        for module in self.modules.values_mut().filter(|module| module.is_loading) {
            let Some(local) = module.local else { continue };
            match device.poll_load(local) {
                None | Some(Err(DeviceError::Lost(_))) => {}
                Some(Ok(())) => (module.is_loading, module.was_loaded) = (false, true),
                Some(Err(error)) => {
                    (module.is_loading, module.local) = (false, None);
                    module.refusal = Some(error.to_string());
                }
            }
        }
    }

    /// CPU time of its executors in nanoseconds, as the operating system accounts for it.
    fn cpu_ns(&self) -> u64 {
        self.cpu_before_ns.saturating_add(self.executor().map_or(0, Pair::cpu_ns))
    }

    /// The kernel's counts for the control groups of earlier executors and the current one
    /// together.
    pub(super) fn group_use_with(&self, current: Option<GroupUse>) -> Option<GroupUse> {
        match (&self.group_before, &current) {
            (Some(before), Some(current)) => Some(before.plus(current)),
            (before, current) => before.or(*current),
        }
    }

    /// The use of resources by its executors, as the operating system accounts for it.
    pub(super) fn usage(&self) -> DomainUse {
        let current = self.executor().and_then(Pair::group_use);
        // A group that is gone uses no memory now.
        let group = self
            .group_use_with(current)
            .map(|group| GroupUse { current_bytes: current.map_or(0, |current| current.current_bytes), ..group });
        DomainUse { domain: self.name.clone(), cpu_ns: self.cpu_ns(), group }
    }

    /// The executors of the domain, or why there is none; empty if the domain needs no executor.
    pub(super) fn processes(&self) -> Vec<ExecutorProcess> {
        let process = ExecutorProcess {
            domain: self.name.clone(),
            losses: self.losses_ever,
            cpu_ns: self.cpu_ns(),
            ..ExecutorProcess::default()
        };
        match &self.state {
            State::Absent => Vec::new(),
            State::Running(pair) => {
                let jail_lacks = pair.jail_lacks().unwrap_or_default();
                let second = pair.second().map(|device| ExecutorProcess {
                    pid: Some(device.pid()),
                    cpu_ns: device.cpu_ns(),
                    jail_lacks: jail_lacks.clone(),
                    ..process.clone()
                });
                let cpu_ns = process.cpu_ns.saturating_sub(second.as_ref().map_or(0, |second| second.cpu_ns));
                let first =
                    ExecutorProcess { pid: Some(pair.pid()), cpu_ns, jail_lacks, group: pair.group_use(), ..process };
                std::iter::once(first).chain(second).collect()
            }
            State::Pausing { cause, .. } => vec![ExecutorProcess { cause: Some(cause.clone()), ..process }],
        }
    }

    /// Whether its executor runs.
    pub(super) fn has_begun(&self) -> bool {
        self.executor().is_some_and(|device| device.lost().is_none() && device.jail_lacks().is_some())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.has_begun()
            && !self
                .modules
                .values()
                .any(|module| module.was_loaded && module.refusal.is_none() && module.ready().is_none())
    }
}
