//! Padding modules, in which functions of a tenant can share launches. They are compiled when
//! functions are loaded or unloaded, loaded in the background, and unloaded once no launch uses
//! them.

use crate::padding::LoadedPadding;
use crate::padding_thread::PaddingThread;
use atoll_core::Tenant;
use atoll_device::Device;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All padding modules.
pub(super) struct PadModules {
    pub(super) thread: Option<PaddingThread>,
    /// Number of the last job.
    pub(super) jobs: u32,
    /// Number of the last module.
    pub(super) numbers: u32,
    /// By tenant and target.
    pub(super) owners: BTreeMap<(Tenant, String), Modules>,
}

/// The modules of a tenant for a target.
#[derive(Default)]
pub(super) struct Modules {
    /// The number of the newest job submitted, and of the newest job finished.
    pub(super) wanted: u32,
    pub(super) made: u32,
    /// Compiled and being loaded; all of one job.
    pub(super) loading: Vec<Loading>,
    /// In use; all of one job.
    pub(super) current: Vec<Arc<LoadedPadding>>,
    /// Replaced, but still used by launches in flight.
    pub(super) retired: Vec<Arc<LoadedPadding>>,
}

pub(super) struct Loading {
    pub(super) module: LoadedPadding,
    pub(super) is_there: bool,
}

impl PadModules {
    pub(super) fn new(thread: Option<PaddingThread>) -> PadModules {
        PadModules { thread, jobs: 0, numbers: 0, owners: BTreeMap::new() }
    }

    /// Whether modules are being made or loaded.
    pub(super) fn is_pending(&self) -> bool {
        self.owners.values().any(|modules| modules.made < modules.wanted || !modules.loading.is_empty())
    }

    /// Numbers of candidates in the modules in use, and of those modules.
    pub(super) fn candidates(&self) -> (u64, u64) {
        let current = || self.owners.values().flat_map(|modules| &modules.current);
        (current().map(|module| module.facts.candidates.len() as u64).sum(), current().count() as u64)
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
            let candidates: usize = loaded.iter().map(|module| module.facts.candidates.len()).sum();
            tracing::info!(%tenant, candidates, modules = loaded.len(), "functions can pad each other");
            self.retired.extend(std::mem::replace(&mut self.current, loaded));
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

/// The module that contains a kernel of a function, and the kernel's candidate index there.
pub(super) fn find(
    modules: &[Arc<LoadedPadding>],
    kernel: (crate::function::FunctionId, u32),
) -> Option<(&Arc<LoadedPadding>, usize)> {
    modules.iter().find_map(|module| Some((module, *module.candidates.get(&kernel)?)))
}
