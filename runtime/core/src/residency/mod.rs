//! Residency: which constants stay on the device, and which are reclaimed when memory is needed.
//!
//! [`Residency`] tracks which items are on the device and pinned; a [`ResidencyPolicy`] only ranks
//! the unpinned ones. So no policy can reclaim a pinned item, too few bytes, or an item that is not
//! there. Like the rest of the crate it is pure: the engine, the simulation of recorded mixes and
//! the tests drive the same code.
//!
//! To add a policy, write a file in this folder and a row in [`RESIDENCY_POLICIES`]. Its name then
//! works in configuration and in `atoll bench residency`, and the tests below cover it.
//!
//! This module does not know tenants and quotas: `memory` enforces quotas, and may restrict a
//! reclaim to some items.

mod cost;
mod two_level_lru;
mod warm;

use crate::ids::{Class, Nanos};
use std::collections::BTreeMap;
use warm::WarmItems;

/// The unit of residency: a constant set, used by one function or shared by several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub u64);

/// Facts about an item when it is loaded onto the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemFacts {
    /// Bytes on the device.
    pub bytes: u64,
    /// Time to load it again from the tier it would be reclaimed to, in nanoseconds.
    pub reload_ns: u64,
    /// The most urgent class of the functions that use it.
    pub class: Class,
}

/// Ranks reclaimable items. It also remembers items that are not on the device: use counts survive
/// a reclaim.
pub trait ResidencyPolicy: Send {
    /// The item was loaded onto the device. It becomes a candidate with
    /// [`ResidencyPolicy::include`].
    fn admit(&mut self, now: Nanos, item: ItemId, facts: &ItemFacts);

    /// An invocation uses the item, which is on the device.
    fn used(&mut self, now: Nanos, item: ItemId);

    /// The item is pinned: it is no candidate.
    fn exclude(&mut self, item: ItemId);

    /// The item is unpinned: it is a candidate.
    fn include(&mut self, item: ItemId);

    /// Removes and returns the least valuable candidate that passes `is_candidate`. The choice is
    /// deterministic.
    fn victim(&mut self, now: Nanos, is_candidate: &dyn Fn(ItemId) -> bool) -> Option<ItemId>;

    /// The least valuable of the given items that are candidates. It stays a candidate.
    fn least_of(&self, now: Nanos, items: &mut dyn Iterator<Item = ItemId>) -> Option<ItemId>;

    /// The item, pinned or not, leaves the device without having been a victim.
    fn removed(&mut self, item: ItemId);

    /// An item that is not on the device will not be loaded again.
    fn forget(&mut self, item: ItemId);
}

/// One row of the policy table.
#[derive(Clone, Copy, Debug)]
pub struct ResidencyPolicyEntry {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A description in one line, for help texts.
    pub about: &'static str,
    /// Creates the policy.
    pub make: fn() -> Box<dyn ResidencyPolicy>,
}

/// All policies.
pub const RESIDENCY_POLICIES: &[ResidencyPolicyEntry] = &[
    ResidencyPolicyEntry {
        name: "cost",
        about: "keeps items that cost most to reload, per byte and weighted by how soon they are likely to be used",
        make: || Box::new(cost::Cost::default()),
    },
    ResidencyPolicyEntry {
        name: "two-level-lru",
        about: "reclaims the least recently used item first, items used more than twice last",
        make: || Box::new(two_level_lru::TwoLevelLru::default()),
    },
];

/// The default policy.
pub const RESIDENCY_POLICY_DEFAULT: &str = "cost";

/// The policy with a name.
pub fn residency_policy_by_name(name: &str) -> Option<&'static ResidencyPolicyEntry> {
    RESIDENCY_POLICIES.iter().find(|entry| entry.name == name)
}

/// Too few bytes can be reclaimed: all other items are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotReclaim {
    /// Bytes that were requested.
    pub wanted_bytes: u64,
    /// Bytes of unpinned items.
    pub reclaimable_bytes: u64,
}

/// The items on a device.
pub struct Residency {
    policy: Box<dyn ResidencyPolicy>,
    resident: BTreeMap<ItemId, Resident>,
    resident_bytes: u64,
    reclaimable_bytes: u64,
    /// Unpinned items that were warm when they were last checked.
    warm: WarmItems,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    bytes: u64,
    reload_ns: u64,
    /// Invocations that need it on the device.
    pins: u32,
    /// When the last use of it ended.
    used_until: Option<Nanos>,
}

/// Warm items: unpinned items whose last use ended less long ago than a reload would take. This is
/// the ski-rental rule (buy once the rent paid equals the price): keeping an item for that long
/// costs at most twice the optimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warm {
    /// Bytes of all warm items.
    pub bytes: u64,
    /// When the first of them stops being warm.
    pub until: Option<Nanos>,
}

impl Resident {
    /// When it stops being warm, possibly in the past; `None` while it is in use and if it was
    /// never used.
    fn cools_at(&self) -> Option<Nanos> {
        let used_until = self.used_until.filter(|_| self.pins == 0)?;
        Some(Nanos(used_until.0.saturating_add(self.reload_ns)))
    }

    /// Until when it is warm; `None` if it is not, or is in use.
    fn warm_until(&self, now: Nanos) -> Option<Nanos> {
        self.cools_at().filter(|until| now < *until)
    }
}

impl Residency {
    /// An empty device.
    pub fn new(policy: Box<dyn ResidencyPolicy>) -> Residency {
        Residency {
            policy,
            resident: BTreeMap::new(),
            resident_bytes: 0,
            reclaimable_bytes: 0,
            warm: WarmItems::default(),
        }
    }

    /// Adds an unpinned item that was loaded onto the device.
    pub fn add(&mut self, now: Nanos, item: ItemId, facts: &ItemFacts) {
        let &ItemFacts { bytes, reload_ns, .. } = facts;
        let before = self.resident.insert(item, Resident { bytes, reload_ns, pins: 0, used_until: None });
        assert!(before.is_none(), "an item is added once");
        self.resident_bytes += facts.bytes;
        self.reclaimable_bytes += facts.bytes;
        self.policy.admit(now, item, facts);
        self.policy.include(item);
    }

    /// An invocation starts using an item on the device.
    pub fn used(&mut self, now: Nanos, item: ItemId) {
        self.expect(item);
        self.policy.used(now, item);
    }

    /// An invocation that used an item on the device is over.
    pub fn use_ended(&mut self, now: Nanos, item: ItemId) {
        self.change(item, |resident| resident.used_until = Some(now));
    }

    /// Keeps the item on the device until [`Residency::unpin`]. Pins are counted.
    pub fn pin(&mut self, item: ItemId) {
        let resident = self.change(item, |resident| resident.pins += 1);
        if resident.pins == 1 {
            self.reclaimable_bytes -= resident.bytes;
            self.policy.exclude(item);
        }
    }

    /// Undoes one [`Residency::pin`].
    pub fn unpin(&mut self, item: ItemId) {
        let resident = self.change(item, |resident| {
            resident.pins = resident.pins.checked_sub(1).expect("an item that is unpinned was pinned")
        });
        if resident.pins == 0 {
            self.reclaimable_bytes += resident.bytes;
            self.policy.include(item);
        }
    }

    /// Removes an unpinned item from the device for a reason other than reclaim. Its use counts are
    /// kept.
    pub fn remove(&mut self, item: ItemId) {
        assert_eq!(self.expect(item).pins, 0, "a pinned item is not removed");
        self.policy.removed(item);
        self.drop_resident(item);
    }

    /// Removes an item that was lost with the device's memory, with its pins. Its use counts are
    /// kept.
    pub fn lose(&mut self, item: ItemId) {
        let pins = self.expect(item).pins;
        let resident = self.change(item, |resident| resident.pins = 0);
        if pins > 0 {
            self.reclaimable_bytes += resident.bytes;
            self.policy.include(item);
        }
        self.remove(item);
    }

    /// Removes an item, whether it is on the device or not. Every added item has to be removed
    /// eventually, or memory grows.
    pub fn forget(&mut self, item: ItemId) {
        if self.resident.contains_key(&item) {
            self.remove(item);
        }
        self.policy.forget(item);
    }

    /// Reclaims items until at least `wanted_bytes` more are free, and returns them in the order of
    /// reclaim. Takes no more items than needed in the order of the policy; takes none if all
    /// reclaimable items are too few.
    pub fn reclaim(&mut self, now: Nanos, wanted_bytes: u64) -> Result<Vec<ItemId>, CannotReclaim> {
        if wanted_bytes > self.reclaimable_bytes {
            return Err(CannotReclaim { wanted_bytes, reclaimable_bytes: self.reclaimable_bytes });
        }
        let mut victims = Vec::new();
        let mut freed_bytes = 0;
        while freed_bytes < wanted_bytes {
            let victim = self.policy.victim(now, &|_| true).expect("a reclaimable item is a candidate");
            assert_eq!(self.expect(victim).pins, 0, "a policy picks no pinned item");
            freed_bytes += self.drop_resident(victim);
            victims.push(victim);
        }
        Ok(victims)
    }

    /// Reclaims the least valuable of these items; `None` if none of them is on the device and
    /// unpinned.
    pub fn reclaim_one_of(&mut self, now: Nanos, mut items: impl Iterator<Item = ItemId>) -> Option<ItemId> {
        let victim = self.policy.least_of(now, &mut items)?;
        self.remove(victim);
        Some(victim)
    }

    /// Whether the item is on the device.
    pub fn contains(&self, item: ItemId) -> bool {
        self.resident.contains_key(&item)
    }

    /// Bytes of all items on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Bytes of unpinned items on the device.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable_bytes
    }

    /// Until when an unpinned item is warm; `None` if it is not.
    pub fn warm_until(&self, now: Nanos, item: ItemId) -> Option<Nanos> {
        self.resident.get(&item)?.warm_until(now)
    }

    /// The warm items with the times until which they are warm, earliest first.
    pub fn warm_items(&self, now: Nanos) -> impl Iterator<Item = (Nanos, ItemId)> {
        self.warm.items(now)
    }

    /// Total of the warm items.
    pub fn warm(&mut self, now: Nanos) -> Warm {
        self.warm.at(now)
    }

    /// Reclaims the least valuable unpinned item that is not warm; `None` if there is none.
    pub fn reclaim_cool(&mut self, now: Nanos) -> Option<ItemId> {
        let resident = &self.resident;
        let victim = self.policy.victim(now, &|item| resident[&item].warm_until(now).is_none())?;
        assert_eq!(self.expect(victim).pins, 0, "a policy picks no pinned item");
        self.drop_resident(victim);
        Some(victim)
    }

    fn expect(&self, item: ItemId) -> Resident {
        *self.resident.get(&item).expect("the item is on the device")
    }

    /// Changes an item on the device, updates whether it is warm, and returns its new state.
    fn change(&mut self, item: ItemId, change: impl FnOnce(&mut Resident)) -> Resident {
        let resident = self.resident.get_mut(&item).expect("the item is on the device");
        let before = resident.cools_at();
        change(resident);
        let after = *resident;
        self.warm.moved(item, after.bytes, before, after.cools_at());
        after
    }

    /// Removes an unpinned item; returns its bytes.
    fn drop_resident(&mut self, item: ItemId) -> u64 {
        let resident = self.resident.remove(&item).expect("the item is on the device");
        self.warm.moved(item, resident.bytes, resident.cools_at(), None);
        self.resident_bytes -= resident.bytes;
        self.reclaimable_bytes -= resident.bytes;
        resident.bytes
    }
}

#[cfg(test)]
mod tests;
