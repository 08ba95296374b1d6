//! Quotas of tenants: nothing is held for an invocation that would not fit its tenant's ([`super::MemoryQuotas`]).
//!
//! They are asked before the device is, and by the same rules: an invocation that could never fit is refused at once; one that does not fit now waits, in the order of turns, and gets all that it
//! needs or nothing. Room is made at the cost of what nobody of the tenant uses: memory kept from past invocations, then constants, which leave the device unless others have them as well. An
//! invocation that waits for its own tenant's quota blocks no other tenant: it is passed over until there is room, and only what comes behind it of the same tenant waits with it; while it leaves
//! others their minimum residency (`min_residency.rs`), only those that lack constants as well.

use super::event::{FunctionId, InvocationSpec, LoadRefusal, Refusal, StageSpec, TenantUse, Turn};
use super::ledger::{ALIGN, granules};
use super::min_residency::Victims;
use super::quota::TenantBytes;
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
    /// Refuses what would not fit its tenant's quota if nothing else were there.
    pub(super) fn check_quota(&self, spec: &InvocationSpec, sets: &[ItemId]) -> Result<(), Refusal> {
        let (tenant, class) = (&spec.tenant, spec.class);
        let Some(quota) = self.quotas.of(tenant) else { return Ok(()) };
        let constants = self.constants.bytes_of(sets);
        let wanted = constants.saturating_add(chain_bytes(&spec.stages));
        if wanted <= quota.for_class(class) {
            return Ok(());
        }
        let (free, quota) = (quota.left(self.used_by(tenant), class), quota.for_class(class));
        Err(Refusal::OverQuota { wanted, constants, free, quota })
    }

    /// Refuses a function whose constants a tenant's quota has no room for: ever, or with those of its other functions as far as over-commit is allowed.
    pub(super) fn check_quota_commitment(&self, tenant: &Tenant, set: ItemId) -> Result<(), LoadRefusal> {
        let Some(TenantBytes { all: quota, .. }) = self.quotas.of(tenant) else { return Ok(()) };
        let mut sets: Vec<ItemId> = self.tenants.get(tenant).into_iter().flat_map(|state| state.sets.keys().copied()).collect();
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

    /// Makes room in its tenant's quota for an invocation, at the cost of what nobody of the tenant uses and of those behind it; if it leaves others their minimum residency, of nothing but
    /// the rest. Returns whether there is.
    pub(super) fn make_quota_room(&mut self, turn: Turn, with_memory: bool, victims: Victims) -> bool {
        let Some(demand) = self.demand(turn.1, with_memory) else { return true };
        if self.use_with(&demand).fits(demand.quota) {
            return true;
        }
        if victims == Victims::Cool && !self.fits_quota_beside_warm(&demand, turn) {
            return false;
        }
        while !self.need_with(&demand, &[]).fits(demand.quota) {
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

    /// Charges constants that are to be loaded with a function, if there is room for them as things are.
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

    /// Whether an earlier invocation of the same tenant is blocked on its quota and must not be overtaken.
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
        let (bytes, fresh_bytes) = if with_memory { (chain_bytes(&invocation.stages), self.fresh_bytes(invocation)) } else { (0, 0) };
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

    /// What its tenant would need with an invocation, if everything went that nobody uses but these constants.
    fn need_with(&self, demand: &Demand, kept: &[(ItemId, Class)]) -> TenantBytes {
        let (held, _) = self.held_by(&demand.tenant);
        let stays: Vec<(ItemId, Class)> = self.in_use(demand).into_iter().chain(kept.iter().copied()).collect();
        let bytes_of = |class: Option<Class>| {
            let sets = stays.iter().filter(|(_, other)| class.is_none_or(|class| class == *other)).map(|(set, _)| *set);
            self.constants.bytes_of(&sets.collect::<Vec<_>>())
        };
        let mut need = held;
        need += TenantBytes { all: bytes_of(None), best_effort: bytes_of(Some(Class::BestEffort)) };
        need += TenantBytes::of(demand.class, demand.bytes);
        need
    }

    /// Whether there is room for an invocation in its tenant's quota beside the constants in their minimum residency. If not, it is looked at again when that may have changed.
    fn fits_quota_beside_warm(&mut self, demand: &Demand, turn: Turn) -> bool {
        let warm: Vec<(ItemId, Class)> =
            self.droppable_of(demand).filter(|&(set, _)| self.residency_until(&demand.tenant, set).is_some()).collect();
        let mut need = self.need_with(demand, &warm);
        need += TenantBytes { all: self.held_by(&demand.tenant).1, best_effort: 0 };
        let fits = need.fits(demand.quota);
        if !fits {
            self.note_first(turn);
            self.look_again(turn.1, warm.iter().filter_map(|&(set, _)| self.residency_until(&demand.tenant, set)).min());
        }
        fits
    }

    /// The constants that invocations of a tenant pin, this one included.
    fn in_use(&self, demand: &Demand) -> BTreeSet<(ItemId, Class)> {
        let pinned = self.tenants.get(&demand.tenant).into_iter().flat_map(|state| state.pins.keys().copied());
        pinned.chain(demand.sets.iter().map(|&set| (set, demand.class))).collect()
    }

    /// What is charged to a tenant and not in use, if this invocation is.
    fn droppable_of<'a>(&'a self, demand: &'a Demand) -> impl Iterator<Item = (ItemId, Class)> + 'a {
        let in_use = self.in_use(demand);
        self.quotas.charges(&demand.tenant).filter(move |charge| !in_use.contains(charge))
    }

    /// Takes something from a tenant that it does not use: for any of its work, or what counts as best-effort.
    fn reclaim_of(&mut self, demand: &Demand, of_any: bool, victims: Victims) -> Option<()> {
        let tenant = &demand.tenant;
        if of_any && victims == Victims::All && self.reclaim_idle(Some(tenant)) {
            return Some(());
        }
        let mut droppable: Vec<(ItemId, Class)> = self.droppable_of(demand).collect();
        let stays = |set: ItemId| victims == Victims::Cool && self.residency_until(tenant, set).is_some();
        droppable.retain(|&(set, class)| (of_any || class == Class::BestEffort) && !stays(set));
        if let Some(&(set, class)) = droppable.iter().find(|(set, class)| self.has_other_use(tenant, *set, *class)) {
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

    /// Whether somebody else may use a set, or the tenant itself for the other class.
    fn has_other_use(&self, tenant: &Tenant, set: ItemId, class: Class) -> bool {
        let other = if class == Class::RealTime { Class::BestEffort } else { Class::RealTime };
        self.quotas.is_charged(tenant, set, other) || self.is_others(tenant, set)
    }

    /// Whether somebody else may use a set.
    fn is_others(&self, tenant: &Tenant, set: ItemId) -> bool {
        let own = self.tenants.get(tenant).and_then(|state| state.sets.get(&set)).copied().unwrap_or_default();
        self.constants.functions(set).len() > own as usize
    }

    /// Until when the minimum residency of a set lasts that is charged to a tenant; `None` if it is over. What others have as well stays on the device without being charged.
    fn residency_until(&self, tenant: &Tenant, set: ItemId) -> Option<Nanos> {
        self.residency.warm_until(self.now, set).filter(|_| !self.is_others(tenant, set))
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
