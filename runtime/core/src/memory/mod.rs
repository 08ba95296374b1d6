//! Memory decisions as a pure function of (state, event, now): admission, residency, quotas, memory
//! of invocations (design D12).
//!
//! [`Memory`] is told events ([`Event`]) and asks for actions ([`Action`]); whoever drives it
//! carries them out in order and tells their outcomes. It knows no device, no clock and no bytes:
//! constants are digests and sizes, an invocation's memory is a slot with a size and a shape. The
//! engine and the model tests drive the same code.
//!
//! An invocation *pins* the constants it needs; what is pinned is neither evicted nor overwritten.
//! If all of them are on the device when it arrives, it is ready at once. Otherwise it is *cold*:
//! it keeps its place in the scheduler's queue without blocking others, while its constants are
//! written in pieces. Loading begins on arrival, not at its turn. A second thing it waits for is
//! memory of its own, which it gets at its turn, for all stages or none.
//!
//! # Invariants
//!
//! - A pinned set stays on the device, and a prepared invocation keeps its memory, until the
//!   invocation leaves or the device loses them.
//! - Bytes of slots and constants add up to what the ledger counts as used; ranges never overlap.
//! - A session that has begun keeps its memory until it is closed, expires, or its function goes.
//! - What is held for a tenant's invocations and sessions fits its quota ([`MemoryQuotas`]).
//! - Every cold invocation gets what it needs if those that run end: after
//!   [`limits::OVERTAKES_MAX`] overtakes the first one in turn is served before anybody behind it.
//! - An invocation that waits holds nothing that the first one in turn cannot take.

mod admission;
mod constants;
mod event;
mod ledger;
pub mod limits;
mod loads;
mod min_residency;
mod quota;
mod sessions;
mod slots;
mod tenant_room;

pub use constants::{SetState, divide};
pub use event::{
    Action, ConstantSpec, Event, Fresh, FunctionId, FunctionSpec, Granted, InvocationSpec, LoadRefusal, MemorySpec,
    Place, Refusal, SessionId, SessionSpec, SlotId, StageSpec, TenantUse, Turn,
};
pub use ledger::ALIGN;
pub use quota::{MemoryQuotas, TenantBytes};

use crate::ids::{Class, DeviceOffset, Nanos, TaskId};
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

/// All decisions about the memory of one device.
pub struct Memory {
    /// The time of the event that is being handled.
    now: Nanos,
    /// Not carried out yet, in order.
    actions: VecDeque<Action>,
    ledger: Ledger,
    overcommit: f64,
    constants: Constants,
    quotas: Quotas,
    residency: Residency,
    functions: BTreeMap<FunctionId, Function>,
    invocations: BTreeMap<TaskId, Invocation>,
    /// How many of them are prepared.
    prepared: usize,
    /// Invocations that wait for constants or memory.
    cold: BTreeSet<Turn>,
    /// Invocations that have pinned their constants and are not prepared.
    pinning: BTreeSet<Turn>,
    /// Those that have functions or invocations, or had memory.
    tenants: BTreeMap<Tenant, TenantState>,
    slots: Slots,
    sessions: Sessions,
    /// Sets that are being loaded, in the order in which that began.
    loading: Vec<Load>,
    /// The first cold invocation, if there is no memory for it.
    blocked: Option<Turn>,
    /// Invocations behind `blocked` that were prepared meanwhile.
    overtakes: u32,
    /// The invocation of each tenant that waits for the tenant's quota, and what it may take: the
    /// first, or behind one that leaves others their minimum residency the first that does not.
    short_of_quota: BTreeMap<Tenant, (Turn, Victims)>,
    /// When to look again at those that leave others their minimum residency.
    look_at: Option<Nanos>,
    /// What loading a byte takes, by those loaded lately.
    ns_per_byte: f64,
    /// Functions that were shown constants which their executor has not mapped yet.
    unmapped: BTreeSet<FunctionId>,
    lost: bool,
}

/// Five gigabytes a second, until something was loaded.
const NS_PER_BYTE_DEFAULT: f64 = 0.2;

struct Function {
    tenant: Tenant,
    class: Class,
    membership: Membership,
}

/// An invocation from its arrival until it leaves.
struct Invocation {
    class: Class,
    tenant: Tenant,
    stages: Vec<StageSpec>,
    /// The sets of constants it needs, each once.
    sets: Vec<ItemId>,
    /// Those of them that were not on the device when it arrived and have not come since.
    missing: Vec<ItemId>,
    pinned: bool,
    /// Until when it leaves others their minimum residency; `None` before it was the first in turn
    /// for memory, or for its tenant's quota.
    waits_until: Option<Nanos>,
    /// At its turn there was no memory for it, which it therefore gets before the next one.
    short: bool,
    prepared: bool,
    /// It has failed or was cancelled.
    ending: bool,
    /// Its memory, one slot a stage; empty before it gets some.
    slots: Vec<SlotId>,
    session: Option<SessionSpec>,
}

/// What is known of a tenant.
#[derive(Default)]
struct TenantState {
    invocations: usize,
    cold: usize,
    pinning: BTreeSet<Turn>,
    /// How many invocations pin a set, by class.
    pins: BTreeMap<(ItemId, Class), u32>,
    /// How many functions have a set.
    sets: BTreeMap<ItemId, u32>,
    /// Those of these sets that another tenant has as well.
    shared: BTreeSet<ItemId>,
    /// Memory of its invocations and sessions.
    held: TenantBytes,
    /// Memory kept from past ones.
    idle_bytes: u64,
}

impl TenantState {
    fn is_empty(&self) -> bool {
        self.invocations == 0 && self.sets.is_empty() && self.held == TenantBytes::default() && self.idle_bytes == 0
    }
}

impl Memory {
    /// Memory in which nothing is.
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
            cold: BTreeSet::new(),
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
        }
    }

    /// Takes an event. The actions that follow come from [`Memory::next_action`].
    pub fn handle(&mut self, now: Nanos, event: Event) {
        self.now = now;
        match event {
            Event::Arrived(spec) => self.arrive(spec),
            Event::Prepare { task } => self.prepare(task),
            Event::Prepared { task } => self.note_prepared(task),
            Event::Ending { task } => self.invocation_mut(task).ending = true,
            Event::Left { task } => self.leave(task),
            Event::Resume => self.serve_cold(),
            Event::SessionClosed { session } => self.close_session(session),
            Event::Load { function } => self.load(function),
            Event::Unloaded { function } => self.unload(function),
            Event::Reserved { set, generation, refused } => self.reserved(set, generation, refused),
            Event::Staged { set, end } => self.note_staged(set, end),
            Event::Advance => self.advance(),
            Event::Written { bytes, took_ns } => self.note_written(bytes, took_ns),
            Event::WriteFailed { set, why } => self.fail_loading(set, &why),
            Event::Unmapped { function } => self.note_unmapped(function),
            Event::Mapped { functions } => self.note_mapped(&functions),
            Event::GrantFailed { task, slots } => self.ungrant(task, &slots),
            Event::NotGivenBack { place } => self.withhold(place),
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

    /// The next thing to do. Its outcome is told before the next call.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due, if nothing happens before.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        event::earlier(self.look_at, self.sessions.next_expiry())
    }

    /// Makes a function known, whose constants need not be on the device.
    ///
    /// # Errors
    ///
    /// Its constants exceed the device's memory or its tenant's quota, alone or with those of other
    /// functions beyond the overcommit limit. The function is not known then.
    pub fn join(&mut self, spec: FunctionSpec) -> Result<ItemId, LoadRefusal> {
        let FunctionSpec { function, tenant, class, constants } = spec;
        let before = self.constants.bytes();
        let membership = self.constants.join(function, &constants, class);
        let set = membership.set;
        let refusal = self.check_commitment(set, before).and_then(|()| self.check_quota_commitment(&tenant, set));
        if let Err(refusal) = refusal {
            self.leave_set(function, set);
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

    /// Loads the constants of a function that was just made known, if there is room that nobody
    /// has. Otherwise the first invocation brings them.
    fn load(&mut self, function: FunctionId) {
        let Function { tenant, class, membership } = &self.functions[&function];
        let (tenant, class, set) = (tenant.clone(), *class, membership.set);
        if !self.lost && self.constants.state(set) == SetState::Away {
            if self.charge_load(&tenant, class, set) {
                self.hold_if_free(set);
            }
        } else if self.constants.state(set) != SetState::Away {
            self.actions.push_back(Action::Show { function, tenant });
        }
    }

    /// A function is gone: its constants are hidden from its tenant and, if it was the last of its
    /// set, freed.
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
            [Class::RealTime, Class::BestEffort]
                .into_iter()
                .for_each(|class| self.quotas.discharge(&tenant, class, membership.set));
        }
        self.leave_set(function, membership.set);
        self.forget_tenant(&tenant);
        self.serve_cold();
    }

    /// Hides constants from a tenant that no other function of it has.
    fn hide(&mut self, tenant: &Tenant, membership: &Membership) {
        let others = self.functions.values().filter(|other| other.tenant == *tenant);
        let kept: BTreeSet<DeviceOffset> = others.flat_map(|other| self.constants.places(&other.membership)).collect();
        let places: Vec<_> =
            self.constants.places(membership).into_iter().filter(|place| !kept.contains(place)).collect();
        self.actions.push_back(Action::Hide { tenant: tenant.clone(), places });
    }

    fn leave_set(&mut self, function: FunctionId, set: ItemId) {
        let left = self.constants.leave(function, set);
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
        // It may be gone already.
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

/// What is where.
impl Memory {
    /// Where the constants of a set are.
    pub fn state(&self, set: ItemId) -> SetState {
        self.constants.state(set)
    }

    /// Bytes of a set on the device.
    pub fn set_bytes(&self, set: ItemId) -> u64 {
        self.constants.set_bytes(set)
    }

    /// How much of a set is on the device, whether or not anybody holds it.
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

    /// The places of those constants of a function that have one.
    pub fn places(&self, function: FunctionId) -> Vec<DeviceOffset> {
        self.functions.get(&function).map_or_else(Vec::new, |function| self.constants.places(&function.membership))
    }

    /// Where the constants of a function are whose set is resident, and the generation of the set:
    /// they stay there while that is the same.
    pub fn constant_offsets(&self, function: FunctionId) -> (u64, Box<[DeviceOffset]>) {
        let membership = &self.functions[&function].membership;
        (self.constants.generation(membership.set), self.constants.offsets(membership))
    }

    /// The generation of a function's set.
    pub fn generation(&self, function: FunctionId) -> u64 {
        self.constants.generation(self.functions[&function].membership.set)
    }

    /// How the bytes of constants are divided among the sets that hold them.
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

    /// Bytes, counted as in use, that could not be cleared and are nobody's for good.
    pub fn withheld_bytes(&self) -> u64 {
        self.ledger.withheld()
    }

    /// The most bytes that were ever in use.
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

    /// How many invocations are cold.
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
