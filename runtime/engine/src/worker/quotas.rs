//! Quotas of tenants: nothing is held for an invocation that would not fit its tenant's ([`crate::MemoryQuotas`]).
//!
//! They are asked before the device is, and by the same rules: what could never fit is refused at once; what does not fit now waits, in the order of turns, and gets all that it needs or
//! nothing. Room is made at the cost of what nobody of the tenant uses: memory kept from past invocations, then constants, which leave the device unless others have them as well. Who waits
//! for its own tenant's quota stands in nobody else's way: it is passed over until there is room, and only what comes behind it of the same tenant waits with it; while it spares what was in use
//! a moment ago (`sparing.rs`), only those that lack constants as well.

use super::Worker;
use super::residency::Turn;
use super::sparing::Victims;
use crate::chain::Stage;
use crate::clock;
use crate::config::FunctionKey;
use crate::error::{EngineError, InvokeError};
use crate::event::Submission;
use crate::function::FunctionId;
use crate::memory::{ALIGN, granules};
use crate::quota::TenantBytes;
use crate::statistics::TenantMemory;
use atoll_core::residency::ItemId;
use atoll_core::{Class, Nanos, TaskId, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// An invocation as quotas see it.
struct Claimant {
    tenant: Tenant,
    class: Class,
    quota: TenantBytes,
    sets: Vec<ItemId>,
    /// Memory that it is to get, which may be kept from past invocations.
    bytes: u64,
    /// What of that there is none kept for.
    fresh_bytes: u64,
}

impl Worker {
    /// Refuses what would not fit its tenant's quota if nothing else were there.
    pub(super) fn check_quota(&self, submission: &Submission, sets: &[ItemId]) -> Result<(), InvokeError> {
        let (tenant, class) = (submission.chain.tenant(), submission.class);
        let Some(quota) = self.quotas.of(tenant) else { return Ok(()) };
        let constants = self.constants.bytes_of(sets);
        let wanted = constants.saturating_add(chain_bytes(submission));
        if wanted <= quota.for_class(class) {
            return Ok(());
        }
        let (free, quota) = (quota.left(self.used_by(tenant), class), quota.for_class(class));
        Err(InvokeError::OverQuota { tenant: tenant.clone(), wanted, constants, free, quota })
    }

    /// Refuses a function whose constants a tenant's quota has no room for: ever, or with those of its other functions as far as over-commit is allowed.
    pub(super) fn check_quota_commitment(&self, key: &FunctionKey, set: ItemId) -> Result<(), EngineError> {
        let Some(TenantBytes { all: quota, .. }) = self.quotas.of(&key.tenant) else { return Ok(()) };
        let others = self.functions.values().filter(|loaded| loaded.key().tenant == key.tenant).map(|loaded| loaded.membership.set);
        let mut sets: Vec<ItemId> = others.collect();
        let (before, wanted) = (self.constants.bytes_of(&sets), self.constants.bytes_of(&[set]));
        sets.push(set);
        let all = self.constants.bytes_of(&sets);
        let limit = (quota as f64 * self.memory_overcommit) as u64;
        if wanted <= quota && (all <= limit || all == before) {
            return Ok(());
        }
        let free = quota.saturating_sub(self.used_by(&key.tenant).all);
        Err(EngineError::OverQuota { name: key.clone(), wanted, free, quota, all, limit })
    }

    /// Whether an invocation fits its tenant's quota as things are, without memory of its own.
    pub(super) fn fits_quota(&self, task: TaskId) -> bool {
        self.claimant(task, false).is_none_or(|claimant| self.use_with(&claimant).fits(claimant.quota))
    }

    /// Makes room in its tenant's quota for an invocation, at the cost of what nobody of the tenant uses and of those behind it; if it has to spare what was in use a moment ago, of nothing but
    /// the rest. Returns whether there is.
    pub(super) fn make_quota_room(&mut self, turn: Turn, with_memory: bool, victims: Victims) -> bool {
        let Some(claimant) = self.claimant(turn.1, with_memory) else { return true };
        if self.use_with(&claimant).fits(claimant.quota) {
            return true;
        }
        if victims == Victims::Cool && !self.fits_quota_beside_warm(&claimant, turn) {
            return false;
        }
        while !self.need_with(&claimant, &[]).fits(claimant.quota) {
            if !self.take_from_behind(turn, Some(&claimant.tenant)) {
                return false;
            }
        }
        loop {
            // What is kept and can be used again changes on the way.
            let Some(claimant) = self.claimant(turn.1, with_memory) else { return true };
            let used = self.use_with(&claimant);
            if used.fits(claimant.quota) {
                return true;
            }
            if self.reclaim_of(&claimant, used.all > claimant.quota.all, victims).is_none() {
                return false;
            }
        }
    }

    /// Charges an invocation's constants, which are held, to its tenant.
    pub(super) fn charge(&mut self, task: TaskId) {
        let invocation = &self.invocations[&task];
        let (tenant, class) = (invocation.submission.chain.tenant(), invocation.submission.class);
        if self.quotas.of(tenant).is_some() {
            let tenant = tenant.clone();
            invocation.sets.iter().for_each(|&set| self.quotas.charge(&tenant, class, set, &self.constants));
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

    /// A function of a tenant is gone: a set that no other of its functions has is charged to it no more.
    pub(super) fn discharge_unless_used(&mut self, tenant: &Tenant, set: ItemId) {
        if !self.functions.values().any(|loaded| loaded.membership.set == set && loaded.key().tenant == *tenant) {
            [Class::RealTime, Class::BestEffort].into_iter().for_each(|class| self.quotas.discharge(tenant, class, set));
        }
    }

    /// Whether one of the same tenant waits for the quota in front of this turn and lets nobody pass.
    pub(super) fn waits_for_quota(&self, turn: Turn) -> bool {
        let first = self.resident.short_of_quota.get(self.invocations[&turn.1].submission.chain.tenant());
        first.is_some_and(|&(first, victims)| first < turn && victims == Victims::All)
    }

    pub(super) fn note_use(&mut self, tenant: &Tenant) {
        if self.quotas.of(tenant).is_some() {
            let used = self.used_by(tenant);
            self.quotas.note(tenant, used);
        }
    }

    /// What tenants with quotas use.
    pub(super) fn tenant_memory(&self) -> Vec<TenantMemory> {
        let tenants = self.quotas.tenants().filter_map(|tenant| {
            let (quota, used, most) = (self.quotas.of(tenant)?, self.used_by(tenant), self.quotas.most(tenant));
            Some(TenantMemory { tenant: tenant.clone(), quota, used, most })
        });
        tenants.collect()
    }

    fn claimant(&self, task: TaskId, with_memory: bool) -> Option<Claimant> {
        let invocation = &self.invocations[&task];
        let Submission { chain, class, .. } = &invocation.submission;
        let (tenant, quota) = (chain.tenant(), self.quotas.of(chain.tenant())?);
        let with_memory = with_memory && invocation.instances.is_empty();
        let (bytes, fresh_bytes) =
            if with_memory { (chain_bytes(&invocation.submission), self.fresh_bytes(&invocation.submission)) } else { (0, 0) };
        Some(Claimant { tenant: tenant.clone(), class: *class, quota, sets: invocation.sets.clone(), bytes, fresh_bytes })
    }

    /// What a chain takes for which nothing is kept from past invocations.
    fn fresh_bytes(&self, submission: &Submission) -> u64 {
        let mut kept: BTreeMap<(FunctionId, &[i64]), usize> = BTreeMap::new();
        let mut fresh = 0;
        for stage in &submission.chain.stages {
            let (function, symbols) = (stage.function.id, &*stage.binding.symbols);
            let idle = self.functions[&function].idle.iter().filter(|idle| idle.binding.symbols == symbols);
            let left = kept.entry((function, symbols)).or_insert_with(|| idle.count());
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => fresh += stage_bytes(stage),
            }
        }
        fresh
    }

    /// What a tenant uses.
    fn used_by(&self, tenant: &Tenant) -> TenantBytes {
        let held = self.accounts.held_by(tenant);
        let mut used = self.quotas.charged(tenant);
        used += TenantBytes { all: held.all + held.idle, best_effort: held.best_effort };
        used
    }

    /// What its tenant would use with an invocation, if nothing went for it.
    fn use_with(&self, claimant: &Claimant) -> TenantBytes {
        let Claimant { tenant, class, sets, bytes, fresh_bytes, .. } = claimant;
        let mut used = self.used_by(tenant);
        used += self.quotas.added_by(tenant, *class, sets, &self.constants);
        used += TenantBytes { all: *fresh_bytes, ..TenantBytes::of(*class, *bytes) };
        used
    }

    /// What its tenant would need with an invocation, if everything went that nobody uses but these constants.
    fn need_with(&self, claimant: &Claimant, spared: &[(ItemId, Class)]) -> TenantBytes {
        let held = self.accounts.held_by(&claimant.tenant);
        let stays: Vec<(ItemId, Class)> = self.in_use(claimant).into_iter().chain(spared.iter().copied()).collect();
        let bytes_of = |class: Option<Class>| {
            let sets = stays.iter().filter(|(_, other)| class.is_none_or(|class| class == *other)).map(|(set, _)| *set);
            self.constants.bytes_of(&sets.collect::<Vec<_>>())
        };
        let mut need = TenantBytes { all: held.all, best_effort: held.best_effort };
        need += TenantBytes { all: bytes_of(None), best_effort: bytes_of(Some(Class::BestEffort)) };
        need += TenantBytes::of(claimant.class, claimant.bytes);
        need
    }

    /// Whether there is room for an invocation in its tenant's quota without what is spared. If not, it is looked at again when that may have changed.
    fn fits_quota_beside_warm(&mut self, claimant: &Claimant, turn: Turn) -> bool {
        let warm: Vec<(ItemId, Class)> =
            self.droppable_of(claimant).filter(|&(set, _)| self.spared_until(&claimant.tenant, set).is_some()).collect();
        let mut need = self.need_with(claimant, &warm);
        need += TenantBytes { all: self.accounts.held_by(&claimant.tenant).idle, best_effort: 0 };
        let fits = need.fits(claimant.quota);
        if !fits {
            self.note_first(turn);
            self.look_again(turn.1, warm.iter().filter_map(|&(set, _)| self.spared_until(&claimant.tenant, set)).min());
        }
        fits
    }

    /// The constants that invocations of a tenant claim, this one included.
    fn in_use(&self, claimant: &Claimant) -> BTreeSet<(ItemId, Class)> {
        let own = self.invocations.values().filter(|other| other.claimed && *other.submission.chain.tenant() == claimant.tenant);
        let claimed = own.flat_map(|other| other.sets.iter().map(|&set| (set, other.submission.class)));
        claimed.chain(claimant.sets.iter().map(|&set| (set, claimant.class))).collect()
    }

    /// What is charged to a tenant and not in use, if this invocation is.
    fn droppable_of<'a>(&'a self, claimant: &'a Claimant) -> impl Iterator<Item = (ItemId, Class)> + 'a {
        let in_use = self.in_use(claimant);
        self.quotas.charges(&claimant.tenant).filter(move |charge| !in_use.contains(charge))
    }

    /// Takes something from a tenant that it does not use: for any of its work, or what counts as best-effort.
    fn reclaim_of(&mut self, claimant: &Claimant, of_any: bool, victims: Victims) -> Option<()> {
        let tenant = &claimant.tenant;
        if of_any && victims == Victims::All && self.reclaim_idle(Some(tenant)).is_some() {
            return Some(());
        }
        let mut droppable: Vec<(ItemId, Class)> = self.droppable_of(claimant).collect();
        let is_spared = |set: ItemId| victims == Victims::Cool && self.spared_until(tenant, set).is_some();
        droppable.retain(|&(set, class)| (of_any || class == Class::BestEffort) && !is_spared(set));
        if let Some(&(set, class)) = droppable.iter().find(|(set, class)| self.has_other_use(tenant, *set, *class)) {
            self.quotas.discharge(tenant, class, set);
            return Some(());
        }
        let sets: Vec<ItemId> = droppable.iter().map(|(set, _)| *set).collect();
        if let Some(victim) = self.resident.residency.reclaim_one_of(clock::now(), &sets) {
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
        self.functions.values().any(|loaded| loaded.membership.set == set && loaded.key().tenant != *tenant)
    }

    /// Until when a set is spared that is charged to a tenant; `None` if it is not. What others have as well stays on the device without being charged.
    fn spared_until(&self, tenant: &Tenant, set: ItemId) -> Option<Nanos> {
        self.resident.residency.warm_until(clock::now(), set).filter(|_| !self.is_others(tenant, set))
    }
}

/// What the memory of a stage takes.
fn stage_bytes(stage: &Stage) -> u64 {
    // No device has so much that rounding up could overflow.
    granules(stage.binding.layout.bytes, ALIGN).unwrap_or(stage.binding.layout.bytes)
}

/// What the memory of all stages takes.
fn chain_bytes(submission: &Submission) -> u64 {
    submission.chain.stages.iter().map(stage_bytes).fold(0, u64::saturating_add)
}
