//! Memory decisions, as a pure function of (state, event, time): admission, residency, quotas, and
//! the memory of invocations and sessions.
//!
//! [`Memory`] handles events ([`Event`]) and returns actions ([`Action`]). The caller carries them
//! out in order and reports their outcomes. It accesses no device, clock or data: constants are
//! digests and sizes, an invocation's memory is a slot with a size and a shape. The engine and the
//! model tests drive the same code.
//!
//! An invocation *pins* the constant sets it needs; a pinned set is neither reclaimed nor
//! overwritten. If all its sets are on the device when it arrives, it is ready at once. Otherwise
//! it is *cold*: it keeps its place in the scheduler's queue without blocking others, while its
//! constants are written in chunks. Loading begins on arrival, not at its turn. It also needs
//! memory of its own, which it gets at its turn, for all stages or none.
//!
//! # Invariants
//!
//! - A pinned set stays on the device, and a prepared invocation keeps its memory, until the
//!   invocation ends or the device loses them.
//! - Bytes of slots, sessions and constants add up to the used bytes of the ledger; ranges never
//!   overlap.
//! - A session that has begun keeps its memory until it is closed, expires, is suspended to host
//!   memory, or its function is unloaded. No prepared invocation has a session that is suspended.
//! - The memory held for a tenant's invocations and sessions fits its quota ([`MemoryQuotas`]).
//! - Every cold invocation gets the memory it needs once the running ones have ended: after
//!   [`limits::OVERTAKES_MAX`] overtakes the first one in turn is served before all later ones.
//! - A waiting invocation holds nothing that the first one in turn cannot take.

mod admission;
mod constants;
mod event;
mod host;
mod ledger;
pub mod limits;
mod loads;
mod min_residency;
mod quota;
mod quota_admission;
mod refusal;
mod session_state;
mod sessions;
mod slots;
mod spec;
mod suspension;
#[cfg(test)]
mod tests;

pub use constants::{SetState, divide};
pub use event::{Action, Event};
pub use host::{HostLimits, HostMemory, HostRefusal};
pub use ledger::ALIGN;
pub use quota::{MemoryQuotas, TenantBytes};
pub use refusal::{LoadRefusal, Refusal};
pub use session_state::SessionState;
pub use spec::{
    ConstantSpec, Fresh, FunctionId, FunctionSpec, Granted, InvocationSpec, MemorySpec, Place, SessionId, SessionSpec,
    SlotId, StageSpec, TenantUse, Turn,
};

use crate::ids::{CLASSES, Class, DeviceOffset, Nanos, TaskId};
use crate::residency::{ItemId, Residency};
use crate::tenant::Tenant;
use constants::{Constants, Membership};
use ledger::Ledger;
use loads::Load;
use min_residency::Victims;
use quota::Quotas;
use sessions::Sessions;
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The memory decisions of one device.
pub struct Memory {
    /// The time of the event that is being handled.
    now: Nanos,
    /// Actions not yet taken by the caller, in order.
    actions: VecDeque<Action>,
    ledger: Ledger,
    overcommit: f64,
    constants: Constants,
    quotas: Quotas,
    residency: Residency,
    functions: BTreeMap<FunctionId, Function>,
    invocations: BTreeMap<TaskId, Invocation>,
    /// How many of the invocations are prepared.
    prepared: usize,
    /// Invocations that wait for constants or memory, with their tenants.
    cold: BTreeMap<Turn, Tenant>,
    /// Invocations that have pinned their constants and are not prepared.
    pinning: BTreeSet<Turn>,
    /// Tenants that have functions or invocations, or hold memory.
    tenants: BTreeMap<Tenant, TenantState>,
    slots: Slots,
    sessions: Sessions,
    /// Sets that are being loaded, in the order in which loading began.
    loading: Vec<Load>,
    /// The first cold invocation, if there is no memory for it.
    blocked: Option<Turn>,
    /// Invocations behind `blocked` that were prepared meanwhile.
    overtakes: u32,
    /// For each tenant, the invocation that waits for the tenant's quota, and what it may reclaim:
    /// the first one, or, if that respects minimum residency, the first behind it that does not.
    short_of_quota: BTreeMap<Tenant, (Turn, Victims)>,
    /// When to retry invocations that respect minimum residency.
    look_at: Option<Nanos>,
    /// Estimated time to load a byte, from recent loads.
    ns_per_byte: f64,
    /// Functions whose constants their executor has not mapped yet.
    unmapped: BTreeSet<FunctionId>,
    lost: bool,
    /// How long a session is idle before it is suspended for others; `None` for never.
    suspend_idle_ns: Option<u64>,
}

/// Initial estimate of the time to load a byte: five gigabytes a second.
const NS_PER_BYTE_DEFAULT: f64 = 0.2;

struct Function {
    tenant: Tenant,
    class: Class,
    membership: Membership,
}

/// An invocation from its arrival to its end.
struct Invocation {
    class: Class,
    tenant: Tenant,
    stages: Vec<StageSpec>,
    /// The constant sets it needs, each once.
    sets: Vec<ItemId>,
    /// Its sets that were not on the device when it arrived and have not been loaded since.
    missing: Vec<ItemId>,
    pinned: bool,
    /// Until when it respects the minimum residency of other constants; `None` before it was first
    /// in turn for memory, or for its tenant's quota.
    waits_until: Option<Nanos>,
    /// There was no memory for it at its turn. It becomes ready again once it has memory.
    lacks_memory: bool,
    prepared: bool,
    /// It has failed or was cancelled.
    ending: bool,
    /// Its memory, one slot per stage; empty until granted.
    slots: Vec<SlotId>,
    session: Option<SessionSpec>,
    arrived: Nanos,
}

/// The state of a tenant.
#[derive(Default)]
struct TenantState {
    invocations: usize,
    cold: usize,
    pinning: BTreeSet<Turn>,
    /// How many invocations pin a set, by set and class.
    pins: BTreeMap<(ItemId, Class), u32>,
    /// Bytes of the sets in `pins`; constants that several of them have count for each.
    pinned: TenantBytes,
    /// How many of its functions have a set.
    sets: BTreeMap<ItemId, u32>,
    /// Its sets that another tenant has, too.
    shared: BTreeSet<ItemId>,
    /// Memory of its invocations and sessions.
    held: TenantBytes,
    /// Memory kept from past invocations.
    idle_bytes: u64,
}

impl TenantState {
    fn is_empty(&self) -> bool {
        self.invocations == 0 && self.sets.is_empty() && self.held == TenantBytes::default() && self.idle_bytes == 0
    }
}

impl Memory {
    /// Empty memory of a device.
    pub fn new(spec: &MemorySpec, residency: Residency, quotas: MemoryQuotas) -> Memory {
        let ledger = Ledger::new(spec);
        Memory {
            now: Nanos(0),
            actions: VecDeque::new(),
            constants: Constants::new(ledger.constant_granule()),
            ledger,
            overcommit: spec.overcommit,
            quotas: Quotas::new(quotas),
            residency,
            functions: BTreeMap::new(),
            invocations: BTreeMap::new(),
            prepared: 0,
            cold: BTreeMap::new(),
            pinning: BTreeSet::new(),
            tenants: BTreeMap::new(),
            slots: Slots::default(),
            sessions: Sessions::default(),
            loading: Vec::new(),
            blocked: None,
            overtakes: 0,
            short_of_quota: BTreeMap::new(),
            look_at: None,
            ns_per_byte: NS_PER_BYTE_DEFAULT,
            unmapped: BTreeSet::new(),
            lost: false,
            suspend_idle_ns: None,
        }
    }

    /// Handles an event. [`Memory::next_action`] returns the resulting actions.
    pub fn handle(&mut self, now: Nanos, event: Event) {
        self.now = now;
        match event {
            Event::Arrived(spec) => self.arrive(spec),
            Event::Prepare { task } => self.prepare(task),
            Event::Prepared { task } => self.note_prepared(task),
            Event::Ending { task } => self.invocation_mut(task).ending = true,
            Event::RetainOutputs { slot } => self.retain_outputs(slot),
            Event::Ended { task } => self.invocation_ended(task),
            Event::ReleaseOutputs { slot } => self.release_outputs(slot),
            Event::Resume => self.serve_cold(),
            Event::SessionClosed { session } => self.close_session(session),
            Event::SuspendSession { session } => self.suspend_session(session),
            Event::Suspended { session } => self.note_suspended(session),
            Event::StaysOnDevice { session, is_held } => self.note_stays(session, is_held),
            Event::Released { session } => self.note_released(session),
            Event::Load { function } => self.load(function),
            Event::Preload { function } => self.preload(function),
            Event::Reclaim { function } => self.reclaim_function(function),
            Event::Unloaded { function } => self.unload(function),
            Event::Reserved { set, generation, refused } => self.reserved(set, generation, refused),
            Event::Staged { set, end } => self.note_staged(set, end),
            Event::Advance => self.advance(),
            Event::Written { bytes, took_ns } => self.note_written(bytes, took_ns),
            Event::WriteFailed { set, why } => self.fail_loading(set, &why),
            Event::Unmapped { function } => self.note_unmapped(function),
            Event::Mapped { functions } => self.note_mapped(&functions),
            Event::GrantFailed { task, slots } => self.ungrant(task, &slots),
            Event::ClearFailed { place } => self.withhold(place),
            Event::ConstantsLost => self.lose_constants(),
            Event::DeviceLost => self.lost = true,
            Event::Tick => {
                if self.expire_sessions() {
                    self.serve_cold();
                }
                self.tick();
            }
        }
    }

    /// The next action. Its outcome has to be reported before the next call.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due if no other event comes first.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        spec::earlier(self.look_at, self.sessions.next_change(self.now))
    }

    /// Registers a function; its constants need not be on the device.
    ///
    /// # Errors
    ///
    /// If its constants exceed the device's memory or its tenant's quota, alone or together with
    /// those of other functions beyond the overcommit limit. The function is then not registered.
    pub fn register(&mut self, spec: FunctionSpec) -> Result<ItemId, LoadRefusal> {
        let FunctionSpec { function, tenant, class, constants } = spec;
        let before = self.constants.bytes();
        let membership = self.constants.add_function(function, &constants, class);
        let set = membership.set;
        let refusal = self.check_commitment(set, before).and_then(|()| self.check_quota_commitment(&tenant, set));
        if let Err(refusal) = refusal {
            self.remove_from_set(function, set);
            return Err(refusal);
        }
        *self.tenant_mut(&tenant).sets.entry(set).or_default() += 1;
        self.note_sharing(set);
        self.functions.insert(function, Function { tenant, class, membership });
        Ok(set)
    }

    /// Returns an error if constants exceed device memory, or the overcommit limit together with
    /// those of other functions.
    fn check_commitment(&self, set: ItemId, before: u64) -> Result<(), LoadRefusal> {
        let (total, free) = (self.ledger.total(), self.ledger.free_bytes());
        let wanted = self.constants.set_bytes(set);
        if wanted > total {
            return Err(LoadRefusal::OutOfMemory { wanted, free, total });
        }
        let (all, limit) = (self.constants.bytes(), (total as f64 * self.overcommit) as u64);
        if all > limit && all > before {
            return Err(LoadRefusal::OverCommitted { wanted: all - before, all, limit, total });
        }
        Ok(())
    }

    /// Loads the constants of a function that was just registered, if there is free memory.
    /// Otherwise its first invocation loads them.
    fn load(&mut self, function: FunctionId) {
        let Function { tenant, class, membership } = &self.functions[&function];
        let (tenant, class, set) = (tenant.clone(), *class, membership.set);
        if !self.lost && self.constants.state(set) == SetState::Absent {
            if self.charge_load(&tenant, class, set) {
                self.start_loading_if_free(set);
            }
        } else if self.constants.state(set) != SetState::Absent {
            self.actions.push_back(Action::MapConstants { function, tenant });
        }
    }

    /// Unloads a function: unmaps its constants from its tenant and, with the last function of the
    /// set, frees them.
    fn unload(&mut self, function: FunctionId) {
        let Some(Function { tenant, membership, .. }) = self.functions.remove(&function) else { return };
        self.unmapped.remove(&function);
        self.close_sessions_of(function);
        for slot in self.slots.idle_of(function) {
            self.give_back(slot);
        }
        self.hide(&tenant, &membership);
        let sets = &mut self.tenant_mut(&tenant).sets;
        let count = sets.get_mut(&membership.set).expect("the tenant has the set by this function");
        *count -= 1;
        if *count == 0 {
            sets.remove(&membership.set);
            CLASSES.into_iter().for_each(|class| self.quotas.discharge(&tenant, class, membership.set));
        }
        self.remove_from_set(function, membership.set);
        self.forget_tenant(&tenant);
        self.serve_cold();
    }

    /// Unmaps the constants of a function from its tenant, except those that other functions of the
    /// tenant use.
    fn hide(&mut self, tenant: &Tenant, membership: &Membership) {
        let others = self.functions.values().filter(|other| other.tenant == *tenant);
        let kept: BTreeSet<DeviceOffset> = others.flat_map(|other| self.constants.places(&other.membership)).collect();
        let places: Vec<_> =
            self.constants.places(membership).into_iter().filter(|place| !kept.contains(place)).collect();
        self.actions.push_back(Action::UnmapConstants { tenant: tenant.clone(), places });
    }

    fn remove_from_set(&mut self, function: FunctionId, set: ItemId) {
        let left = self.constants.remove_function(function, set);
        if left.is_none() {
            self.note_sharing(set);
        }
        if let Some(freed) = left {
            self.free_constants(freed);
            self.quotas.forget(set);
            self.drop_load(set);
            self.residency.forget(set);
            self.actions.push_back(Action::Forgotten { set });
        }
    }

    fn note_unmapped(&mut self, function: FunctionId) {
        // The function may have been unloaded.
        if self.functions.contains_key(&function) {
            self.unmapped.insert(function);
        }
    }

    fn note_mapped(&mut self, functions: &[FunctionId]) {
        functions.iter().for_each(|function| {
            self.unmapped.remove(function);
        });
        self.serve_cold();
    }

    /// Whether an invocation has to wait until executors have mapped its functions' constants.
    fn is_unmapped(&self, task: TaskId) -> bool {
        !self.unmapped.is_empty()
            && self.invocations[&task].stages.iter().any(|stage| self.unmapped.contains(&stage.function))
    }

    fn invocation_mut(&mut self, task: TaskId) -> &mut Invocation {
        self.invocations.get_mut(&task).expect("the invocation has arrived and has not left")
    }

    fn turn(&self, task: TaskId) -> Turn {
        (self.invocations[&task].class, task)
    }

    fn tenant_mut(&mut self, tenant: &Tenant) -> &mut TenantState {
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(tenant.clone(), TenantState::default());
        }
        self.tenants.get_mut(tenant).expect("inserted above")
    }

    fn tenant_of(&mut self, task: TaskId) -> &mut TenantState {
        let tenant = &self.invocations[&task].tenant;
        self.tenants.get_mut(tenant).expect("a tenant is known as long as it has invocations")
    }

    fn forget_tenant(&mut self, tenant: &Tenant) {
        if self.tenants.get(tenant).is_some_and(TenantState::is_empty) {
            self.tenants.remove(tenant);
        }
    }
}

/// Queries.
impl Memory {
    /// The state of a set.
    pub fn state(&self, set: ItemId) -> SetState {
        self.constants.state(set)
    }

    /// Bytes that a set takes on the device.
    pub fn set_bytes(&self, set: ItemId) -> u64 {
        self.constants.set_bytes(set)
    }

    /// Bytes of a set's constants that are on the device, held or cached.
    pub fn set_device_bytes(&self, set: ItemId) -> u64 {
        self.constants.set_device_bytes(set)
    }

    /// Whether every constant of a set has its place on the device.
    pub fn is_placed(&self, set: ItemId) -> bool {
        self.constants.unplaced(set).is_empty()
    }

    /// The functions of a set.
    pub fn functions_of(&self, set: ItemId) -> impl Iterator<Item = FunctionId> {
        self.constants.functions(set).iter().copied()
    }

    /// The offsets of those constants of a function that have a place.
    pub fn places(&self, function: FunctionId) -> Vec<DeviceOffset> {
        self.functions.get(&function).map_or_else(Vec::new, |function| self.constants.places(&function.membership))
    }

    /// The offsets of the constants of a function whose set is resident, and the generation of the
    /// set. The offsets are valid while the generation is the same.
    pub fn constant_offsets(&self, function: FunctionId) -> (u64, Box<[DeviceOffset]>) {
        let membership = &self.functions[&function].membership;
        (self.constants.generation(membership.set), self.constants.offsets(membership))
    }

    /// The generation of a function's set.
    pub fn generation(&self, function: FunctionId) -> u64 {
        self.constants.generation(self.functions[&function].membership.set)
    }

    /// Bytes of device memory attributed to each set; shared constants are divided among their
    /// sets.
    pub fn shares(&self) -> BTreeMap<ItemId, u64> {
        self.constants.shares()
    }

    /// Bytes of memory that may be used.
    pub fn total_bytes(&self) -> u64 {
        self.ledger.total()
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.ledger.used()
    }

    /// Bytes that could not be cleared and are never used again. They count as used.
    pub fn withheld_bytes(&self) -> u64 {
        self.ledger.withheld()
    }

    /// Peak use in bytes.
    pub fn used_bytes_max(&self) -> u64 {
        self.ledger.used_max()
    }

    /// Bytes of constants on the device.
    pub fn constant_bytes(&self) -> u64 {
        self.constants.device_bytes()
    }

    /// Bytes that the constants of all functions would take.
    pub fn constant_bytes_all(&self) -> u64 {
        self.constants.bytes()
    }

    /// Number of cold invocations.
    pub fn cold_count(&self) -> usize {
        self.cold.len()
    }

    /// Functions whose constants are not mapped yet.
    pub fn unmapped(&self) -> impl Iterator<Item = (FunctionId, &Tenant)> {
        self.unmapped.iter().filter_map(|id| Some((*id, &self.functions.get(id)?.tenant)))
    }

    /// Whether sets are being loaded.
    pub fn is_loading(&self) -> bool {
        !self.loading.is_empty()
    }
}
