//! Memory quotas of tenants, and the memory that is charged against them.
//!
//! A tenant *uses* the memory of its invocations, the memory kept from past ones, and the constants
//! *charged* to it. A constant set is charged to a tenant, per class, from when one of its
//! invocations needs the set or a function with it is loaded, until the set leaves the device or
//! the tenant needs the room for something else. A set that several tenants use is charged to each
//! of them in full, and no tenant is charged for loads of another tenant. So the room in a tenant's
//! quota does not depend on other tenants. (Bills divide shared sets instead, since they have to
//! add up to the bytes that the device holds.)

use super::constants::{ConstantId, Constants};
use crate::ids::{CLASSES, Class};
use crate::residency::ItemId;
use crate::tenant::Tenant;
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::AddAssign;

/// Bytes of device memory of a tenant: a quota, or its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantBytes {
    /// For all of its work.
    pub all: u64,
    /// The part for best-effort invocations.
    pub best_effort: u64,
}

impl TenantBytes {
    /// The quota of a tenant without limits.
    pub const UNLIMITED: TenantBytes = TenantBytes { all: u64::MAX, best_effort: u64::MAX };

    /// The use by `bytes` bytes of a class.
    pub(super) fn of(class: Class, bytes: u64) -> TenantBytes {
        TenantBytes { all: bytes, best_effort: if class == Class::BestEffort { bytes } else { 0 } }
    }

    /// What is left of a use without a part of it.
    pub(super) fn without(self, part: TenantBytes) -> TenantBytes {
        let (all, best_effort) = (self.all - part.all, self.best_effort - part.best_effort);
        TenantBytes { all, best_effort }
    }

    pub(super) fn fits(self, quota: TenantBytes) -> bool {
        self.all <= quota.all && self.best_effort <= quota.best_effort
    }

    /// The limit for work of a class.
    pub(super) fn for_class(self, class: Class) -> u64 {
        match class {
            Class::RealTime => self.all,
            Class::BestEffort => self.all.min(self.best_effort),
        }
    }

    /// The bytes of a quota that are left for work of a class after `used`.
    pub(super) fn left(self, used: TenantBytes, class: Class) -> u64 {
        let [all, best_effort] = [self.all.saturating_sub(used.all), self.best_effort.saturating_sub(used.best_effort)];
        TenantBytes { all, best_effort }.for_class(class)
    }

    fn max(self, other: TenantBytes) -> TenantBytes {
        TenantBytes { all: self.all.max(other.all), best_effort: self.best_effort.max(other.best_effort) }
    }
}

impl AddAssign for TenantBytes {
    fn add_assign(&mut self, other: TenantBytes) {
        self.all = self.all.saturating_add(other.all);
        self.best_effort = self.best_effort.saturating_add(other.best_effort);
    }
}

/// Memory quotas of all tenants. The tenant of the daemon's own models is unlimited unless it is
/// named.
#[derive(Clone, Debug)]
pub struct MemoryQuotas {
    /// For tenants that are not named.
    pub default: TenantBytes,
    /// For named tenants.
    pub tenants: BTreeMap<Tenant, TenantBytes>,
}

impl Default for MemoryQuotas {
    fn default() -> MemoryQuotas {
        MemoryQuotas { default: TenantBytes::UNLIMITED, tenants: BTreeMap::new() }
    }
}

impl MemoryQuotas {
    fn of(&self, tenant: &Tenant) -> TenantBytes {
        let default = if tenant.is_local() { TenantBytes::UNLIMITED } else { self.default };
        self.tenants.get(tenant).copied().unwrap_or(default)
    }
}

/// The quotas of a device's memory, with the charges against them. Tenants without a quota are not
/// counted.
#[derive(Debug)]
pub(super) struct Quotas {
    quotas: MemoryQuotas,
    tenants: BTreeMap<Tenant, Charges>,
}

/// The charges of one tenant.
#[derive(Debug, Default)]
struct Charges {
    sets: BTreeMap<ItemId, Charge>,
    /// How many of them are charged for both classes.
    twice: usize,
    /// How many of the charged sets contain a constant, by constant and class.
    constants: HashMap<ConstantId, [u32; 2], FixedState>,
    bytes: TenantBytes,
    /// Peak use, memory of invocations included.
    most: TenantBytes,
}

#[derive(Debug)]
struct Charge {
    /// By [`Class`].
    classes: [bool; 2],
    members: Vec<(ConstantId, u64)>,
}

impl Quotas {
    pub(super) fn new(quotas: MemoryQuotas) -> Quotas {
        // Named tenants are reported before they do anything.
        let named = quotas.tenants.iter().filter(|(_, quota)| **quota != TenantBytes::UNLIMITED);
        let tenants = named.map(|(tenant, _)| (tenant.clone(), Charges::default())).collect();
        Quotas { quotas, tenants }
    }

    /// A tenant's quota, if it has one.
    pub(super) fn of(&self, tenant: &Tenant) -> Option<TenantBytes> {
        Some(self.quotas.of(tenant)).filter(|quota| *quota != TenantBytes::UNLIMITED)
    }

    /// Bytes of constants charged to a tenant.
    pub(super) fn charged(&self, tenant: &Tenant) -> TenantBytes {
        self.tenants.get(tenant).map_or_else(TenantBytes::default, |charges| charges.bytes)
    }

    /// The charges of a tenant, by set and class.
    pub(super) fn charges(&self, tenant: &Tenant) -> impl Iterator<Item = (ItemId, Class)> {
        let sets = self.tenants.get(tenant).into_iter().flat_map(|charges| &charges.sets);
        sets.flat_map(|(&set, charge)| charge.by_class(set))
    }

    /// The sets that are charged to a tenant for a class.
    pub(super) fn sets(&self, tenant: &Tenant, class: Class) -> impl Iterator<Item = ItemId> {
        let sets = self.tenants.get(tenant).into_iter().flat_map(|charges| &charges.sets);
        sets.filter(move |(_, charge)| charge.classes[class as usize]).map(|(&set, _)| set)
    }

    /// The charges without which their set stays on the device: those of sets that are charged for the
    /// other class too, or that are among the `shared` ones.
    pub(super) fn charges_beside_others(
        &self,
        tenant: &Tenant,
        shared: &BTreeSet<ItemId>,
    ) -> impl Iterator<Item = (ItemId, Class)> {
        // Most tenants have none of either kind.
        let charges = self.tenants.get(tenant).filter(|charges| charges.twice > 0 || !shared.is_empty());
        let sets = charges.into_iter().flat_map(|charges| &charges.sets);
        let beside = sets.filter(|(set, charge)| charge.classes == [true; 2] || shared.contains(set));
        beside.flat_map(|(&set, charge)| charge.by_class(set))
    }

    pub(super) fn is_charged(&self, tenant: &Tenant, set: ItemId, class: Class) -> bool {
        let charge = self.tenants.get(tenant).and_then(|charges| charges.sets.get(&set));
        charge.is_some_and(|charge| charge.classes[class as usize])
    }

    /// The bytes that charging these sets would add.
    pub(super) fn added_by(
        &self,
        tenant: &Tenant,
        class: Class,
        sets: &[ItemId],
        constants: &Constants,
    ) -> TenantBytes {
        let known = self.tenants.get(tenant).map(|charges| &charges.constants);
        let counts = |id: &ConstantId| known.and_then(|known| known.get(id)).copied().unwrap_or_default();
        let mut added = TenantBytes::default();
        let mut seen = HashSet::with_hasher(FixedState::default());
        for &set in sets.iter().filter(|&&set| !self.is_charged(tenant, set, class)) {
            for (id, bytes) in constants.members(set).filter(|(id, _)| seen.insert(*id)) {
                added += new_bytes(counts(&id), class, bytes);
            }
        }
        added
    }

    pub(super) fn charge(&mut self, tenant: &Tenant, class: Class, set: ItemId, constants: &Constants) {
        if self.of(tenant).is_none() || self.is_charged(tenant, set, class) || constants.members(set).next().is_none() {
            return;
        }
        let Charges { sets, twice, constants: counts, bytes: total, .. } =
            self.tenants.entry(tenant.clone()).or_default();
        let new = || Charge { classes: [false; 2], members: constants.members(set).collect() };
        let charge = sets.entry(set).or_insert_with(new);
        charge.classes[class as usize] = true;
        *twice += usize::from(charge.classes == [true; 2]);
        for &(id, bytes) in &charge.members {
            let count = counts.entry(id).or_default();
            *total += new_bytes(*count, class, bytes);
            count[class as usize] += 1;
        }
    }

    pub(super) fn discharge(&mut self, tenant: &Tenant, class: Class, set: ItemId) {
        if let Some(charges) = self.tenants.get_mut(tenant) {
            charges.drop_charge(class, set);
        }
    }

    /// Removes all charges of a set that leaves the device.
    pub(super) fn forget(&mut self, set: ItemId) {
        for charges in self.tenants.values_mut() {
            CLASSES.into_iter().for_each(|class| charges.drop_charge(class, set));
        }
    }

    /// Updates the peak use of a tenant.
    pub(super) fn note(&mut self, tenant: &Tenant, used: TenantBytes) {
        let most = &mut self.tenants.entry(tenant.clone()).or_default().most;
        *most = most.max(used);
    }

    /// Peak use of a tenant.
    pub(super) fn most(&self, tenant: &Tenant) -> TenantBytes {
        self.tenants.get(tenant).map_or_else(TenantBytes::default, |charges| charges.most)
    }

    /// Tenants with a quota that were named or have used memory.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.keys()
    }
}

impl Charge {
    /// One entry for each class that is charged.
    fn by_class(&self, set: ItemId) -> impl Iterator<Item = (ItemId, Class)> {
        CLASSES.into_iter().filter(|&class| self.classes[class as usize]).map(move |class| (set, class))
    }
}

impl Charges {
    fn drop_charge(&mut self, class: Class, set: ItemId) {
        let Some(charge) = self.sets.get_mut(&set).filter(|charge| charge.classes[class as usize]) else { return };
        self.twice -= usize::from(charge.classes == [true; 2]);
        charge.classes[class as usize] = false;
        for (id, bytes) in &charge.members {
            let count = self.constants.get_mut(id).expect("what is charged is counted");
            count[class as usize] -= 1;
            // Removing it subtracts the bytes that adding it again would add.
            let gone = new_bytes(*count, class, *bytes);
            self.bytes.all -= gone.all;
            self.bytes.best_effort -= gone.best_effort;
            if *count == [0; 2] {
                self.constants.remove(id);
            }
        }
        if charge.classes == [false; 2] {
            self.sets.remove(&set);
        }
    }
}

/// The bytes that one more set of a class adds through a constant that is in `counts` charged sets
/// already.
fn new_bytes(counts: [u32; 2], class: Class, bytes: u64) -> TenantBytes {
    TenantBytes {
        all: if counts == [0; 2] { bytes } else { 0 },
        best_effort: if class == Class::BestEffort && counts[class as usize] == 0 { bytes } else { 0 },
    }
}
