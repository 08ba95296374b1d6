//! Residency: which constants stay on the device, and which have to go when bytes are needed.
//!
//! [`Residency`] knows what lies on the device and what is pinned; a [`ResidencyPolicy`] only says
//! whom it would miss least. So no policy can pick a pinned item, give too few bytes, or take what
//! is not there. Pure like everything here: the engine, the simulation of recorded mixes and the
//! tests drive the same code.
//!
//! To add a policy, write a file beside this one and a row in [`RESIDENCY_POLICIES`]: its name then
//! works in configuration and in `atoll bench residency`, and the tests below cover it.
//!
//! There is no tenant here: whose bytes count against which quota is decided outside, which may
//! then ask for a victim among some items only.

mod cost;
mod two_level_lru;
mod warm;

use crate::ids::{Class, Nanos};
use std::collections::BTreeMap;
use warm::WarmItems;

/// What comes and goes as one: the constants of a function, or of all functions that share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub u64);

/// What is known of an item when it comes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemFacts {
    /// Bytes on the device.
    pub bytes: u64,
    /// How long it would take to bring it back from the tier it would go to.
    pub reload_ns: u64,
    /// The most urgent class that uses it.
    pub class: Class,
}

/// Ranks items that may go. It is told of every item that is known, also of those that are not on
/// the device: how often something was used survives its eviction.
pub trait ResidencyPolicy: Send {
    /// The item came to the device. It is no candidate before [`ResidencyPolicy::release`].
    fn admit(&mut self, now: Nanos, item: ItemId, facts: &ItemFacts);

    /// An invocation uses the item, which is on the device.
    fn used(&mut self, now: Nanos, item: ItemId);

    /// The item may not go for now.
    fn hold(&mut self, item: ItemId);

    /// The item may go.
    fn release(&mut self, item: ItemId);

    /// Takes the candidate that would be missed least of those that `may_go` lets pass; it leaves
    /// the device. Equal ones go in an order that depends on nothing but the events.
    fn victim(&mut self, now: Nanos, may_go: &dyn Fn(ItemId) -> bool) -> Option<ItemId>;

    /// Which of these candidates would be missed least. It stays one.
    fn least_of(&self, now: Nanos, candidates: &[ItemId]) -> Option<ItemId>;

    /// The item, held or not, leaves the device without having been a victim.
    fn leave(&mut self, item: ItemId);

    /// An item that is not on the device will not come back.
    fn forget(&mut self, item: ItemId);
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ResidencyPolicyEntry {
    /// The name it is selected by.
    pub name: &'static str,
    /// What it does, in one line for help texts.
    pub about: &'static str,
    /// Makes one.
    pub make: fn() -> Box<dyn ResidencyPolicy>,
}

/// All policies.
pub const RESIDENCY_POLICIES: &[ResidencyPolicyEntry] = &[
    ResidencyPolicyEntry {
        name: "cost",
        about: "keeps what would cost most to bring back, per byte and weighted by how soon it is likely to be used",
        make: || Box::new(cost::Cost::default()),
    },
    ResidencyPolicyEntry {
        name: "two-level-lru",
        about: "the least recently used goes first, what was used more than twice goes last",
        make: || Box::new(two_level_lru::TwoLevelLru::default()),
    },
];

/// The name of the policy used where none is named.
pub const RESIDENCY_POLICY_DEFAULT: &str = "cost";

/// The policy of this name.
pub fn residency_policy_by_name(name: &str) -> Option<&'static ResidencyPolicyEntry> {
    RESIDENCY_POLICIES.iter().find(|entry| entry.name == name)
}

/// Bytes were wanted that no eviction can give: the rest is pinned or was never there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotReclaim {
    /// Bytes that were asked for.
    pub wanted_bytes: u64,
    /// Bytes of items that may go.
    pub reclaimable_bytes: u64,
}

/// What lies on the device.
pub struct Residency {
    policy: Box<dyn ResidencyPolicy>,
    resident: BTreeMap<ItemId, Resident>,
    resident_bytes: u64,
    reclaimable_bytes: u64,
    /// Unpinned items whose last use ended a moment ago, or did when they were looked at last.
    warm: WarmItems,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    bytes: u64,
    reload_ns: u64,
    /// Invocations that need it in place.
    pins: u32,
    /// When the last use of it ended.
    used_until: Option<Nanos>,
}

/// Items that may go and were in use a moment ago: less long ago than it would take to bring them
/// back. The rule is that of renting skis, which are bought when the rent has come to their
/// price: for an item by itself, keeping it for so long costs at most twice what could not be
/// avoided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warm {
    /// All of them together.
    pub bytes: u64,
    /// When the first of them will not be one any more.
    pub until: Option<Nanos>,
}

impl Resident {
    /// When it stops to count as in use a moment ago, past times included; `None` while it is in
    /// use and if it never was.
    fn cools_at(&self) -> Option<Nanos> {
        let used_until = self.used_until.filter(|_| self.pins == 0)?;
        Some(Nanos(used_until.0.saturating_add(self.reload_ns)))
    }

    /// Until when it counts as in use a moment ago; `None` if it does not, which is so while it is
    /// in use as well.
    fn warm_until(&self, now: Nanos) -> Option<Nanos> {
        self.cools_at().filter(|until| now < *until)
    }
}

impl Residency {
    /// Nothing is on the device.
    pub fn new(policy: Box<dyn ResidencyPolicy>) -> Residency {
        Residency {
            policy,
            resident: BTreeMap::new(),
            resident_bytes: 0,
            reclaimable_bytes: 0,
            warm: WarmItems::default(),
        }
    }

    /// An item, which was not on the device, is there now, unpinned.
    pub fn add(&mut self, now: Nanos, item: ItemId, facts: &ItemFacts) {
        let &ItemFacts { bytes, reload_ns, .. } = facts;
        let before = self.resident.insert(item, Resident { bytes, reload_ns, pins: 0, used_until: None });
        assert!(before.is_none(), "an item comes to the device once");
        self.resident_bytes += facts.bytes;
        self.reclaimable_bytes += facts.bytes;
        self.policy.admit(now, item, facts);
        self.policy.release(item);
    }

    /// An invocation begins to use an item on the device.
    pub fn used(&mut self, now: Nanos, item: ItemId) {
        self.expect(item);
        self.policy.used(now, item);
    }

    /// An invocation that used an item on the device is over.
    pub fn use_ended(&mut self, now: Nanos, item: ItemId) {
        self.change(item, |resident| resident.used_until = Some(now));
    }

    /// The item on the device stays there until [`Residency::unpin`]. Pins count.
    pub fn pin(&mut self, item: ItemId) {
        let resident = self.change(item, |resident| resident.pins += 1);
        if resident.pins == 1 {
            self.reclaimable_bytes -= resident.bytes;
            self.policy.hold(item);
        }
    }

    /// Takes back one [`Residency::pin`].
    pub fn unpin(&mut self, item: ItemId) {
        let resident = self.change(item, |resident| {
            resident.pins = resident.pins.checked_sub(1).expect("what is unpinned was pinned")
        });
        if resident.pins == 0 {
            self.reclaimable_bytes += resident.bytes;
            self.policy.release(item);
        }
    }

    /// The item left the device for a reason of its own. It may come back, and how it was used is
    /// remembered.
    pub fn remove(&mut self, item: ItemId) {
        assert_eq!(self.expect(item).pins, 0, "a pinned item stays");
        self.policy.leave(item);
        self.drop_resident(item);
    }

    /// The item was lost with the device's memory, also where it was pinned: those pins are gone
    /// with it. How it was used is remembered.
    pub fn lose(&mut self, item: ItemId) {
        let pins = self.expect(item).pins;
        let resident = self.change(item, |resident| resident.pins = 0);
        if pins > 0 {
            self.reclaimable_bytes += resident.bytes;
            self.policy.release(item);
        }
        self.remove(item);
    }

    /// The item is gone for good, whether or not it was on the device. Whoever adds items has to
    /// forget them, or what is remembered grows.
    pub fn forget(&mut self, item: ItemId) {
        if self.resident.contains_key(&item) {
            self.remove(item);
        }
        self.policy.forget(item);
    }

    /// Takes items off the device until `wanted_bytes` are free that were not, and names them,
    /// first to go first. No item is taken that is not needed in the order of the policy; if
    /// all that may go are too few, none is.
    pub fn reclaim(&mut self, now: Nanos, wanted_bytes: u64) -> Result<Vec<ItemId>, CannotReclaim> {
        if wanted_bytes > self.reclaimable_bytes {
            return Err(CannotReclaim { wanted_bytes, reclaimable_bytes: self.reclaimable_bytes });
        }
        let mut victims = Vec::new();
        let mut freed_bytes = 0;
        while freed_bytes < wanted_bytes {
            let victim = self.policy.victim(now, &|_| true).expect("what may go is a candidate");
            assert_eq!(self.expect(victim).pins, 0, "a policy picks no pinned item");
            freed_bytes += self.drop_resident(victim);
            victims.push(victim);
        }
        Ok(victims)
    }

    /// Takes the one of these items off the device that would be missed least; `None` if none of
    /// them is there and unpinned.
    pub fn reclaim_one_of(&mut self, now: Nanos, items: &[ItemId]) -> Option<ItemId> {
        let may_go = |item: &ItemId| self.resident.get(item).is_some_and(|resident| resident.pins == 0);
        let candidates: Vec<ItemId> = items.iter().copied().filter(may_go).collect();
        let victim = self.policy.least_of(now, &candidates)?;
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

    /// Bytes of those that may go.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable_bytes
    }

    /// Until when an item that may go counts as in use a moment ago; `None` if it does not.
    pub fn warm_until(&self, now: Nanos, item: ItemId) -> Option<Nanos> {
        self.resident.get(&item)?.warm_until(now)
    }

    /// The items that may go and were in use a moment ago, with the time until which they count so,
    /// the first first.
    pub fn warm_items(&self, now: Nanos) -> impl Iterator<Item = (Nanos, ItemId)> {
        self.warm.items(now)
    }

    /// What may go and was in use a moment ago.
    pub fn warm(&mut self, now: Nanos) -> Warm {
        self.warm.at(now)
    }

    /// Takes the item off the device that would be missed least of those that may go and were not
    /// in use a moment ago; `None` if there is none.
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

    /// Changes what is known of an item on the device, and with it whether it was in use a moment
    /// ago; returns what is known now.
    fn change(&mut self, item: ItemId, change: impl FnOnce(&mut Resident)) -> Resident {
        let resident = self.resident.get_mut(&item).expect("the item is on the device");
        let before = resident.cools_at();
        change(resident);
        let after = *resident;
        self.warm.moved(item, after.bytes, before, after.cools_at());
        after
    }

    /// Forgets that an unpinned item was on the device, and says how large it was.
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
