//! Policies that keep indexes of groups, on pools with many groups. In tests they compare each
//! choice with one that examines all groups; this file makes the choices. A failure prints the
//! seed.

use super::world::World;
use crate::ids::{Class, DeviceId, Nanos};
use crate::placement::*;
use crate::rng::Rng;

const POLICIES: [&str; 3] = ["static", "affinity", "exclusive"];
const DEVICES: u16 = 12;
const FUNCTIONS: u32 = 60;
const SEEDS: u64 = 12;
const EVENTS: usize = 1500;

pub(super) struct Run {
    pub(super) world: World,
    rng: Rng,
    /// Groups of the functions: more than devices, or fewer.
    groups: u64,
    requests: u64,
    functions: u32,
}

impl Run {
    pub(super) fn new(policy: &str, seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let steal = Steal { hysteresis: Nanos(rng.below(2) * 200), ..Steal::default() };
        let options = PoolOptions { seed, steal, ..PoolOptions::default() };
        let mut world = World::new(policy, options);
        for device in 0..DEVICES {
            let spec = DeviceSpec {
                kind: DeviceKind(device % 2),
                slots: 1 + rng.below(2) as u32,
                memory_bytes: 40 + 20 * rng.below(2),
            };
            world.add_device(device, spec);
        }
        let groups = [5, 25][rng.below(2) as usize];
        let mut run = Run { world, rng, groups, requests: 0, functions: 0 };
        (0..FUNCTIONS).for_each(|_| run.add_function());
        run
    }

    fn any_device(&mut self) -> DeviceId {
        DeviceId(self.rng.below(u64::from(DEVICES)) as u16)
    }

    fn any_group(&mut self) -> GroupId {
        GroupId(self.rng.below(self.groups) as u32)
    }

    fn any_function(&mut self) -> u32 {
        1 + self.rng.below(u64::from(self.functions)) as u32
    }

    fn add_function(&mut self) {
        let suits = match self.rng.below(8) {
            0 => Suits::Only((0..1 + self.rng.below(3)).map(|_| self.any_device()).collect()),
            _ => Suits::All,
        };
        let known = Expected { service: Some(Nanos(1 + self.rng.below(100))), reload: Some(Nanos(self.rng.below(90))) };
        let spec = FunctionSpec {
            group: self.any_group(),
            constant_bytes: self.rng.below(55),
            suits,
            expected: if self.rng.one_in(2) { vec![(DeviceKind(0), known)] } else { Vec::new() },
        };
        self.functions += 1;
        self.world.add_function(self.functions, spec);
    }

    fn arrive(&mut self) {
        self.requests += 1;
        let spec = RequestSpec {
            function: FunctionId(self.any_function()),
            class: if self.rng.one_in(12) { Class::RealTime } else { Class::BestEffort },
            is_batched: false,
            arrival: self.world.now,
            deadline: self.rng.one_in(8).then(|| Nanos(self.world.now.0 + self.rng.below(2000))),
            may_retry: true,
        };
        self.world.arrive(self.requests, spec);
    }

    fn finish_one(&mut self) {
        let in_flight: Vec<u64> =
            self.world.devices.values().flat_map(|device| &device.in_flight).map(|r| r.0).collect();
        if in_flight.is_empty() {
            return;
        }
        let request = in_flight[self.rng.below(in_flight.len() as u64) as usize];
        let end = match self.rng.below(20) {
            0 => RequestEnd::Failed { retryable: true },
            1 => RequestEnd::Refused { until: Nanos(self.world.now.0 + self.rng.below(300)) },
            _ => RequestEnd::Done { service: Nanos(self.rng.below(120)), loaded: None },
        };
        self.world.finish(request, end);
    }

    fn drain(&mut self, draining: bool) {
        let device = self.any_device();
        if let Some(state) = self.world.devices.get_mut(&device) {
            state.draining = draining;
        }
        self.world.send(match draining {
            true => PoolEvent::DeviceDraining { device },
            false => PoolEvent::DeviceResumed { device },
        });
    }

    fn lose_or_add(&mut self) {
        let device = self.any_device();
        if self.world.devices.contains_key(&device) {
            self.world.lose(device.0);
        } else {
            self.world.add_device(device.0, DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes: 60 });
        }
    }

    /// Most of the time more requests arrive than end, so that all groups have some waiting.
    pub(super) fn step(&mut self, busy: bool) {
        self.world.now.0 += self.rng.below(10);
        match self.rng.below(100) {
            0..50 if busy => self.arrive(),
            0..30 => self.arrive(),
            30..88 => self.finish_one(),
            88..90 => self.drain(true),
            90..94 => self.drain(false),
            94 => self.lose_or_add(),
            95 => self.add_function(),
            96 => {
                let function = FunctionId(self.any_function());
                self.world.send(PoolEvent::FunctionRemoved { function });
            }
            97 => {
                let (group, weight) = (self.any_group(), 1 + self.rng.below(4) as u32);
                self.world.send(PoolEvent::GroupWeight { group, weight });
            }
            98 => {
                let (device, function) = (self.any_device(), FunctionId(self.any_function()));
                self.world.send(PoolEvent::Evicted { device, function });
            }
            _ => self.world.send(PoolEvent::Tick),
        }
    }
}

#[test]
fn indexes_of_groups_find_what_a_scan_finds() {
    for policy in POLICIES {
        for seed in 1..SEEDS + 1 {
            let dispatched = std::panic::catch_unwind(|| {
                let mut run = Run::new(policy, seed);
                (0..EVENTS).for_each(|event| run.step(event % 500 < 300));
                run.world.dispatches().len()
            });
            let dispatched = dispatched.unwrap_or_else(|_| panic!("policy {policy}, seed {seed}"));
            assert!(dispatched > 200, "policy {policy}, seed {seed}: {dispatched} dispatches");
        }
    }
}
