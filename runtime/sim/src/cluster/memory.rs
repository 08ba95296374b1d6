//! The memory of a simulated device: the daemon's memory decisions, and the copies of constants that
//! they cause.
//!
//! Constants are in host memory, and one copy after the other runs at the speed that the reload
//! time of its function gives. Nothing that memory decisions ask for fails.

use super::report::MemoryReport;
use super::setup::{ClusterDevice, ClusterFunction, MemorySetup};
use atoll_core::memory::{
    ALIGN, Action, ConstantSpec, Event, FunctionId, FunctionSpec, InvocationSpec, Memory, MemoryQuotas, MemorySpec,
    SetState, StageSpec, TenantBytes,
};
use atoll_core::residency::{ItemId, Residency, ResidencyPolicyEntry};
use atoll_core::{DeviceOffset, Nanos, TaskId, Tenant};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Most bytes of a device. A larger one has this many.
const MEMORY_BYTES_MAX: u64 = 1 << 48;

/// The address range of constants: so large that free memory for them is never fragmented, as with
/// the driver's mapped memory.
const CONSTANTS: (DeviceOffset, u64) = (DeviceOffset(1 << 50), 1 << 50);

/// A copy ends once it took this part of a load, so that a more urgent load soon gets its turn and a
/// load of many chunks is few events.
const COPIES_OF_LOAD: u64 = 16;

/// The memory of a device.
pub(super) struct DeviceMemory {
    memory: Memory,
    request_bytes: u64,
    /// The constants of each function that was needed here, by its index; `None` if they were
    /// refused.
    sets: BTreeMap<usize, Option<ItemId>>,
    constants: BTreeMap<ItemId, Constants>,
    copy: Option<Transfer>,
    /// Actions that concern the launch scheduler, in order.
    effects: VecDeque<Action>,
    /// Functions whose constants came or left since the last call of
    /// [`DeviceMemory::take_changes`], and whether they are held now.
    changes: Vec<(usize, bool)>,
    report: MemoryReport,
}

/// The constants of a function.
struct Constants {
    function: usize,
    bytes: u64,
    reload_ns: u64,
    /// Whether they were on the device, or being loaded, when that was last noted.
    is_held: bool,
}

/// A copy of constants that is under way: chunks one after the other.
struct Transfer {
    begin_ns: u64,
    end_ns: u64,
    /// The last chunk, until its end is reported.
    chunk: Option<Event>,
    /// Whether no chunk is added.
    is_full: bool,
}

/// The tenant of a function: each group is one.
fn tenant(function: &ClusterFunction) -> Tenant {
    format!("group{}", function.group.0).parse().expect("letters and digits are a name")
}

/// A digest that no other function has.
fn digest(index: usize) -> [u8; 32] {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&(index as u64).to_le_bytes());
    digest
}

impl DeviceMemory {
    /// Empty memory: that for constants, and that of as many requests as the device has slots.
    pub(super) fn new(spec: &ClusterDevice, setup: &MemorySetup, policy: &ResidencyPolicyEntry) -> DeviceMemory {
        let request_bytes = setup.request_bytes.clamp(1, MEMORY_BYTES_MAX);
        let requests = request_bytes.next_multiple_of(ALIGN).saturating_mul(spec.slots.into());
        let (constants_base, constants_bytes) = CONSTANTS;
        let memory = MemorySpec {
            memory_bytes: spec.memory_bytes.saturating_add(requests).min(MEMORY_BYTES_MAX),
            constants_base,
            constants_bytes,
            constants_granule: ALIGN,
            limit_bytes: None,
            overcommit: f64::INFINITY,
        };
        let quota = setup.quota_bytes.map(|bytes| TenantBytes { all: bytes, best_effort: bytes });
        let quotas = MemoryQuotas { default: quota.unwrap_or(TenantBytes::UNLIMITED), tenants: BTreeMap::new() };
        DeviceMemory {
            memory: Memory::new(&memory, Residency::new((policy.make)()), quotas),
            request_bytes,
            sets: BTreeMap::new(),
            constants: BTreeMap::new(),
            copy: None,
            effects: VecDeque::new(),
            changes: Vec::new(),
            report: MemoryReport::default(),
        }
    }

    /// The constants of a function, which is registered when it is first needed. `None` if they do
    /// not fit the device or the quota.
    fn set_of(&mut self, index: usize, function: &ClusterFunction) -> Option<ItemId> {
        if let Some(known) = self.sets.get(&index) {
            return *known;
        }
        let bytes = function.constant_bytes.max(1);
        let spec = FunctionSpec {
            function: FunctionId(index as u64),
            tenant: tenant(function),
            class: function.class,
            constants: vec![ConstantSpec { digest: digest(index), bytes, offset: 0 }],
        };
        let set = self.memory.register(spec).ok();
        self.sets.insert(index, set);
        let constants = Constants { function: index, bytes, reload_ns: function.reload_ns, is_held: false };
        self.constants.insert(set?, constants);
        set
    }

    /// Whether the constants of a function are on the device, or being loaded.
    pub(super) fn holds(&self, index: usize) -> bool {
        let set = self.sets.get(&index).copied().flatten();
        set.is_some_and(|set| self.memory.state(set) != SetState::Absent)
    }

    /// A request of a function arrives. Returns whether it can ever run here; if so, its admission
    /// is an effect.
    pub(super) fn arrive(&mut self, now: Nanos, task: TaskId, index: usize, function: &ClusterFunction) -> bool {
        let stage = StageSpec { function: FunctionId(index as u64), shape: Box::new([]), bytes: self.request_bytes };
        let is_known = self.set_of(index, function).is_some();
        let (class, tenant) = (function.class, tenant(function));
        let spec = InvocationSpec { task, class, tenant, stages: vec![stage], session: None };
        let fits = is_known && self.memory.check(&spec).is_ok();
        if fits {
            self.handle(now, Event::Arrived(spec));
        }
        fits
    }

    /// A request ended.
    pub(super) fn end(&mut self, now: Nanos, task: TaskId) {
        self.handle(now, Event::Ended { task });
        self.handle(now, Event::Resume);
    }

    /// Loads a function ahead of requests, if there is free memory.
    pub(super) fn preload(&mut self, now: Nanos, index: usize, function: &ClusterFunction) {
        if self.set_of(index, function).is_some() {
            self.handle(now, Event::Preload { function: FunctionId(index as u64) });
        }
    }

    /// Handles an event. Returns whether anything followed from it.
    pub(super) fn handle(&mut self, now: Nanos, event: Event) -> bool {
        self.memory.handle(now, event);
        let mut any = false;
        while let Some(action) = self.memory.next_action() {
            self.carry_out(now, action);
            any = true;
        }
        any
    }

    fn carry_out(&mut self, now: Nanos, action: Action) {
        match action {
            Action::Admitted { .. } | Action::Ready { .. } | Action::Unready { .. } => self.effects.push_back(action),
            Action::Begin { task } => {
                self.memory.handle(now, Event::Prepared { task });
                self.effects.push_back(action);
            }
            Action::Reserve { set, generation, .. } => {
                self.memory.handle(now, Event::Reserved { set, generation, refused: None });
                self.note_held(set);
            }
            Action::Stage { set, .. } => self.memory.handle(now, Event::Staged { set, end: usize::MAX }),
            Action::Write { set, from, .. } => self.write(now, set, from),
            Action::CancelStage { set } => self.note_held(set),
            Action::Loaded { set, .. } => {
                self.report.loads += 1;
                self.report.loaded_bytes += self.memory.set_bytes(set);
                self.note_held(set);
            }
            Action::Reclaimed { set, bytes } => {
                self.report.evictions += 1;
                self.report.evicted_bytes += bytes;
                self.note_held(set);
            }
            Action::Grant { .. }
            | Action::Revoke { .. }
            | Action::FreeSlot { .. }
            | Action::Release { .. }
            | Action::MapConstants { .. }
            | Action::UnmapConstants { .. }
            | Action::ColdStart { .. }
            | Action::Forgotten { .. }
            | Action::ChargesChanged => {}
            Action::Fail { .. }
            | Action::Refuse { .. }
            | Action::SaveOutputs { .. }
            | Action::SessionExpired { .. }
            | Action::FreeState { .. }
            | Action::Suspend { .. } => {
                unreachable!("a simulated device refuses nothing, and has no sessions and no retained outputs")
            }
        }
    }

    /// Notes whether the constants of a set are on the device, or being loaded.
    fn note_held(&mut self, set: ItemId) {
        let is_held = self.memory.state(set) != SetState::Absent;
        if let Some(constants) = self.constants.get_mut(&set).filter(|constants| constants.is_held != is_held) {
            constants.is_held = is_held;
            self.changes.push((constants.function, is_held));
        }
    }

    /// Begins a copy with a chunk, or adds the chunk to the copy that is under way.
    fn write(&mut self, now: Nanos, set: ItemId, from: Range<usize>) {
        let Constants { bytes, reload_ns, .. } = self.constants[&set];
        // So that all chunks together take exactly the reload time.
        let ns_until = |end: usize| (u128::from(reload_ns) * end as u128 / u128::from(bytes)) as u64;
        let took_ns = ns_until(from.end) - ns_until(from.start);
        self.report.copied_bytes += from.len() as u64;
        let new = || Transfer { begin_ns: now.0, end_ns: now.0, chunk: None, is_full: false };
        let copy = self.copy.get_or_insert_with(new);
        copy.end_ns += took_ns;
        copy.chunk = Some(Event::Written { bytes: from.len() as u64, took_ns });
        copy.is_full = from.end as u64 == bytes || copy.end_ns - copy.begin_ns >= reload_ns / COPIES_OF_LOAD;
    }

    /// Continues to load constants, if the copy engine is free. Returns whether it did anything.
    pub(super) fn copy_next(&mut self, now: Nanos) -> bool {
        if self.copy.as_ref().is_some_and(|copy| copy.is_full) || !self.memory.is_loading() {
            return false;
        }
        if let Some(written) = self.copy.as_mut().and_then(|copy| copy.chunk.take()) {
            self.memory.handle(now, written);
        }
        self.handle(now, Event::Advance)
    }

    /// Handles what is due by `now`.
    pub(super) fn advance(&mut self, now: Nanos) {
        if let Some(copy) = self.copy.take_if(|copy| copy.end_ns <= now.0)
            && let Some(written) = copy.chunk
        {
            self.memory.handle(now, written);
        }
        if self.memory.next_wakeup().is_some_and(|at| at <= now) {
            self.handle(now, Event::Tick);
        }
    }

    /// When [`DeviceMemory::advance`] is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        let copied = self.copy.as_ref().map(|copy| Nanos(copy.end_ns));
        copied.into_iter().chain(self.memory.next_wakeup()).min()
    }

    /// The next action that concerns the launch scheduler.
    pub(super) fn next_effect(&mut self) -> Option<Action> {
        self.effects.pop_front()
    }

    /// Functions whose constants came or left since the last call, in order, and whether they are
    /// held now.
    pub(super) fn take_changes(&mut self) -> Vec<(usize, bool)> {
        std::mem::take(&mut self.changes)
    }

    /// What happened until now.
    pub(super) fn report(&self) -> MemoryReport {
        let sets = self.constants.keys().filter(|set| self.memory.state(**set) == SetState::Resident);
        let held_bytes = sets.map(|set| self.memory.set_bytes(*set)).sum();
        MemoryReport { held_bytes, used_bytes_max: self.memory.used_bytes_max(), ..self.report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::Class;
    use atoll_core::memory::limits::LOAD_CHUNK_BYTES;
    use atoll_core::placement::{DeviceKind, GroupId, Suits};
    use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};

    const CHUNK: u64 = LOAD_CHUNK_BYTES as u64;

    fn memory(memory_bytes: u64, quota_bytes: Option<u64>) -> DeviceMemory {
        let spec = ClusterDevice { kind: DeviceKind(0), slots: 1, memory_bytes, speed: 1.0 };
        let policy = residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("a policy of the table");
        DeviceMemory::new(&spec, &MemorySetup { request_bytes: 100, quota_bytes }, policy)
    }

    fn function(constant_bytes: u64, reload_ns: u64) -> ClusterFunction {
        ClusterFunction {
            name: "f".into(),
            group: GroupId(0),
            class: Class::BestEffort,
            service_ns: 1,
            reload_ns,
            constant_bytes,
            suits: Suits::All,
        }
    }

    /// Copies until nothing is left to do. Returns the times at which a copy ended.
    fn copy_all(memory: &mut DeviceMemory) -> Vec<u64> {
        let (mut now, mut ends) = (Nanos(0), Vec::new());
        loop {
            while memory.copy_next(now) {}
            let Some(next) = memory.next() else { return ends };
            now = next;
            ends.push(now.0);
            memory.advance(now);
        }
    }

    #[test]
    fn a_load_takes_the_reload_time_in_at_most_sixteen_copies() {
        for (bytes, reload_ns, copies) in [(1, 7, 1), (CHUNK * 3, 1_000, 3), (CHUNK * 1_000 + 1, 1_000_003, 16)] {
            let mut memory = memory(1 << 40, None);
            memory.preload(Nanos(0), 0, &function(bytes, reload_ns));
            assert_eq!(memory.take_changes(), [(0, true)], "it is being loaded");
            let ends = copy_all(&mut memory);
            assert_eq!((ends.last(), ends.len()), (Some(&reload_ns), copies), "{bytes} bytes");
            let report = memory.report();
            assert_eq!((report.loads, report.copied_bytes), (1, bytes));
            assert_eq!(report.loaded_bytes, bytes.next_multiple_of(ALIGN));
            assert_eq!((report.held_bytes, memory.holds(0)), (report.loaded_bytes, true));
        }
    }

    #[test]
    fn a_request_gets_its_constants_and_its_memory_and_returns_them() {
        let mut memory = memory(1 << 20, None);
        let (task, now) = (TaskId(5), Nanos(0));
        assert!(memory.arrive(now, task, 0, &function(1 << 20, 400)));
        assert_eq!(memory.next_effect(), Some(Action::Admitted { task, ready: false }));
        assert_eq!(copy_all(&mut memory).last(), Some(&400));
        assert_eq!(memory.next_effect(), Some(Action::Ready { task }));
        memory.handle(Nanos(400), Event::Prepare { task });
        assert_eq!(memory.next_effect(), Some(Action::Begin { task }));
        assert_eq!(memory.report().used_bytes_max, (1 << 20) + ALIGN);
        memory.end(Nanos(500), task);
        memory.handle(Nanos(500), Event::Unloaded { function: FunctionId(0) });
        assert_eq!((memory.next_effect(), memory.memory.used_bytes()), (None, 0));
    }

    #[test]
    fn constants_that_were_just_used_stay_for_about_as_long_as_a_load_takes() {
        let mut memory = memory(2 * CHUNK + 1024, None);
        let function = function(CHUNK, 1_000_000);
        for index in 0..2 {
            assert!(memory.arrive(Nanos(0), TaskId(index), index as usize, &function));
        }
        assert_eq!(copy_all(&mut memory), [1_000_000, 2_000_000], "one after the other");
        for index in 0..2 {
            memory.handle(Nanos(2_000_000), Event::Prepare { task: TaskId(index) });
        }
        memory.end(Nanos(3_000_000), TaskId(0));
        assert_eq!(memory.take_changes(), [(0, true), (1, true)]);
        assert!(memory.arrive(Nanos(3_000_001), TaskId(2), 2, &function));
        let is_kept = memory.take_changes().is_empty();
        assert!(is_kept, "the first function may be called again, and another request runs");
        let at = memory.next().expect("the wait ends");
        assert!((3_050_000..4_000_000).contains(&at.0), "the time of a load is learned: {at:?}");
        memory.advance(at);
        assert_eq!(memory.take_changes(), [(0, false), (2, true)]);
    }

    #[test]
    fn constants_beyond_the_device_or_the_quota_of_their_group_are_refused() {
        let mut small = memory(1000, None);
        assert!(!small.arrive(Nanos(0), TaskId(0), 0, &function(2000, 1)), "the device is smaller");
        small.preload(Nanos(0), 0, &function(2000, 1));
        assert!(!small.holds(0) && small.next_effect().is_none());
        let mut limited = memory(1 << 20, Some(1024));
        assert!(limited.arrive(Nanos(0), TaskId(0), 0, &function(512, 1)));
        assert!(!limited.arrive(Nanos(0), TaskId(1), 1, &function(2000, 1)), "more than the quota");
    }
}
