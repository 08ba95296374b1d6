//! Quotas of tenants: nothing is held for an invocation that would not fit its tenant's
//! ([`super::MemoryQuotas`]).
//!
//! They are asked before the device is, and by the same rules: an invocation that could never fit
//! is refused at once; one that does not fit now waits, in the order of turns, and gets all that it
//! needs or nothing. Room is made at the cost of what nobody of the tenant uses: memory kept from
//! past invocations, then constants, which leave the device unless others have them as well. An
//! invocation that waits for its own tenant's quota blocks no other tenant: it is passed over until
//! there is room, and only what comes behind it of the same tenant waits with it; while it leaves
//! others their minimum residency (`min_residency.rs`), only those that lack constants as well.

use super::event::{FunctionId, InvocationSpec, LoadRefusal, Refusal, SessionSpec, StageSpec, TenantUse, Turn};
use super::ledger::{ALIGN, granules};
use super::min_residency::Victims;
use super::quota::{CLASSES, TenantBytes};
use super::{Invocation, Memory};
use crate::ids::{Class, Nanos, TaskId};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use std::collections::{BTreeMap, BTreeSet};

/// What an invocation adds to its tenant's use.
struct Demand {
    tenant: Tenant,
    class: Class,
    quota: TenantBytes,
    sets: Vec<ItemId>,
    /// Memory that it is to get, which may be kept from past invocations.
    bytes: u64,
    /// What of that there is none kept for.
    fresh_bytes: u64,
}

impl Memory {
    /// Refuses what would not fit its tenant's quota if nothing but the tenant's sessions were
    /// there.
    pub(super) fn check_quota(&self, spec: &InvocationSpec, sets: &[ItemId]) -> Result<(), Refusal> {
        self.quota_misfit(&spec.tenant, spec.class, &spec.stages, sets, spec.session.as_ref()).map_or(Ok(()), Err)
    }

    /// Why an invocation would not fit its tenant's quota if it had what the tenant's sessions
    /// leave of it for itself; `None` if it would.
    pub(super) fn quota_misfit(
        &self,
        tenant: &Tenant,
        class: Class,
        stages: &[StageSpec],
        sets: &[ItemId],
        session: Option<&SessionSpec>,
    ) -> Option<Refusal> {
        let quota = self.quotas.of(tenant)?;
        let constants = self.constants.bytes_of(sets);
        let wanted = constants.saturating_add(chain_bytes(stages)).saturating_add(self.state_bytes(session));
        let mut need = self.sessions.bytes_of(tenant);
        need += TenantBytes::of(class, wanted);
        if need.fits(quota) {
            return None;
        }
        let (free, quota) = (quota.left(self.used_by(tenant), class), quota.for_class(class));
        Some(Refusal::OverQuota { wanted, constants, free, quota })
    }

    /// Refuses a function whose constants a tenant's quota has no room for: ever, or with those of
    /// its other functions as far as over-commit is allowed.
    pub(super) fn check_quota_commitment(&self, tenant: &Tenant, set: ItemId) -> Result<(), LoadRefusal> {
        let Some(TenantBytes { all: quota, .. }) = self.quotas.of(tenant) else { return Ok(()) };
        let mut sets: Vec<ItemId> =
            self.tenants.get(tenant).into_iter().flat_map(|state| state.sets.keys().copied()).collect();
        let (before, wanted) = (self.constants.bytes_of(&sets), self.constants.bytes_of(&[set]));
        sets.push(set);
        let all = self.constants.bytes_of(&sets);
        let limit = (quota as f64 * self.overcommit) as u64;
        if wanted <= quota && (all <= limit || all == before) {
            return Ok(());
        }
        let free = quota.saturating_sub(self.used_by(tenant).all);
        Err(LoadRefusal::OverQuota { wanted, free, quota, all, limit })
    }

    /// Whether an invocation fits its tenant's quota as things are, without memory of its own.
    pub(super) fn fits_quota(&self, task: TaskId) -> bool {
        self.demand(task, false).is_none_or(|demand| self.use_with(&demand).fits(demand.quota))
    }

    /// Makes room in its tenant's quota for an invocation, at the cost of what nobody of the tenant
    /// uses and of those behind it; if it leaves others their minimum residency, of nothing but
    /// the rest. Returns whether there is.
    pub(super) fn make_quota_room(&mut self, turn: Turn, with_memory: bool, victims: Victims) -> bool {
        let Some(demand) = self.demand(turn.1, with_memory) else { return true };
        if self.use_with(&demand).fits(demand.quota) {
            return true;
        }
        if victims == Victims::Cool && !self.fits_quota_beside_warm(&demand, turn) {
            return false;
        }
        while !self.need_fits(&demand, None) {
            if !self.take_from_behind(turn, Some(&demand.tenant)) {
                return false;
            }
        }
        loop {
            // What is kept and can be used again changes on the way.
            let Some(demand) = self.demand(turn.1, with_memory) else { return true };
            let used = self.use_with(&demand);
            if used.fits(demand.quota) {
                return true;
            }
            if self.reclaim_of(&demand, used.all > demand.quota.all, victims).is_none() {
                return false;
            }
        }
    }

    /// Charges an invocation's constants, which are held, to its tenant.
    pub(super) fn charge(&mut self, task: TaskId) {
        let Invocation { tenant, class, sets, .. } = &self.invocations[&task];
        if self.quotas.of(tenant).is_some() {
            sets.iter().for_each(|&set| self.quotas.charge(tenant, *class, set, &self.constants));
            let tenant = tenant.clone();
            self.note_use(&tenant);
        }
    }

    /// Charges constants that are to be loaded with a function, if there is room for them as things
    /// are.
    pub(super) fn charge_load(&mut self, tenant: &Tenant, class: Class, set: ItemId) -> bool {
        let Some(quota) = self.quotas.of(tenant) else { return true };
        let mut used = self.used_by(tenant);
        used += self.quotas.added_by(tenant, class, &[set], &self.constants);
        let fits = used.fits(quota);
        if fits {
            self.quotas.charge(tenant, class, set, &self.constants);
            self.note_use(tenant);
        }
        fits
    }

    /// Whether an earlier invocation of the same tenant is blocked on its quota and must not be
    /// overtaken.
    pub(super) fn waits_for_quota(&self, turn: Turn) -> bool {
        let first = self.short_of_quota.get(&self.invocations[&turn.1].tenant);
        first.is_some_and(|&(first, victims)| first < turn && victims == Victims::All)
    }

    pub(super) fn note_use(&mut self, tenant: &Tenant) {
        if self.quotas.of(tenant).is_some() {
            let used = self.used_by(tenant);
            self.quotas.note(tenant, used);
        }
    }

    /// What tenants with quotas use.
    pub fn tenant_memory(&self) -> Vec<TenantUse> {
        let tenants = self.quotas.tenants().filter_map(|tenant| {
            let (quota, used, most) = (self.quotas.of(tenant)?, self.used_by(tenant), self.quotas.most(tenant));
            Some(TenantUse { tenant: tenant.clone(), quota, used, most })
        });
        tenants.collect()
    }

    fn demand(&self, task: TaskId, with_memory: bool) -> Option<Demand> {
        let invocation = &self.invocations[&task];
        let quota = self.quotas.of(&invocation.tenant)?;
        let with_memory = with_memory && invocation.slots.is_empty();
        let state_bytes = self.state_bytes(invocation.session.as_ref());
        let (bytes, fresh_bytes) = if with_memory {
            (chain_bytes(&invocation.stages) + state_bytes, self.fresh_bytes(invocation) + state_bytes)
        } else {
            (0, 0)
        };
        let Invocation { tenant, class, sets, .. } = invocation;
        Some(Demand { tenant: tenant.clone(), class: *class, quota, sets: sets.clone(), bytes, fresh_bytes })
    }

    /// Memory of an invocation for which nothing is kept from past ones.
    fn fresh_bytes(&self, invocation: &Invocation) -> u64 {
        let mut kept: BTreeMap<(FunctionId, &[i64]), usize> = BTreeMap::new();
        let mut fresh = 0;
        for stage in &invocation.stages {
            let key = (stage.function, &*stage.shape);
            let left = kept.entry(key).or_insert_with(|| self.slots.idle_count(stage.function, &stage.shape));
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => fresh += stage_bytes(stage),
            }
        }
        fresh
    }

    /// What a tenant uses.
    fn used_by(&self, tenant: &Tenant) -> TenantBytes {
        let (held, idle_bytes) = self.held_by(tenant);
        let mut used = self.quotas.charged(tenant);
        used += TenantBytes { all: held.all + idle_bytes, best_effort: held.best_effort };
        used
    }

    /// Memory of a tenant's invocations, and what is kept from past ones.
    fn held_by(&self, tenant: &Tenant) -> (TenantBytes, u64) {
        self.tenants.get(tenant).map_or_else(Default::default, |state| (state.held, state.idle_bytes))
    }

    /// What its tenant would use with an invocation, if nothing went for it.
    fn use_with(&self, demand: &Demand) -> TenantBytes {
        let Demand { tenant, class, sets, bytes, fresh_bytes, .. } = demand;
        let mut used = self.used_by(tenant);
        used += self.quotas.added_by(tenant, *class, sets, &self.constants);
        used += TenantBytes { all: *fresh_bytes, ..TenantBytes::of(*class, *bytes) };
        used
    }

    /// Whether an invocation would fit its tenant's quota if everything went that nobody uses;
    /// where some constants stay, memory kept from past invocations stays as well.
    fn need_fits(&self, demand: &Demand, kept: Option<&[(ItemId, Class)]>) -> bool {
        let (held, idle_bytes) = self.held_by(&demand.tenant);
        let stays: Vec<(ItemId, Class)> =
            self.in_use(demand).into_iter().chain(kept.unwrap_or_default().iter().copied()).collect();
        let mut need = held;
        need += TenantBytes::of(demand.class, demand.bytes);
        need += TenantBytes { all: kept.map_or(0, |_| idle_bytes), best_effort: 0 };
        let mut at_most = need;
        stays.iter().for_each(|&(set, class)| at_most += TenantBytes::of(class, self.constants.set_bytes(set)));
        // Constants that sets have in common count once; mostly there is room even if they count for each.
        if at_most.fits(demand.quota) {
            return true;
        }
        let bytes_of = |class: Option<Class>| {
            let sets = stays.iter().filter(|(_, other)| class.is_none_or(|class| class == *other)).map(|(set, _)| *set);
            self.constants.bytes_of(&sets.collect::<Vec<_>>())
        };
        need += TenantBytes { all: bytes_of(None), best_effort: bytes_of(Some(Class::BestEffort)) };
        need.fits(demand.quota)
    }

    /// Whether there is room for an invocation in its tenant's quota beside the constants in their
    /// minimum residency. If not, it is looked at again when that may have changed.
    fn fits_quota_beside_warm(&mut self, demand: &Demand, turn: Turn) -> bool {
        let warm = self.residency.warm_items(self.now);
        let own: Vec<(Nanos, ItemId)> = warm.filter(|&(_, set)| !self.is_shared(&demand.tenant, set)).collect();
        let charges = own.iter().flat_map(|&(_, set)| CLASSES.map(|class| (set, class)));
        let kept: Vec<(ItemId, Class)> = charges.filter(|&charge| self.is_droppable(demand, charge)).collect();
        let fits = self.need_fits(demand, Some(&kept));
        if !fits {
            self.note_first(turn);
            let until = own.iter().find(|(_, set)| kept.iter().any(|(other, _)| other == set)).map(|&(until, _)| until);
            self.look_again(turn.1, until);
        }
        fits
    }

    /// The constants that invocations of a tenant pin, this one included.
    fn in_use(&self, demand: &Demand) -> BTreeSet<(ItemId, Class)> {
        let pinned = self.tenants.get(&demand.tenant).into_iter().flat_map(|state| state.pins.keys().copied());
        pinned.chain(demand.sets.iter().map(|&set| (set, demand.class))).collect()
    }

    /// Whether a set is charged to a tenant for a class and not in use, if this invocation is.
    fn is_droppable(&self, demand: &Demand, (set, class): (ItemId, Class)) -> bool {
        let pins = self.tenants.get(&demand.tenant).map(|state| &state.pins);
        let in_use = class == demand.class && demand.sets.contains(&set)
            || pins.is_some_and(|pins| pins.contains_key(&(set, class)));
        !in_use && self.quotas.is_charged(&demand.tenant, set, class)
    }

    /// Takes something from a tenant that it does not use: for any of its work, or what counts as
    /// best-effort.
    fn reclaim_of(&mut self, demand: &Demand, of_any: bool, victims: Victims) -> Option<()> {
        let tenant = &demand.tenant;
        if of_any && victims == Victims::All && self.reclaim_idle(Some(tenant)) {
            return Some(());
        }
        let stays: BTreeSet<ItemId> = match victims {
            Victims::All => BTreeSet::new(),
            Victims::Cool => self
                .residency
                .warm_items(self.now)
                .map(|(_, set)| set)
                .filter(|&set| !self.is_shared(tenant, set))
                .collect(),
        };
        let in_use = self.in_use(demand);
        let may_go = |charge: &(ItemId, Class)| {
            let counts = of_any || charge.1 == Class::BestEffort;
            counts && !in_use.contains(charge) && !stays.contains(&charge.0)
        };
        let droppable: Vec<(ItemId, Class)> = self.quotas.charges(tenant).filter(may_go).collect();
        let shared = self.tenants.get(tenant).map(|state| &state.shared);
        let has_other_use =
            |set| shared.is_some_and(|shared| shared.contains(&set)) || self.quotas.is_charged_twice(tenant, set);
        if let Some(&(set, class)) = droppable.iter().find(|(set, _)| has_other_use(*set)) {
            self.quotas.discharge(tenant, class, set);
            return Some(());
        }
        let sets: Vec<ItemId> = droppable.iter().map(|(set, _)| *set).collect();
        if let Some(victim) = self.residency.reclaim_one_of(self.now, &sets) {
            self.evicted(victim);
            return Some(());
        }
        let (on_its_way, class) = *droppable.first()?;
        self.cancel_loading(on_its_way);
        self.quotas.discharge(tenant, class, on_its_way);
        Some(())
    }

    /// Notes which tenants have a set together with others, after a function has joined or left it.
    /// What others have as well stays on the device without being charged.
    pub(super) fn note_sharing(&mut self, set: ItemId) {
        let all = self.constants.functions(set).len();
        for state in self.tenants.values_mut() {
            match state.sets.get(&set) {
                Some(&own) if (own as usize) < all => state.shared.insert(set),
                _ => state.shared.remove(&set),
            };
        }
    }

    /// Whether another tenant has a set that this one has.
    fn is_shared(&self, tenant: &Tenant, set: ItemId) -> bool {
        self.tenants.get(tenant).is_some_and(|state| state.shared.contains(&set))
    }
}

/// What the memory of a stage takes.
fn stage_bytes(stage: &StageSpec) -> u64 {
    // No device has so much that rounding up could overflow.
    granules(stage.bytes, ALIGN).unwrap_or(stage.bytes)
}

/// What the memory of all stages takes.
fn chain_bytes(stages: &[StageSpec]) -> u64 {
    stages.iter().map(stage_bytes).fold(0, u64::saturating_add)
}
