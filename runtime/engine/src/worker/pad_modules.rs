//! Padding modules, in which functions of a tenant can share launches. They are compiled when
//! functions are loaded or unloaded, loaded in the background, and unloaded once no launch uses
//! them.

use crate::padding::{KernelOf, LoadedPadding};
use crate::padding_thread::PaddingThread;
use atoll_core::Tenant;
use atoll_device::Device;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// All padding modules.
pub(super) struct PadModules {
    pub(super) thread: Option<PaddingThread>,
    /// Number of the last job.
    pub(super) jobs: u32,
    /// By tenant and target.
    pub(super) owners: BTreeMap<(Tenant, String), Modules>,
}

/// The modules of a tenant for a target.
#[derive(Default)]
pub(super) struct Modules {
    /// The number of the newest job submitted, and of the newest job finished.
    pub(super) wanted: u32,
    pub(super) made: u32,
    /// Compiled and being loaded; all of the job `made`, and ordered by registers.
    pub(super) loading: Vec<Loading>,
    /// In use; all of one job, and ordered by registers. Kernels of these can share launches.
    pub(super) current: Vec<Arc<LoadedPadding>>,
    /// The job of the modules in use.
    pub(super) set: u32,
    /// Replaced, but still used by launches in flight.
    pub(super) retired: Vec<Arc<LoadedPadding>>,
}

pub(super) struct Loading {
    pub(super) module: LoadedPadding,
    pub(super) is_there: bool,
}

impl PadModules {
    pub(super) fn new(thread: Option<PaddingThread>) -> PadModules {
        PadModules { thread, jobs: 0, owners: BTreeMap::new() }
    }

    /// Whether modules are being made or loaded.
    pub(super) fn is_pending(&self) -> bool {
        self.owners.values().any(|modules| modules.made < modules.wanted || !modules.loading.is_empty())
    }

    /// Numbers of candidates in the modules in use, and of those modules. A kernel that several
    /// modules contain is one candidate.
    pub(super) fn candidates(&self) -> (u64, u64) {
        let current = || self.owners.values().map(|modules| &modules.current);
        (current().map(|modules| distinct(modules)).sum(), current().map(|modules| modules.len() as u64).sum())
    }
}

impl Modules {
    /// Takes the modules of a job into use once all that can be loaded are loaded, and unloads
    /// retired modules that are no longer used. Returns whether a load ended.
    pub(super) fn advance(&mut self, tenant: &Tenant, device: &mut dyn Device) -> bool {
        let mut any = false;
        self.loading.retain_mut(|Loading { module, is_there }| {
            match (!*is_there).then(|| device.poll_load(module.id)).flatten() {
                None => true,
                Some(answer) => {
                    (any, *is_there) = (true, answer.is_ok());
                    if let Err(error) = answer {
                        tracing::warn!(%tenant, %error, "a padding module could not be loaded");
                    }
                    *is_there
                }
            }
        });
        if any && !self.loading.is_empty() && self.loading.iter().all(|loading| loading.is_there) {
            let loaded: Vec<_> = self.loading.drain(..).map(|loading| Arc::new(loading.module)).collect();
            let candidates = distinct(&loaded);
            tracing::info!(%tenant, candidates, modules = loaded.len(), "functions can pad each other");
            self.retired.extend(std::mem::replace(&mut self.current, loaded));
            self.set = self.made;
        }
        self.retired.retain(|module| {
            let is_used = Arc::strong_count(module) > 1;
            if !is_used {
                device.unload_module(module.id);
            }
            is_used
        });
        any
    }
}

/// Number of different kernels in some modules.
fn distinct(modules: &[Arc<LoadedPadding>]) -> u64 {
    modules.iter().flat_map(|module| module.candidates.keys()).collect::<HashSet<_>>().len() as u64
}

/// The module in which kernels of some functions run in one launch: the one with the fewest
/// registers that contains them all.
pub(super) fn find<'a>(modules: &'a [Arc<LoadedPadding>], kernels: &[KernelOf]) -> Option<&'a Arc<LoadedPadding>> {
    modules.iter().find(|module| kernels.iter().all(|kernel| module.candidates.contains_key(kernel)))
}
