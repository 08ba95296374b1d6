//! Admission by quota: nothing is held for an invocation that would not fit its tenant's quota
//! ([`super::MemoryQuotas`]).
//!
//! Quotas are checked before the device, with the same rules. An invocation that could never fit is
//! refused at once. One that does not fit now waits in turn, and gets all that it needs or nothing.
//! Room is made by freeing unused memory of the tenant: memory kept from past invocations, then
//! constants, which leave the device unless other tenants have them too. An invocation that waits
//! for its tenant's quota blocks no other tenant. Later invocations of the same tenant wait with
//! it; while it respects minimum residency (`min_residency.rs`), only those that lack constants.

use super::ledger::{ALIGN, granules};
use super::min_residency::Victims;
use super::quota::TenantBytes;
use super::refusal::{LoadRefusal, Refusal};
use super::spec::{FunctionId, InvocationSpec, SessionSpec, StageSpec, TenantUse, Turn};
use super::{Invocation, Memory};
use crate::ids::{CLASSES, Class, Nanos, TaskId};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use std::collections::{BTreeMap, BTreeSet};

/// The bytes that an invocation adds to its tenant's use.
struct Demand {
    tenant: Tenant,
    class: Class,
    quota: TenantBytes,
    sets: Vec<ItemId>,
    /// Bytes of the memory it needs, kept memory included.
    bytes: u64,
    /// Bytes of it for which no memory is kept.
    fresh_bytes: u64,
}

impl Demand {
    /// Whether a charge is one for this invocation.
    fn needs(&self, (set, class): (ItemId, Class)) -> bool {
        class == self.class && self.sets.contains(&set)
    }
}

/// What an invocation needs at most.
struct Need<'a> {
    tenant: &'a Tenant,
    class: Class,
    stages: &'a [StageSpec],
    sets: &'a [ItemId],
    session: Option<&'a SessionSpec>,
}

impl Memory {
    /// Returns an error if an invocation would not fit its tenant's quota beside the tenant's
    /// sessions.
    pub(super) fn check_quota(&self, spec: &InvocationSpec, sets: &[ItemId]) -> Result<(), Refusal> {
        self.quota_misfit(&spec.tenant, spec.class, &spec.stages, sets, spec.session.as_ref()).map_or(Ok(()), Err)
    }

    /// Why an invocation would not fit its tenant's quota beside the tenant's sessions that cannot be
    /// suspended for it; `None` if it would fit.
    pub(super) fn quota_misfit(
        &self,
        tenant: &Tenant,
        class: Class,
        stages: &[StageSpec],
        sets: &[ItemId],
        session: Option<&SessionSpec>,
    ) -> Option<Refusal> {
        let need = Need { tenant, class, stages, sets, session };
        let all = self.sessions.bytes_of(tenant);
        self.over_quota(&need, all)?;
        self.over_quota(&need, all.without(self.movable_bytes(session, Some(tenant))))
    }

    /// Why an invocation does not fit its tenant's quota beside these bytes of sessions.
    pub(super) fn over_quota_beside(&self, task: TaskId, sessions: TenantBytes) -> Option<Refusal> {
        let Invocation { ref tenant, class, ref stages, ref sets, ref session, .. } = self.invocations[&task];
        self.over_quota(&Need { tenant, class, stages, sets, session: session.as_ref() }, sessions)
    }

    fn over_quota(&self, need: &Need<'_>, sessions: TenantBytes) -> Option<Refusal> {
        let Need { tenant, class, stages, sets, session } = *need;
        let quota = self.quotas.of(tenant)?;
        let constants = self.constants.bytes_of(sets);
        let wanted = constants.saturating_add(chain_bytes(stages)).saturating_add(self.state_bytes(session));
        let mut all = sessions;
        all += TenantBytes::of(class, wanted);
        if all.fits(quota) {
            return None;
        }
        let (free, quota) = (quota.left(self.used_by(tenant), class), quota.for_class(class));
        Some(Refusal::OverQuota { wanted, constants, free, quota })
    }

    /// Returns an error if the constants of a function exceed its tenant's quota, or the quota's
    /// overcommit limit together with those of the tenant's other functions.
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

    /// Whether an invocation fits its tenant's quota now, without memory of its own.
    pub(super) fn fits_quota(&self, task: TaskId) -> bool {
        self.demand(task, false).is_none_or(|demand| self.use_with(&demand).fits(demand.quota))
    }

    /// Makes room in its tenant's quota for an invocation, by freeing what the tenant does not use
    /// and taking from later invocations. With [`Victims::Cool`] it only frees constants whose
    /// minimum residency is over. Returns whether there is room.
    pub(super) fn make_quota_room(&mut self, turn: Turn, with_memory: bool, victims: Victims) -> bool {
        let Some(demand) = self.demand(turn.1, with_memory) else { return true };
        if self.use_with(&demand).fits(demand.quota) {
            return true;
        }
        if victims == Victims::Cool && !self.fits_quota_beside_warm(&demand, turn) {
            return false;
        }
        while !self.need_fits(&demand, None) {
            if !self.revoke_from_behind(turn, Some(&demand.tenant)) {
                return false;
            }
        }
        loop {
            // Freeing kept memory changes what can be reused.
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

    /// Charges constants that are loaded with a function, if they fit the quota now. Returns
    /// whether they do.
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
        self.is_behind(&self.invocations[&turn.1].tenant, turn)
    }

    /// As [`Memory::waits_for_quota`], for an invocation of this tenant.
    pub(super) fn is_behind(&self, tenant: &Tenant, turn: Turn) -> bool {
        let first = self.short_of_quota.get(tenant);
        first.is_some_and(|&(first, victims)| first < turn && victims == Victims::All)
    }

    pub(super) fn note_use(&mut self, tenant: &Tenant) {
        if self.quotas.of(tenant).is_some() {
            let used = self.used_by(tenant);
            self.quotas.note(tenant, used);
        }
    }

    /// The quota of a tenant, if it has one.
    pub fn quota(&self, tenant: &Tenant) -> Option<TenantBytes> {
        self.quotas.of(tenant)
    }

    /// Memory use of tenants with quotas.
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

    /// Bytes of an invocation's memory for which no slot is kept.
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

    /// Current use of a tenant.
    fn used_by(&self, tenant: &Tenant) -> TenantBytes {
        let (held, idle_bytes) = self.held_by(tenant);
        let mut used = self.quotas.charged(tenant);
        used += TenantBytes { all: held.all + idle_bytes, best_effort: held.best_effort };
        used
    }

    /// Memory of a tenant's invocations and sessions, and memory kept from past invocations.
    fn held_by(&self, tenant: &Tenant) -> (TenantBytes, u64) {
        self.tenants.get(tenant).map_or_else(Default::default, |state| (state.held, state.idle_bytes))
    }

    /// The tenant's use with an invocation, if nothing is freed for it.
    fn use_with(&self, demand: &Demand) -> TenantBytes {
        let Demand { tenant, class, sets, bytes, fresh_bytes, .. } = demand;
        let mut used = self.used_by(tenant);
        used += self.quotas.added_by(tenant, *class, sets, &self.constants);
        used += TenantBytes { all: *fresh_bytes, ..TenantBytes::of(*class, *bytes) };
        used
    }

    /// Whether an invocation would fit its tenant's quota if everything unused were freed, except
    /// for `kept` constants; if `kept` is given, kept memory of past invocations stays too.
    fn need_fits(&self, demand: &Demand, kept: Option<&[(ItemId, Class)]>) -> bool {
        let state = &self.tenants[&demand.tenant];
        let mut need = state.held;
        need += TenantBytes::of(demand.class, demand.bytes);
        need += TenantBytes { all: kept.map_or(0, |_| state.idle_bytes), best_effort: 0 };
        let own = demand.sets.iter().map(|&set| (set, demand.class)).filter(|charge| !state.pins.contains_key(charge));
        let unpinned: Vec<(ItemId, Class)> = own.chain(kept.unwrap_or_default().iter().copied()).collect();
        let mut at_most = need;
        at_most += state.pinned;
        unpinned.iter().for_each(|&(set, class)| at_most += TenantBytes::of(class, self.constants.set_bytes(set)));
        // Constants shared by sets count once; the cheap upper bound counts them for each set.
        if at_most.fits(demand.quota) {
            return true;
        }
        let bytes_of = |class: Option<Class>| {
            let stays = state.pins.keys().chain(&unpinned);
            let sets = stays.filter(|(_, other)| class.is_none_or(|class| class == *other)).map(|(set, _)| *set);
            self.constants.bytes_of(&sets.collect::<Vec<_>>())
        };
        need += TenantBytes { all: bytes_of(None), best_effort: bytes_of(Some(Class::BestEffort)) };
        need.fits(demand.quota)
    }

    /// Whether an invocation fits its tenant's quota beside the tenant's warm constants. If not,
    /// the invocation is retried when that may have changed.
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

    /// Whether a set is charged to a tenant for a class and not in use, this invocation included.
    fn is_droppable(&self, demand: &Demand, (set, class): (ItemId, Class)) -> bool {
        let pins = self.tenants.get(&demand.tenant).map(|state| &state.pins);
        let in_use = demand.needs((set, class)) || pins.is_some_and(|pins| pins.contains_key(&(set, class)));
        !in_use && self.quotas.is_charged(&demand.tenant, set, class)
    }

    /// Frees one piece of unused memory of a tenant; if not `of_any`, only memory that counts as
    /// best-effort.
    fn reclaim_of(&mut self, demand: &Demand, of_any: bool, victims: Victims) -> Option<()> {
        let tenant = &demand.tenant;
        if of_any && victims == Victims::All && self.reclaim_idle(Some(tenant)) {
            return Some(());
        }
        let stays = &self.staying(tenant, victims);
        let state = &self.tenants[tenant];
        let is_droppable = |charge: &(ItemId, Class)| {
            let counts = of_any || charge.1 == Class::BestEffort;
            counts && !demand.needs(*charge) && !state.pins.contains_key(charge) && !stays.contains(&charge.0)
        };
        let beside = self.quotas.charges_beside_others(tenant, &state.shared).find(is_droppable);
        if let Some((set, class)) = beside {
            self.quotas.discharge(tenant, class, set);
            return Some(());
        }
        // The residency policy leaves out pinned sets by itself.
        let unneeded = |&class: &Class| {
            let sets = self.quotas.sets(tenant, class);
            sets.filter(move |&set| !demand.needs((set, class)) && !stays.contains(&set))
        };
        let classes = if of_any { &CLASSES[..] } else { &[Class::BestEffort] };
        if let Some(victim) = self.residency.reclaim_one_of(self.now, classes.iter().flat_map(unneeded)) {
            self.set_reclaimed(victim);
            return Some(());
        }
        let (loading, class) = self.quotas.charges(tenant).find(is_droppable)?;
        self.cancel_loading(loading);
        self.quotas.discharge(tenant, class, loading);
        Some(())
    }

    /// The tenant's own sets that may not be reclaimed because they are warm.
    fn staying(&self, tenant: &Tenant, victims: Victims) -> BTreeSet<ItemId> {
        if victims == Victims::All {
            return BTreeSet::new();
        }
        let warm = self.residency.warm_items(self.now).map(|(_, set)| set);
        warm.filter(|&set| !self.is_shared(tenant, set)).collect()
    }

    /// Updates which tenants share a set with others, after a function joined or left it. A shared
    /// set stays on the device even if one tenant is no longer charged for it.
    pub(super) fn note_sharing(&mut self, set: ItemId) {
        let all = self.constants.functions(set).len();
        for state in self.tenants.values_mut() {
            match state.sets.get(&set) {
                Some(&own) if (own as usize) < all => state.shared.insert(set),
                _ => state.shared.remove(&set),
            };
        }
    }

    /// Whether a set of a tenant is shared with another tenant.
    fn is_shared(&self, tenant: &Tenant, set: ItemId) -> bool {
        self.tenants.get(tenant).is_some_and(|state| state.shared.contains(&set))
    }
}

/// Bytes of a stage's memory.
fn stage_bytes(stage: &StageSpec) -> u64 {
    // Rounding up cannot overflow on a size that a device can have.
    granules(stage.bytes, ALIGN).unwrap_or(stage.bytes)
}

/// Bytes of the memory of all stages.
fn chain_bytes(stages: &[StageSpec]) -> u64 {
    stages.iter().map(stage_bytes).fold(0, u64::saturating_add)
}
