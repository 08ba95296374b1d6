//! Requests padding modules for a tenant's functions, loads them, and determines which launches of
//! an invocation can be shared.

use super::Worker;
use super::pad_modules::{Loading, Modules, PadModules};
use crate::binding::Work;
use crate::padding::{LoadedPadding, PaddingJob, PaddingModule, PaddingResult};
use atoll_core::{LaunchProfile, TaskId, Tenant};
use atoll_device::ModuleImage;
use atoll_kgraph::NodeProfile;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

impl Worker {
    /// Requests new modules after the functions of a tenant changed.
    pub(super) fn request_padding(&mut self, tenant: &Tenant) {
        let Worker { device, padding, functions, lost, .. } = self;
        let PadModules { thread: Some(thread), jobs, owners, .. } = &mut padding.modules else { return };
        let mut by_target: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for loaded in functions.values().filter(|loaded| loaded.key().tenant == *tenant && !loaded.is_unloading()) {
            by_target
                .entry(loaded.function.target.clone())
                .or_default()
                .push((loaded.function.id, Arc::clone(&loaded.function.bundle)));
        }
        // Modules of targets without functions are retired; those being loaded are dropped.
        for (_, modules) in owners.iter_mut().filter(|(key, _)| key.0 == *tenant && !by_target.contains_key(&key.1)) {
            modules.wanted = 0;
            modules
                .loading
                .drain(..)
                .filter(|_| lost.is_none())
                .for_each(|loading| device.unload_module(loading.module.id));
            modules.retired.append(&mut modules.current);
        }
        for (target, functions) in by_target {
            *jobs += 1;
            owners.entry((tenant.clone(), target.clone())).or_default().wanted = *jobs;
            thread.submit(PaddingJob { tenant: tenant.clone(), target, number: *jobs, functions });
        }
    }

    /// Handles the result of a job.
    pub(super) fn padding_compiled(&mut self, result: PaddingResult) {
        let PaddingResult { tenant, target, number, functions, modules } = result;
        let key = (tenant, target);
        match self.padding.modules.owners.get_mut(&key).filter(|modules| modules.wanted == number) {
            Some(modules) if self.lost.is_none() => modules.made = number,
            _ => return,
        }
        let modules = match modules {
            Ok(modules) => modules,
            Err(reason) => return tracing::info!(tenant = %key.0, %reason, "real-time launches run unpadded"),
        };
        let ids: Vec<_> = functions.iter().map(|(id, _)| *id).collect();
        let profiles = Arc::new(functions.into_iter().collect::<HashMap<_, _>>());
        let mut loading = Vec::new();
        for PaddingModule { code, kernels, facts, candidates } in modules {
            let image =
                ModuleImage { domain: key.0.as_str(), target: &key.1, code: &code, ptx: None, kernels: &kernels };
            let begun = self.device.begin_load(image);
            match self.check(begun) {
                Ok(id) => {
                    let candidates = candidates.into_iter().enumerate();
                    let candidates = candidates.map(|(at, (bundle, kernel))| ((ids[bundle], kernel), at)).collect();
                    let module = LoadedPadding { id, facts, candidates, profiles: Arc::clone(&profiles) };
                    loading.push(Loading { module, is_there: false });
                }
                Err(error) => tracing::warn!(tenant = %key.0, %error, "a padding module cannot be loaded"),
            }
        }
        let modules = self.padding.modules.owners.get_mut(&key).expect("present: checked above");
        for replaced in std::mem::replace(&mut modules.loading, loading) {
            self.device.unload_module(replaced.module.id);
        }
    }

    /// Advances loading and unloading of modules. Returns whether a load ended.
    pub(super) fn advance_padding(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let Worker { device, padding, .. } = self;
        let owners = padding.modules.owners.iter_mut();
        owners.fold(false, |any, ((tenant, _), modules)| modules.advance(tenant, &mut **device) || any)
    }

    /// Profiles of an invocation's launches, for the scheduler to pad them or pad others with them.
    pub(super) fn profiles(&mut self, task: TaskId) -> Option<Arc<[Option<LaunchProfile>]>> {
        let invocation = self.invocations.get_mut(&task)?;
        // The copies of a chain are not profiled. A retried invocation may have caused the loss of
        // its executor, so it runs unpadded, which shows whether it did.
        let [stage] = invocation.submission.chain.stages.as_slice() else { return None };
        if invocation.submission.retries > 0 {
            return None;
        }
        let key = (stage.function.key.tenant.clone(), stage.function.target.clone());
        let Modules { current: modules, set, .. } = self.padding.modules.owners.get(&key)?;
        let shape = modules.first()?.profiles.get(&stage.function.id)?.shape(&stage.binding.symbols)?;
        let nodes: HashMap<u32, &NodeProfile> = shape.launches.iter().map(|launch| (launch.node, launch)).collect();
        let profile = |step: usize| {
            let Work::Launch(launch) = &stage.binding.work[step] else { return None };
            let kernel = (stage.function.id, launch.kernel);
            let in_modules = || modules.iter().map(|module| module.candidate(kernel));
            let candidate = in_modules().flatten().next()?;
            let measured = nodes.get(&launch.node)?;
            let blocks: u64 = launch.grid.iter().map(|extent| u64::from(*extent)).product();
            Some(LaunchProfile {
                blocks: u32::try_from(blocks).ok().filter(|blocks| *blocks == measured.blocks)?,
                wave_ns: measured.wave_ns.as_slice().into(),
                set: *set,
                unit_blocks: in_modules().map(|found| found.map_or(0, |found| found.unit_blocks)).collect(),
                params_bytes: candidate.facts.params_bytes,
                bandwidth_permille: 0,
            })
        };
        let profiles = (0..stage.binding.work.len()).map(profile).collect();
        invocation.padding = modules.clone();
        Some(profiles)
    }
}
