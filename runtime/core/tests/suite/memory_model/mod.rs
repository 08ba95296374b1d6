//! A world for memory decisions: tenants with functions, an engine that carries out actions, and a
//! device that refuses memory and loses it.

mod clients;
mod device;
mod digest;
mod outputs;
mod sessions;
mod totals;

pub(crate) use totals::Totals;

use atoll_core::memory::{
    Action, Event, FunctionId, Granted, InvocationSpec, Memory, MemoryQuotas, MemorySpec, SessionId, SetState, SlotId,
    TenantBytes,
};
use atoll_core::residency::{ItemId, RESIDENCY_POLICIES, Residency};
use atoll_core::rng::Rng;
use atoll_core::{DeviceOffset, Nanos, TaskId, Tenant};
use device::Device;
use digest::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const GRANULE: u64 = 256;
const TENANTS: [&str; 3] = ["local", "a", "b"];
const FUNCTIONS_MAX: usize = 9;
const INVOCATIONS_MAX: usize = 12;
/// Steps after the last arrival within which every invocation has to be served.
const DRAIN_STEPS_MAX: u64 = 20_000;

/// Steps that an invocation may be present while others keep arriving. Loading takes about ten; the
/// longest wait in a million steps was 605.
const WAIT_STEPS_MAX: u64 = 2_000;

struct Function {
    tenant: Tenant,
    set: ItemId,
    unloading: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Cold,
    Ready,
    Running,
    Ending,
}

struct Invocation {
    spec: InvocationSpec,
    stage: Stage,
    slots: Vec<SlotId>,
    /// The step at which it arrived.
    since: u64,
}

pub(crate) struct World {
    rng: Rng,
    now: Nanos,
    memory: Memory,
    device: Device,
    functions: BTreeMap<FunctionId, Function>,
    invocations: BTreeMap<TaskId, Invocation>,
    /// Slots that the memory keeps, with their places.
    kept: BTreeMap<SlotId, atoll_core::memory::Place>,
    places: BTreeMap<SlotId, atoll_core::memory::Place>,
    /// Running invocations whose constants were lost.
    constants_lost: BTreeSet<TaskId>,
    sessions: BTreeMap<SessionId, sessions::Session>,
    outputs: outputs::Outputs,
    unmapped: BTreeSet<FunctionId>,
    staging: BTreeMap<ItemId, usize>,
    next: u64,
    /// One in this many operations fails; 0 for never.
    faults: u64,
    two_parts: bool,
    /// Upper bound of the bytes that could not be cleared so far.
    withheld_max: u64,
    steps: u64,
    /// Digest of all actions, and of the state after each step.
    digest: Digest,
    /// The device is lost: no action may be issued for it anymore.
    device_lost: bool,
    totals: Totals,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let two_parts = rng.below(2) == 0;
        let memory_bytes = GRANULE * (24 + rng.below(40));
        let spec = MemorySpec {
            memory_bytes,
            constants_base: DeviceOffset(1 << 40),
            constants_bytes: if two_parts { memory_bytes } else { 0 },
            constants_granule: GRANULE,
            limit_bytes: None,
            overcommit: [0.6, 3.0][rng.below(2) as usize],
        };
        let quota = TenantBytes { all: GRANULE * (12 + rng.below(20)), best_effort: GRANULE * (10 + rng.below(20)) };
        let tenants = [("a".parse().expect("a name"), quota)].into_iter().collect();
        let quotas = MemoryQuotas { default: TenantBytes::UNLIMITED, tenants };
        let policy = RESIDENCY_POLICIES[rng.below(RESIDENCY_POLICIES.len() as u64) as usize];
        let faults = [0, 30, 200][rng.below(3) as usize];
        World {
            rng,
            now: Nanos(0),
            memory: Memory::new(&spec, Residency::new((policy.make)()), quotas),
            device: Device::default(),
            functions: BTreeMap::new(),
            invocations: BTreeMap::new(),
            kept: BTreeMap::new(),
            places: BTreeMap::new(),
            constants_lost: BTreeSet::new(),
            sessions: BTreeMap::new(),
            outputs: outputs::Outputs::default(),
            unmapped: BTreeSet::new(),
            staging: BTreeMap::new(),
            next: 1,
            faults,
            two_parts,
            withheld_max: 0,
            steps: 0,
            digest: Digest::default(),
            device_lost: false,
            totals: Totals::default(),
        }
    }

    /// A digest of every action, and of the queried state after every step.
    pub(crate) fn recorded(mut self, steps: u64) -> u64 {
        for _ in 0..steps {
            self.step(true);
            self.note_state();
        }
        self.digest.0
    }

    fn note_state(&mut self) {
        let memory = &self.memory;
        let bytes =
            [memory.used_bytes(), memory.used_bytes_max(), memory.constant_bytes(), memory.constant_bytes_all()];
        self.digest.note(&(
            bytes,
            memory.cold_count(),
            memory.is_loading(),
            memory.next_wakeup(),
            memory.shares(),
            memory.tenant_memory(),
        ));
        self.digest.note(&memory.unmapped().collect::<Vec<_>>());
        for (id, function) in &self.functions {
            let set = function.set;
            let of_set =
                (memory.state(set), memory.set_bytes(set), memory.set_device_bytes(set), memory.is_placed(set));
            self.digest.note(&(
                of_set,
                memory.functions_of(set).collect::<Vec<_>>(),
                memory.places(*id),
                memory.generation(*id),
            ));
        }
    }

    pub(crate) fn run(mut self, steps: u64) -> Totals {
        self.outputs.stay = self.rng.below(2) == 0;
        for _ in 0..steps {
            self.step(true);
        }
        if self.faults > 0 && self.rng.below(4) > 0 {
            self.lose_device();
        }
        for step in 0.. {
            if self.invocations.is_empty() {
                break;
            }
            if step > DRAIN_STEPS_MAX / 2 && self.memory.withheld_bytes() > 0 {
                // Invocations that fitted before memory was withheld may no longer fit.
                let waiting: Vec<TaskId> = self.invocations.keys().copied().collect();
                waiting.into_iter().for_each(|task| self.end(task));
            }
            let stages: Vec<_> = self.invocations.iter().map(|(task, invocation)| (task, invocation.stage)).collect();
            assert!(
                step < DRAIN_STEPS_MAX,
                "never served, {} of {} bytes withheld: {stages:?}",
                self.memory.withheld_bytes(),
                self.memory.total_bytes()
            );
            self.step(false);
        }
        let functions: Vec<FunctionId> = self.functions.keys().copied().collect();
        functions.into_iter().for_each(|id| self.unload(id));
        assert_eq!(self.memory.used_bytes(), self.memory.withheld_bytes(), "memory is used without functions");
        assert_eq!(self.device.reserved_bytes(), 0, "constants are on the device without functions");
        self.totals
    }

    fn step(&mut self, arrives: bool) {
        self.steps += 1;
        self.now.0 += 1 + self.rng.below(2_000);
        match self.rng.below(16) {
            0 if arrives => self.load(),
            1 if arrives && self.rng.below(8) == 0 => self.begin_unload(),
            2..=4 if arrives => self.arrive(),
            5 if arrives && self.rng.below(8) == 0 => self.cancel(),
            6 | 7 => self.end_one(),
            8 | 9 => self.prepare_one(),
            10 => self.map_one(),
            11 if self.fails() => self.lose_constants(),
            12 if self.outputs.stay => self.release_one(),
            _ => self.advance(),
        }
        if self.memory.next_wakeup().is_some_and(|at| at <= self.now) {
            self.send(Event::Tick);
        }
        self.finish_endings();
        self.check();
    }

    fn fails(&mut self) -> bool {
        self.faults > 0 && self.rng.below(self.faults) == 0
    }

    fn send(&mut self, event: Event) {
        self.memory.handle(self.now, event);
        while let Some(action) = self.memory.next_action() {
            self.carry_out(action);
        }
    }

    fn note(&mut self, event: Event) {
        self.memory.handle(self.now, event);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // The engine.

    fn prepare_one(&mut self) {
        let running = self.invocations.values().filter(|invocation| invocation.stage == Stage::Running).count();
        let ready = self.invocations.iter().filter(|(_, invocation)| invocation.stage == Stage::Ready);
        let first = ready.map(|(task, invocation)| (invocation.spec.class, *task)).min();
        if let Some((_, task)) = first.filter(|_| running < 3) {
            self.send(Event::Prepare { task });
        }
    }

    fn end_one(&mut self) {
        let running =
            self.invocations.iter().filter(|(_, invocation)| invocation.stage == Stage::Running).map(|(task, _)| *task);
        if let Some(task) = self.any_of(running.collect()) {
            self.totals.completed += 1;
            self.invocations.get_mut(&task).expect("picked").stage = Stage::Ending;
        }
    }

    fn finish_endings(&mut self) {
        let ending = |world: &World| {
            world.invocations.iter().find(|(_, invocation)| invocation.stage == Stage::Ending).map(|(task, _)| *task)
        };
        while let Some(task) = ending(self) {
            let Invocation { spec, slots, .. } = self.invocations.remove(&task).expect("found");
            self.constants_lost.remove(&task);
            self.retain_some(&slots);
            self.keep(slots, &spec);
            self.send(Event::Ended { task });
            self.leave_session(spec.session);
            spec.stages.iter().for_each(|stage| self.finish_unload(stage.function));
            self.send(Event::Resume);
        }
    }

    fn keep(&mut self, slots: Vec<SlotId>, spec: &InvocationSpec) {
        for slot in slots {
            self.device.dirty(self.places[&slot], spec.tenant.as_str());
            self.kept.insert(slot, self.places[&slot]);
        }
    }

    fn map_one(&mut self) {
        if let Some(function) = self.any_of(self.unmapped.iter().copied().collect()) {
            self.unmapped.remove(&function);
            self.send(Event::Mapped { functions: vec![function] });
        }
    }

    fn advance(&mut self) {
        for (set, end) in self.staging.clone() {
            self.note(Event::Staged { set, end });
        }
        self.staging.values_mut().for_each(|end| *end = usize::MAX);
        self.send(Event::Advance);
    }

    fn lose_constants(&mut self) {
        self.totals.lost += 1;
        self.device.forget_constants();
        self.constants_lost.extend(
            self.invocations.iter().filter(|(_, invocation)| invocation.stage == Stage::Running).map(|(task, _)| *task),
        );
        self.send(Event::ConstantsLost);
    }

    /// The device is lost: the engine ends all invocations.
    fn lose_device(&mut self) {
        self.totals.device_lost += 1;
        self.device_lost = true;
        self.send(Event::DeviceLost);
        let there: Vec<TaskId> = self.invocations.keys().copied().collect();
        there.into_iter().for_each(|task| self.end(task));
        self.finish_endings();
        self.check();
    }

    fn carry_out(&mut self, action: Action) {
        let asks = matches!(
            action,
            Action::Reserve { .. } | Action::Write { .. } | Action::Grant { .. } | Action::Begin { .. }
        );
        assert!(!(self.device_lost && asks), "the device is lost and is asked for {action:?}");
        self.digest.note(&action);
        match action {
            Action::Admitted { task, ready } => self.set_stage(task, if ready { Stage::Ready } else { Stage::Cold }),
            Action::Ready { task } => {
                self.totals.cold += 1;
                self.set_stage(task, Stage::Ready);
            }
            Action::Unready { task } => {
                self.totals.made_cold += 1;
                self.set_stage(task, Stage::Cold);
            }
            Action::Fail { task, .. } | Action::Refuse { task, .. } => self.set_stage(task, Stage::Ending),
            Action::Begin { task } if self.fails() => self.end(task),
            Action::Begin { task } => {
                assert_eq!(
                    self.invocations[&task].slots.len(),
                    self.invocations[&task].spec.stages.len(),
                    "it has memory for every stage"
                );
                self.set_stage(task, Stage::Running);
                self.begin_session(task);
                self.note(Event::Prepared { task });
            }
            Action::Grant { task, slots } => self.grant(task, slots),
            Action::Revoke { task } => {
                let invocation = self.invocations.get_mut(&task).expect("it has not left");
                let (slots, spec) = (std::mem::take(&mut invocation.slots), invocation.spec.clone());
                self.keep(slots, &spec);
            }
            Action::SaveOutputs { slot } => self.save_outputs(slot),
            Action::FreeSlot { slot, place } => {
                self.check_unneeded(slot);
                assert_eq!(self.kept.remove(&slot), Some(place), "a freed slot was kept");
                self.places.remove(&slot);
                if self.fails() {
                    self.totals.free_failed += 1;
                    self.withheld_max += place.bytes;
                    self.note(Event::ClearFailed { place });
                } else {
                    self.device.clean(place);
                }
            }
            Action::SessionExpired { session } => self.expire_session(session),
            Action::FreeState { session, place } => self.free_state(session, place),
            Action::Suspend { .. } => unreachable!("no session of this world may be suspended"),
            Action::Reserve { set, generation, places } => {
                let good = (0..places.len()).find(|_| self.fails()).unwrap_or(places.len());
                places[..good].iter().for_each(|place| self.device.reserve(*place));
                self.totals.reserve_failed += u64::from(good < places.len());
                let refused = (good < places.len()).then(|| (places[good..].to_vec(), Arc::from("no memory")));
                self.note(Event::Reserved { set, generation, refused });
            }
            Action::Release { place } => self.device.release(place),
            Action::MapConstants { function, .. } => {
                if self.rng.below(6) == 0 && self.functions.contains_key(&function) {
                    self.totals.unmapped += 1;
                    self.unmapped.insert(function);
                    self.note(Event::Unmapped { function });
                }
            }
            Action::Stage { set, .. } => drop(self.staging.insert(set, self.rng.below(2_000) as usize)),
            Action::CancelStage { set } | Action::Loaded { set, .. } => drop(self.staging.remove(&set)),
            Action::Write { set, to, from, .. } => {
                assert!(self.device.is_reserved(to, from.len() as u64), "bytes are written where nothing is reserved");
                if self.fails() {
                    self.totals.write_failed += 1;
                    self.note(Event::WriteFailed { set, why: Arc::from("refused") });
                } else {
                    self.note(Event::Written { bytes: from.len() as u64, took_ns: 10 });
                }
            }
            Action::Reclaimed { set, .. } => {
                self.totals.reclaimed += 1;
                for (task, invocation) in &self.invocations {
                    let uses = invocation.spec.stages.iter().any(|stage| self.functions[&stage.function].set == set);
                    assert!(
                        !uses || invocation.stage != Stage::Running,
                        "{task:?} runs and its constants are reclaimed"
                    );
                }
            }
            Action::UnmapConstants { .. }
            | Action::ColdStart { .. }
            | Action::Forgotten { .. }
            | Action::ChargesChanged => {}
        }
    }

    fn set_stage(&mut self, task: TaskId, stage: Stage) {
        let invocation = self.invocations.get_mut(&task).expect("actions name invocations that have not left");
        if invocation.stage != Stage::Ending {
            invocation.stage = stage;
        }
    }

    fn grant(&mut self, task: TaskId, slots: Vec<Granted>) {
        let clears = |granted: &Granted| granted.fresh.is_some_and(|fresh| fresh.clear);
        let is_missing = slots.iter().any(|granted| granted.fresh.is_none() && !self.kept.contains_key(&granted.slot));
        if is_missing || (slots.iter().any(clears) && self.fails()) {
            self.totals.clear_failed += 1;
            self.withheld_max +=
                slots.iter().filter_map(|granted| granted.fresh).map(|fresh| fresh.place.bytes).sum::<u64>();
            self.note(Event::GrantFailed { task, slots });
            return self.set_stage(task, Stage::Ending);
        }
        let tenant = self.invocations[&task].spec.tenant.clone();
        for granted in &slots {
            self.check_unneeded(granted.slot);
            match granted.fresh {
                None => {
                    self.totals.reused += 1;
                    self.kept.remove(&granted.slot);
                }
                Some(fresh) => {
                    if fresh.clear {
                        self.device.clean(fresh.place);
                    }
                    self.places.insert(granted.slot, fresh.place);
                }
            }
            self.device.check_clean(self.places[&granted.slot], tenant.as_str());
        }
        self.invocations.get_mut(&task).expect("it has not left").slots =
            slots.iter().map(|granted| granted.slot).collect();
    }

    // Invariants.

    fn check(&self) {
        let slots: u64 = self.places.values().copied().chain(self.session_places()).map(|place| place.bytes).sum();
        let constants = self.device.reserved_bytes();
        assert_eq!(slots + constants + self.memory.withheld_bytes(), self.memory.used_bytes(), "bytes do not add up");
        assert!(slots + constants <= self.memory.total_bytes(), "more is used than the device has");
        assert!(self.memory.withheld_bytes() <= self.withheld_max, "more is withheld than could not be cleared");
        self.device.check_disjoint(self.places.values().copied().chain(self.session_places()), self.two_parts);
        for (task, invocation) in self.invocations.iter().filter(|(_, invocation)| invocation.stage == Stage::Running) {
            if self.constants_lost.contains(task) {
                continue;
            }
            for stage in &invocation.spec.stages {
                let set = self.functions[&stage.function].set;
                assert_eq!(self.memory.state(set), SetState::Resident, "{task:?} runs without its constants");
                let (_, offsets) = self.memory.constant_offsets(stage.function);
                assert!(
                    offsets.iter().all(|at| self.device.is_reserved(*at, 1)),
                    "{task:?} runs with constants that are not where it expects them"
                );
            }
        }
        // Invocations that fitted before memory was withheld may no longer fit.
        if self.memory.withheld_bytes() == 0 {
            for (task, invocation) in &self.invocations {
                let steps = self.steps - invocation.since;
                assert!(
                    steps < WAIT_STEPS_MAX,
                    "{task:?} ({:?}, {:?}) has been there for {steps} steps",
                    invocation.stage,
                    invocation.spec
                );
            }
        }
        for tenant in self.memory.tenant_memory() {
            let fits = tenant.used.all <= tenant.quota.all && tenant.used.best_effort <= tenant.quota.best_effort;
            assert!(fits, "tenant {} uses {:?} of {:?}", tenant.tenant, tenant.used, tenant.quota);
        }
    }

    fn any_of<T: Copy>(&mut self, items: Vec<T>) -> Option<T> {
        let count = items.len() as u64;
        (count > 0).then(|| items[self.rng.below(count) as usize])
    }
}
