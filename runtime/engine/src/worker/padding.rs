//! Padded launches: which functions share a module, and launches of it.

use super::tasks::taken;
use super::{InFlight, Worker};
use crate::binding::Work;
use crate::error::InvokeError;
use crate::padding::{LoadedPadding, Padded, PaddingJob, PaddingModule, PaddingThread};
use atoll_core::{DeviceOffset, Epoch, Event, LaunchId, LaunchProfile, Nanos, PadShape, QueueId, TaskId, Tenant};
use atoll_device::{Completion, LaunchRecord, LaunchStatus, ModuleImage};
use atoll_kgraph::NodeProfile;
use atoll_kgraph::dkp::{Range, lay_out};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What is known about padding.
pub(super) struct PaddingState {
    thread: Option<PaddingThread>,
    /// Numbers jobs, and modules by them.
    jobs: u32,
    /// By whose they are and what they run on.
    modules: BTreeMap<(Tenant, String), Modules>,
    /// Blocks that go along with the launch that is issued next.
    pads: Vec<Pad>,
    /// Launches in flight that several share.
    shared: HashMap<LaunchId, SharedLaunch>,
    /// Tasks that cannot go on.
    doubted: Vec<TaskId>,
}

/// The modules of a tenant for a target.
#[derive(Default)]
struct Modules {
    /// The newest job that was begun.
    wanted: u32,
    /// Made, and being loaded.
    loading: Option<Arc<LoadedPadding>>,
    current: Option<Arc<LoadedPadding>>,
    /// Replaced, and used by launches in flight.
    retired: Vec<Arc<LoadedPadding>>,
}

/// Blocks of a task that run beside another one's.
#[derive(Clone, Copy)]
struct Pad {
    task: TaskId,
    step: u32,
    first: u32,
    shape: PadShape,
    epoch: Epoch,
}

/// A launch that several tasks share.
struct SharedLaunch {
    /// Keeps the module on the device.
    _module: Arc<LoadedPadding>,
    /// That of the real-time launch.
    evicted_word: DeviceOffset,
    pads: Vec<Pad>,
    /// What of its time belongs to each pad, in parts of [`WHOLE`].
    shares: Vec<u64>,
}

/// A task's part of a launch.
struct Part {
    range: Range,
    /// The launch that it would be alone.
    record: LaunchRecord,
    /// How long its blocks take together, by their profile.
    cost_ns: u64,
}

/// A share of everything.
const WHOLE: u64 = 1_000_000;

impl PaddingState {
    pub(super) fn new(thread: Option<PaddingThread>) -> PaddingState {
        PaddingState { thread, jobs: 0, modules: BTreeMap::new(), pads: Vec::new(), shared: HashMap::new(), doubted: Vec::new() }
    }

    /// Candidates of the modules on the device, and how many modules these are.
    pub(super) fn candidates(&self) -> (u64, u64) {
        let current = || self.modules.values().filter_map(|modules| modules.current.as_ref());
        (current().map(|module| module.facts.candidates.len() as u64).sum(), current().count() as u64)
    }
}

impl Worker {
    /// The functions of a tenant changed: asks for a module of those that there are.
    pub(super) fn repad(&mut self, tenant: &Tenant) {
        let PaddingState { thread: Some(thread), jobs, modules, .. } = &mut self.padding else { return };
        let mut by_target: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for loaded in self.functions.values().filter(|loaded| loaded.key().tenant == *tenant && !loaded.is_unloading()) {
            by_target.entry(loaded.function.target.clone()).or_default().push((loaded.function.id, Arc::clone(&loaded.function.bundle)));
        }
        // What nobody has any more goes when no launch uses it.
        for (_, modules) in modules.iter_mut().filter(|(key, _)| key.0 == *tenant && !by_target.contains_key(&key.1)) {
            modules.wanted = 0;
            modules.retired.extend(modules.current.take());
        }
        for (target, functions) in by_target {
            *jobs += 1;
            modules.entry((tenant.clone(), target.clone())).or_default().wanted = *jobs;
            thread.submit(PaddingJob { tenant: tenant.clone(), target, number: *jobs, functions });
        }
    }

    /// A module was made, or cannot be.
    pub(super) fn padded(&mut self, padded: Padded) {
        let Padded { tenant, target, number, functions, module } = padded;
        let key = (tenant, target);
        if self.lost.is_some() || self.padding.modules.get(&key).is_none_or(|modules| modules.wanted != number) {
            return;
        }
        let PaddingModule { code, kernel, facts, kernels } = match module {
            Ok(module) => module,
            Err(reason) => return tracing::info!(tenant = %key.0, %reason, "real-time launches run unpadded"),
        };
        let kernels_facts = [kernel];
        let image = ModuleImage { domain: key.0.as_str(), target: &key.1, code: &code, ptx: None, kernels: &kernels_facts };
        let begun = self.device.begin_load(image);
        let id = match self.check(begun) {
            Ok(id) => id,
            Err(error) => return tracing::warn!(tenant = %key.0, %error, "a padding module cannot be loaded"),
        };
        let candidates = kernels.into_iter().enumerate();
        let candidates = candidates.map(|(at, (bundle, kernel))| ((functions[bundle].0, kernel), at)).collect();
        let module = LoadedPadding { number, id, facts, candidates, profiles: functions.into_iter().collect() };
        let modules = self.padding.modules.get_mut(&key).expect("looked at just now");
        if let Some(overtaken) = modules.loading.replace(Arc::new(module)) {
            self.device.unload_module(overtaken.id);
        }
    }

    /// Takes modules into use that have been loaded, and drops those that nobody uses any more. Returns whether there were any.
    pub(super) fn advance_padding(&mut self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let Worker { device, padding, .. } = self;
        let mut any = false;
        for ((tenant, _), modules) in &mut padding.modules {
            if let Some(loading) = &modules.loading
                && let Some(answer) = device.poll_load(loading.id)
            {
                any = true;
                let loaded = modules.loading.take().filter(|_| answer.is_ok());
                match answer {
                    Ok(()) => {
                        tracing::info!(%tenant, candidates = loaded.as_ref().map(|l| l.facts.candidates.len()), "functions can pad each other")
                    }
                    Err(error) => tracing::warn!(%tenant, %error, "a padding module cannot be loaded"),
                }
                modules.retired.extend(loaded.and_then(|loaded| modules.current.replace(loaded)));
            }
            modules.retired.retain(|module| {
                let is_used = Arc::strong_count(module) > 1;
                if !is_used {
                    device.unload_module(module.id);
                }
                is_used
            });
        }
        any
    }

    /// What the scheduler should know of an invocation's launches so that they can be padded, or pad.
    pub(super) fn profiles(&mut self, task: TaskId) -> Option<Arc<[Option<LaunchProfile>]>> {
        let invocation = self.invocations.get_mut(&task)?;
        // Of a chain nobody measured the copies.
        let [stage] = invocation.submission.chain.stages.as_slice() else { return None };
        let key = (stage.function.key.tenant.clone(), stage.function.target.clone());
        let module = self.padding.modules.get(&key)?.current.as_ref()?;
        let shape = module.profiles.get(&stage.function.id)?.shape(&stage.binding.symbols)?;
        let nodes: HashMap<u32, &NodeProfile> = shape.launches.iter().map(|launch| (launch.node, launch)).collect();
        let profile = |step: usize| {
            let Work::Launch(launch) = &stage.binding.work[step] else { return None };
            let candidate = *module.candidates.get(&(stage.function.id, launch.kernel))?;
            let measured = nodes.get(&launch.node)?;
            let blocks: u64 = launch.grid.iter().map(|extent| u64::from(*extent)).product();
            Some(LaunchProfile {
                blocks: u32::try_from(blocks).ok().filter(|blocks| *blocks == measured.blocks)?,
                wave_ns: measured.wave_ns.as_slice().into(),
                module: module.number,
                params_bytes: module.facts.candidates[candidate].facts.params_bytes,
            })
        };
        let profiles = (0..stage.binding.work.len()).map(profile).collect();
        invocation.padding = Some(Arc::clone(module));
        Some(profiles)
    }

    /// Notes blocks that go along with the launch that is issued next.
    pub(super) fn pad(&mut self, task: TaskId, step: u32, first: u32, shape: PadShape, epoch: Epoch) {
        self.padding.pads.push(Pad { task, step, first, shape, epoch });
    }

    /// Whether the launch that is issued next is shared.
    pub(super) fn has_pads(&self) -> bool {
        !self.padding.pads.is_empty()
    }

    /// Issues a launch together with the blocks that go along.
    pub(super) fn issue_shared(&mut self, launch: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        let pads = std::mem::take(&mut self.padding.pads);
        if self.lost.is_some() {
            return;
        }
        if let Err(reason) = self.try_issue_shared(launch, task, step, queue, epoch, pads) {
            self.lose_device(reason);
        }
    }

    fn try_issue_shared(
        &mut self,
        launch: LaunchId,
        task: TaskId,
        step: u32,
        queue: QueueId,
        epoch: Epoch,
        pads: Vec<Pad>,
    ) -> Result<(), String> {
        self.clear_evicted_word(task, step)?;
        let module = self.invocation(task).padding.clone().expect("only invocations with profiles are padded");
        let own = self.part(&module, task, step, launch, epoch, None);
        let riders: Vec<Part> = pads.iter().map(|pad| self.part(&module, pad.task, pad.step, launch, pad.epoch, Some(pad))).collect();
        let parts: Vec<&Part> = std::iter::once(&own).chain(&riders).collect();
        let ranges: Vec<Range> = parts.iter().map(|part| part.range.clone()).collect();
        let laid_out = lay_out(&module.facts, &ranges).map_err(|error| format!("a padded launch cannot be laid out: {error}"))?;
        let slots = |(part, at): (&&Part, &usize)| part.record.address_slots << (at / 8);
        let record = LaunchRecord {
            module: module.id,
            kernel: 0,
            grid: [laid_out.blocks, 1, 1],
            shared_bytes: module.facts.shared_bytes,
            address_slots: parts.iter().zip(&laid_out.arguments_at).map(slots).fold(0, |all, slots| all | slots),
            // Its kernels look at their own epochs, and only the compute units' way between blocks is closed to them.
            preemptible: 0,
            may_run_again: 0,
            ..own.record
        };
        taken(self.device.submit(queue, &record, &laid_out.params), queue)?;
        self.launches.insert(launch, InFlight { task, step, queue, epoch });
        let whole = parts.iter().map(|part| part.cost_ns).sum::<u64>().max(1);
        let share = |part: &Part| (u128::from(part.cost_ns) * u128::from(WHOLE) / u128::from(whole)) as u64;
        let shares = riders.iter().map(share).collect();
        let shared = SharedLaunch { _module: module, evicted_word: own.record.evicted_word, pads, shares };
        self.padding.shared.insert(launch, shared);
        Ok(())
    }

    /// A task's part of a launch: all of a step, or some of its blocks.
    fn part(&mut self, module: &LoadedPadding, task: TaskId, step: u32, launch: LaunchId, epoch: Epoch, pad: Option<&Pad>) -> Part {
        let invocation = self.invocation(task);
        let stage = &invocation.submission.chain.stages[0];
        let (function, symbols) = (stage.function.id, &stage.binding.symbols);
        let instance = &mut invocation.instances[0];
        let template = instance.launch(step).expect("only launches have profiles");
        let (kernel, node, grid) = (template.kernel, template.node, template.grid);
        let candidate = module.candidates[&(function, kernel)];
        let facts = &module.facts.candidates[candidate].facts;
        let wave_ns = module.profiles.get(&function).and_then(|profile| profile.shape(symbols));
        let wave_ns =
            wave_ns.and_then(|shape| shape.launches.iter().find(|launch| launch.node == node)).map_or(1, |launch| launch.wave_ns[0]);
        let (mut record, params) = instance.record(step, launch, epoch).expect("only launches have profiles");
        let mut arguments = params.to_vec();
        arguments.resize(facts.virtual_offset as usize, 0);
        arguments.resize(facts.params_bytes as usize, 0);
        // What lies behind the kernel's own arguments is no address.
        record.address_slots &= 1_u64.checked_shl(facts.virtual_offset / 8).map_or(u64::MAX, |end| end - 1);
        let blocks = grid.iter().product();
        let (first, blocks) = pad.map_or((0, blocks), |pad| (pad.first, pad.shape.blocks));
        Part { range: Range { candidate, arguments, grid, first, blocks }, record, cost_ns: wave_ns.saturating_mul(u64::from(blocks)) }
    }

    /// A launch that was shared is over: bills the tasks whose blocks ran beside it, and says what is left of the completion for the task whose launch it was.
    pub(super) fn shared_launch_ended(&mut self, completion: &Completion, may_leave: bool, now: Nanos) -> Completion {
        let mut own = *completion;
        let Some(SharedLaunch { evicted_word, pads, shares, .. }) = self.padding.shared.remove(&completion.launch) else { return own };
        let compute_units = u64::from(self.shared.device.compute_units);
        for (pad, share) in pads.iter().zip(shares) {
            let busy_ns = (u128::from(completion.busy_ns) * u128::from(share) / u128::from(WHOLE)) as u64;
            own.busy_ns -= busy_ns;
            if let Some(invocation) = self.invocations.get_mut(&pad.task) {
                let busy_ns_max = compute_units.saturating_mul(now.0.saturating_sub(invocation.submission.submitted.0));
                invocation.note_pad(&Completion { busy_ns: busy_ns.min(busy_ns_max), ..*completion }, now);
            }
        }
        if completion.status == LaunchStatus::Complete && may_leave {
            let mut word = [0; 4];
            let answer = self.device.read(evicted_word, &mut word);
            if self.check(answer).is_ok() && word != [0; 4] {
                own.status = LaunchStatus::Evicted;
            }
        }
        if matches!(completion.status, LaunchStatus::Failed | LaunchStatus::Aborted) {
            pads.iter().for_each(|pad| self.doubt(pad));
        }
        own
    }

    /// Blocks of a task may have been stopped midway. Where they cannot be run again, the task is over.
    fn doubt(&mut self, pad: &Pad) {
        let Some(invocation) = self.invocations.get_mut(&pad.task) else { return };
        if invocation.instances.first().and_then(|instance| instance.launch(pad.step)).is_none_or(|launch| launch.may_run_again) {
            return;
        }
        let reason = "blocks of it ran beside a launch that was cut off, and running them again is not harmless";
        invocation.failure.get_or_insert_with(|| InvokeError::Device(reason.into()));
        self.padding.doubted.push(pad.task);
    }

    /// Ends the tasks about which there is doubt, once the scheduler knows that nothing of them is on the device.
    pub(super) fn end_doubted(&mut self) {
        for task in std::mem::take(&mut self.padding.doubted) {
            self.tell(Event::CancelTask { task });
        }
    }
}
