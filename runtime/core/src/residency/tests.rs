//! Properties that hold for every policy of the table, tested on random events. A failure prints
//! its seed.

use super::*;
use crate::rng::Rng;

const SEEDS: u64 = 300;
const STEPS: u64 = 400;
const ITEMS: u64 = 24;

/// The expected state of an item on the device, kept apart from the code under test.
#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    reload_ns: u64,
    pins: u32,
    used_until: Option<Nanos>,
}

/// A device with a policy under test, and the expected state.
struct World {
    residency: Residency,
    known: BTreeMap<ItemId, Known>,
    rng: Rng,
    now: Nanos,
    /// Every victim, in order.
    victims: Vec<ItemId>,
    refused: u32,
}

impl World {
    fn new(policy: &ResidencyPolicyEntry, seed: u64) -> World {
        let residency = Residency::new((policy.make)());
        World { residency, known: BTreeMap::new(), rng: Rng::new(seed), now: Nanos(0), victims: Vec::new(), refused: 0 }
    }

    fn run(mut self) -> (Vec<ItemId>, u32) {
        for _ in 0..STEPS {
            self.now.0 += self.rng.below(50_000_000);
            self.step();
            let bytes: u64 = self.known.values().map(|known| known.bytes).sum();
            assert_eq!(self.residency.resident_bytes(), bytes);
            assert_eq!(self.residency.reclaimable_bytes(), self.reclaimable_bytes());
            assert_eq!(self.residency.warm(self.now), self.warm());
            for (&item, known) in &self.known {
                assert_eq!(self.residency.warm_until(self.now, item), self.warm_until(known));
            }
        }
        (self.victims, self.refused)
    }

    fn reclaimable_bytes(&self) -> u64 {
        self.known.values().filter(|known| known.pins == 0).map(|known| known.bytes).sum()
    }

    fn warm_until(&self, known: &Known) -> Option<Nanos> {
        let until = known.used_until.filter(|_| known.pins == 0)?.0 + known.reload_ns;
        (self.now.0 < until).then_some(Nanos(until))
    }

    fn warm(&self) -> Warm {
        let warm: Vec<(&Known, Nanos)> =
            self.known.values().filter_map(|known| Some((known, self.warm_until(known)?))).collect();
        Warm {
            bytes: warm.iter().map(|(known, _)| known.bytes).sum(),
            until: warm.iter().map(|(_, until)| *until).min(),
        }
    }

    fn step(&mut self) {
        let item = ItemId(self.rng.below(ITEMS));
        let choice = self.rng.below(12);
        let Some(known) = self.known.get_mut(&item) else {
            if choice < 6 {
                self.add(item);
            } else if choice == 6 {
                self.residency.forget(item);
            }
            return;
        };
        match choice {
            0..2 => self.residency.used(self.now, item),
            2 => {
                known.used_until = Some(self.now);
                self.residency.use_ended(self.now, item);
            }
            3..5 => {
                known.pins += 1;
                self.residency.pin(item);
            }
            5..7 if known.pins > 0 => {
                known.pins -= 1;
                self.residency.unpin(item);
            }
            5..7 => self.reclaim_one_of(),
            7 if known.pins == 0 => {
                self.known.remove(&item);
                if self.rng.one_in(2) { self.residency.remove(item) } else { self.residency.forget(item) }
            }
            8 | 9 => self.reclaim(),
            10.. => self.reclaim_cool(),
            _ => {}
        }
    }

    fn add(&mut self, item: ItemId) {
        let (bytes, reload_ns) = (self.rng.below(1000), self.rng.below(1 << 30));
        let class = if self.rng.one_in(3) { Class::RealTime } else { Class::BestEffort };
        self.residency.add(self.now, item, &ItemFacts { bytes, reload_ns, class });
        self.known.insert(item, Known { bytes, reload_ns, pins: 0, used_until: None });
    }

    fn reclaim_one_of(&mut self) {
        let items: Vec<ItemId> = (0..4).map(|_| ItemId(self.rng.below(ITEMS))).collect();
        let may_go = |item: &ItemId| self.known.get(item).is_some_and(|known| known.pins == 0);
        let victim = self.residency.reclaim_one_of(self.now, items.iter().copied());
        assert_eq!(victim.is_some(), items.iter().any(may_go));
        if let Some(victim) = victim {
            assert!(items.contains(&victim) && may_go(&victim), "a victim was not offered, or pinned");
            self.known.remove(&victim);
            self.victims.push(victim);
        }
    }

    fn reclaim_cool(&mut self) {
        let may_go: Vec<ItemId> = self
            .known
            .iter()
            .filter(|(_, known)| known.pins == 0 && self.warm_until(known).is_none())
            .map(|(item, _)| *item)
            .collect();
        let victim = self.residency.reclaim_cool(self.now);
        assert_eq!(victim.is_some(), !may_go.is_empty());
        if let Some(victim) = victim {
            assert!(may_go.contains(&victim), "a victim was pinned or warm");
            self.known.remove(&victim);
            self.victims.push(victim);
        }
    }

    fn reclaim(&mut self) {
        let wanted_bytes = self.rng.below(4000);
        let reclaimable_bytes = self.reclaimable_bytes();
        match self.residency.reclaim(self.now, wanted_bytes) {
            Err(refusal) => {
                assert!(wanted_bytes > reclaimable_bytes);
                assert_eq!(refusal, CannotReclaim { wanted_bytes, reclaimable_bytes });
                self.refused += 1;
            }
            Ok(victims) => {
                let mut freed = 0;
                for victim in &victims {
                    assert!(freed < wanted_bytes, "a victim was not needed");
                    let known = self.known.remove(victim).expect("a victim was on the device");
                    assert_eq!(known.pins, 0, "a victim was pinned");
                    freed += known.bytes;
                }
                assert!(freed >= wanted_bytes, "too few bytes");
                self.victims.extend(victims);
            }
        }
    }
}

#[test]
fn victims_are_unpinned_sufficient_and_deterministic() {
    for policy in RESIDENCY_POLICIES {
        let (mut victims, mut refused) = (0, 0);
        for seed in 0..SEEDS {
            let run = || World::new(policy, seed).run();
            let first = std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("policy {}, seed {seed}", policy.name));
            assert_eq!(first, run(), "policy {}, seed {seed}: another order", policy.name);
            victims += first.0.len();
            refused += first.1;
        }
        assert!(
            victims > 3_000 && refused > 300,
            "{}: the events cover too little: {victims} victims, {refused} refusals",
            policy.name
        );
    }
}

#[test]
fn names_are_unique_and_the_default_exists() {
    for (i, entry) in RESIDENCY_POLICIES.iter().enumerate() {
        assert!(
            RESIDENCY_POLICIES[..i].iter().all(|other| other.name != entry.name),
            "two policies are called {}",
            entry.name
        );
        assert!(!entry.about.is_empty());
    }
    assert!(residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).is_some());
    assert!(residency_policy_by_name("largest").is_none());
}
