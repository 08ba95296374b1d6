//! The memory of one invocation, with the parameters of all its launches. Kept for the next
//! invocation of the same shapes.

use crate::accounts::Holder;
use crate::binding::{Binding, LaunchTemplate, Relocation, Site, Space, Work};
use atoll_core::memory::Place;
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use atoll_device::{LaunchRecord, ModuleId};
use atoll_kgraph::LoopProgress;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) binding: Arc<Binding>,
    place: Place,
    /// Base of the memory of its domain.
    base: DeviceOffset,
    /// Start of that memory, for fences.
    start: DeviceOffset,
    /// Its size minus one, for fences.
    mask: u64,
    /// Offsets of the function's constants.
    constants: Box<[DeviceOffset]>,
    /// The generation of the constant set for which those offsets are valid.
    pub(crate) generation: u64,
    module: ModuleId,
    /// The modules of [`Binding::code`].
    modules: Vec<ModuleId>,
    /// [`Binding::params`] with the addresses filled in.
    params: Vec<u8>,
    /// Per step: whether the evicted word may be nonzero.
    evicted: Vec<bool>,
    /// The progress of each loop of the flow.
    pub(crate) loops: Vec<LoopProgress>,
    /// Iterations of all loops in this invocation.
    pub(crate) iterations: u64,
    /// The account that is charged for it.
    pub(crate) holder: Option<Holder>,
    /// The memory of the session whose step it runs.
    state: DeviceOffset,
}

impl Instance {
    pub(crate) fn new(
        binding: Arc<Binding>,
        place: Place,
        constants: Box<[DeviceOffset]>,
        generation: u64,
        module: ModuleId,
    ) -> Instance {
        assert!(place.bytes >= binding.layout.bytes, "the memory is as large as the layout");
        let evicted = vec![false; binding.work.len()];
        let mut instance = Instance {
            params: binding.params.clone(),
            loops: vec![LoopProgress::default(); binding.flow.loops.len()],
            iterations: 0,
            binding,
            place,
            base: DeviceOffset(0),
            start: DeviceOffset(0),
            mask: 0,
            constants,
            generation,
            module,
            modules: Vec::new(),
            evicted,
            holder: None,
            state: DeviceOffset(0),
        };
        instance.relocate();
        instance
    }

    /// Rebinds the memory to another binding.
    pub(crate) fn bind(&mut self, binding: Arc<Binding>) {
        self.evicted.resize(binding.work.len(), false);
        self.params.clone_from(&binding.params);
        self.binding = binding;
        self.relocate();
    }

    /// Sets the modules of [`Binding::code`].
    pub(crate) fn set_modules(&mut self, modules: Vec<ModuleId>) {
        self.modules = modules;
    }

    /// Updates the offsets of the constants after they were loaded again.
    pub(crate) fn move_constants(&mut self, generation: u64, constants: Box<[DeviceOffset]>) {
        (self.generation, self.constants) = (generation, constants);
        self.relocate();
    }

    /// Whether the other instance lies in the same memory of a domain, none of which was lost since.
    pub(crate) fn is_beside(&self, other: &Instance) -> bool {
        self.base == other.base
    }

    /// Whether `base` is the base that was set last.
    pub(crate) fn is_at(&self, base: DeviceOffset) -> bool {
        self.base == base
    }

    /// Updates base, start and mask of the domain's memory; the contents of the old memory are lost.
    pub(crate) fn move_to(&mut self, base: DeviceOffset, start: DeviceOffset, mask: u64) {
        (self.base, self.start, self.mask) = (base, start, mask);
        self.relocate();
    }

    /// Sets the memory of the session whose step it runs.
    pub(crate) fn set_state(&mut self, at: DeviceOffset) {
        if self.state != at {
            self.state = at;
            self.relocate();
        }
    }

    /// The memory of its session.
    pub(crate) fn state(&self) -> DeviceOffset {
        self.state
    }

    /// Writes all addresses into the parameter blocks.
    fn relocate(&mut self) {
        for index in 0..self.binding.relocations.len() {
            let Relocation { at, site } = self.binding.relocations[index];
            let address = self.resolve(site).0.to_le_bytes();
            self.params[at..at + 8].copy_from_slice(&address);
        }
    }

    /// Resets it for the next invocation. The caller zeroes the control area.
    pub(crate) fn begin(&mut self) {
        self.evicted.fill(false);
        self.iterations = 0;
    }

    /// Size in bytes of device memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.place.bytes
    }

    /// The device offset of a byte of the memory.
    pub(crate) fn at(&self, offset: u64) -> DeviceOffset {
        DeviceOffset(self.base.0 + self.place.at.0 + offset)
    }

    pub(crate) fn resolve(&self, site: Site) -> DeviceOffset {
        match site.space {
            Space::Invocation => self.at(site.offset),
            Space::State => DeviceOffset(self.state.0 + site.offset),
            Space::Constant(number) => DeviceOffset(self.constants[number as usize].0 + site.offset),
            Space::Domain => DeviceOffset(self.start.0 + site.offset),
            Space::Device => DeviceOffset(site.offset),
            Space::Mask => DeviceOffset(self.mask),
        }
    }

    pub(crate) fn epoch_word(&self) -> DeviceOffset {
        self.at(self.binding.layout.epoch_word)
    }

    /// The launch template of a step; `None` if the step is not a launch.
    pub(crate) fn launch(&self, step: u32) -> Option<&LaunchTemplate> {
        match &self.binding.work[step as usize] {
            Work::Launch(launch) => Some(launch),
            Work::Copy { .. } | Work::Fill { .. } | Work::ReadBack(_) | Work::Border(_) => None,
        }
    }

    /// Records that a step's launch exited early, so its evicted word is set.
    pub(crate) fn note_evicted(&mut self, step: u32) {
        self.evicted[step as usize] = true;
    }

    /// The evicted word of a step, if it has to be cleared before the step is issued again. No
    /// launch in flight uses it: a step is issued again only after its launch has ended.
    pub(crate) fn take_evicted_word(&mut self, step: u32) -> Option<DeviceOffset> {
        let evicted = std::mem::take(&mut self.evicted[step as usize]);
        let word = self.launch(step)?.evicted_word;
        evicted.then(|| self.at(word))
    }

    /// The record and the parameter block of a launch under an epoch.
    pub(crate) fn record(&mut self, step: u32, launch: LaunchId, epoch: Epoch) -> Option<(LaunchRecord, &[u8])> {
        let binding = Arc::clone(&self.binding);
        let Work::Launch(template) = &binding.work[step as usize] else { return None };
        let other = template.code.map(|code| self.modules.get(code as usize).copied());
        let module = other.map_or(Some(self.module), |other| other)?;
        let epoch = if template.stays { epoch.out_of_reach() } else { epoch };
        let record = LaunchRecord {
            launch,
            module,
            kernel: template.kernel,
            grid: template.grid,
            shared_bytes: template.shared_bytes,
            address_slots: template.address_slots,
            evicted_word: self.at(template.evicted_word),
            epoch_word: self.epoch_word(),
            epoch,
            preemptible: u32::from(template.keeps_progress),
            may_run_again: u32::from(template.may_run_again),
            followed: 0,
        };
        let params = &mut self.params[template.params.clone()];
        if let Some(at) = template.issued_epoch {
            params[at..at + 4].copy_from_slice(&epoch.0.to_le_bytes());
        }
        Some((record, params))
    }
}
