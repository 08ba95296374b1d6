//! Random events with faults against all policies. A failure prints the seed; `ATOLL_SEED=N` runs
//! it again.

use super::world::World;
use crate::ids::{Class, DeviceId, Nanos};
use crate::placement::*;
use crate::rng::Rng;

const SEEDS: u64 = 30;
const EVENTS: usize = 1000;

/// Policies that leave no device idle while a request that it can run is waiting.
const WORK_CONSERVING: [&str; 4] = ["balance", "srtf", "mlfqs", "affinity"];

pub(super) struct Run {
    pub(super) world: World,
    rng: Rng,
    policy: &'static str,
    requests: u64,
    functions: u32,
}

impl Run {
    pub(super) fn new(policy: &'static str, seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let steal = Steal {
            measure: [StealMeasure::Never, StealMeasure::Depth, StealMeasure::Rate][rng.below(3) as usize],
            percent: 150,
            hysteresis: Nanos(rng.below(2) * 500),
        };
        let options = PoolOptions { seed, steal, ..PoolOptions::default() };
        let mut run = Run { world: World::new(policy, options), rng, policy, requests: 0, functions: 0 };
        for _ in 0..run.rng.below(4) {
            run.add_device();
        }
        for _ in 0..1 + run.rng.below(6) {
            run.add_function();
        }
        run
    }

    fn add_device(&mut self) {
        let free = (0..6).find(|id| !self.world.devices.contains_key(&DeviceId(*id)));
        let Some(device) = free else { return };
        let spec = DeviceSpec {
            kind: DeviceKind(self.rng.below(2) as u16),
            slots: 1 + self.rng.below(3) as u32,
            memory_bytes: 50 + 50 * self.rng.below(3),
        };
        self.world.add_device(device, spec);
    }

    fn add_function(&mut self) {
        let suits = match self.rng.below(3) {
            0 => Suits::Only((0..1 + self.rng.below(2)).map(|_| DeviceId(self.rng.below(6) as u16)).collect()),
            _ => Suits::All,
        };
        let known = Expected { service: Some(Nanos(1 + self.rng.below(100))), reload: Some(Nanos(self.rng.below(90))) };
        let spec = FunctionSpec {
            group: GroupId(self.rng.below(4) as u32),
            constant_bytes: self.rng.below(160),
            suits,
            expected: if self.rng.one_in(2) { vec![(DeviceKind(0), known)] } else { Vec::new() },
        };
        self.functions += 1;
        self.world.add_function(self.functions, spec);
    }

    fn any_function(&mut self) -> FunctionId {
        FunctionId(1 + self.rng.below(u64::from(self.functions)) as u32)
    }

    fn any_device(&mut self) -> DeviceId {
        DeviceId(self.rng.below(6) as u16)
    }

    fn arrive(&mut self) {
        let now = self.world.now.0;
        let future = self.rng.one_in(10);
        let spec = RequestSpec {
            function: self.any_function(),
            class: if self.rng.one_in(5) { Class::RealTime } else { Class::BestEffort },
            is_batched: false,
            arrival: Nanos(if future { now + self.rng.below(50) } else { now }),
            deadline: self.rng.one_in(6).then(|| Nanos(now + self.rng.below(300))),
            may_retry: self.rng.one_in(2),
        };
        self.requests += 1;
        self.world.arrive(self.requests, spec);
    }

    fn finish_one(&mut self) {
        let in_flight: Vec<u64> =
            self.world.devices.values().flat_map(|device| &device.in_flight).map(|r| r.0).collect();
        if in_flight.is_empty() {
            return;
        }
        let request = in_flight[self.rng.below(in_flight.len() as u64) as usize];
        let loaded = self.rng.one_in(3).then(|| Nanos(self.rng.below(80)));
        let end = match self.rng.below(12) {
            0 => RequestEnd::Failed { retryable: true },
            1 => RequestEnd::Failed { retryable: false },
            2 => RequestEnd::Refused { until: Nanos(self.world.now.0 + self.rng.below(60)) },
            _ => RequestEnd::Done { service: Nanos(self.rng.below(100)), loaded },
        };
        // After a retryable failure or a refusal, the pool rejects a request that it does not
        // retry.
        self.world.finish(request, end);
    }

    pub(super) fn step(&mut self) {
        self.world.now.0 += self.rng.below(20);
        let (device, function) = (self.any_device(), self.any_function());
        match self.rng.below(100) {
            0..40 => self.arrive(),
            40..78 => self.finish_one(),
            78..80 => self.add_device(),
            80..82 if self.world.devices.contains_key(&device) => self.world.lose(device.0),
            82..85 => self.drain(device, true),
            85..89 => self.drain(device, false),
            89..91 => self.add_function(),
            91 if self.world.functions.len() > 3 => self.world.send(PoolEvent::FunctionRemoved { function }),
            92..94 => self.cancel(),
            94..97 => self.world.send(PoolEvent::Evicted { device, function }),
            97..98 => self.world.send(PoolEvent::GroupWeight { group: GroupId(function.0 % 4), weight: 3 }),
            98..99 => self.stale(),
            _ => self.world.send(PoolEvent::Tick),
        }
        if self.world.pool.wakeup().is_some_and(|at| at <= self.world.now) {
            // No event was sent at this time.
            self.world.send(PoolEvent::Tick);
        }
        self.check_idle();
    }

    fn drain(&mut self, device: DeviceId, draining: bool) {
        if let Some(state) = self.world.devices.get_mut(&device) {
            state.draining = draining;
        }
        self.world.send(match draining {
            true => PoolEvent::DeviceDraining { device },
            false => PoolEvent::DeviceResumed { device },
        });
    }

    /// Cancels a random request. A waiting request ends at once.
    fn cancel(&mut self) {
        let request = RequestId(1 + self.rng.below(self.requests + 1));
        let waits = self.world.requests.get(&request).is_some_and(|sent| sent.ended.is_none() && sent.on.is_none());
        if waits {
            self.world.end(request, "cancelled");
        }
        self.world.send(PoolEvent::Cancelled { request });
    }

    /// Reports the end of a request on a device on which it is not in flight.
    fn stale(&mut self) {
        let (request, device) = (RequestId(1 + self.rng.below(self.requests + 1)), self.any_device());
        if self.world.requests.get(&request).is_none_or(|sent| sent.on != Some(device)) {
            let end = RequestEnd::Done { service: Nanos(1), loaded: None };
            self.world.send(PoolEvent::Finished { request, device, end });
        }
    }

    fn check_idle(&self) {
        let world = &self.world;
        assert_eq!(world.pool.wakeup().filter(|at| *at <= world.now), None, "nothing that is due is left");
        for (id, device) in &world.devices {
            assert_eq!(world.pool.in_flight(*id), device.in_flight.len());
        }
        if !WORK_CONSERVING.contains(&self.policy) {
            return;
        }
        for (id, sent) in world.waiting().filter(|(_, sent)| sent.spec.arrival <= world.now) {
            let function = &world.functions[&sent.spec.function];
            for (device, state) in &world.devices {
                let taken = |r: &&RequestId| world.requests[r].spec.class == Class::BestEffort;
                let refuses = world.refusals.get(&(sent.spec.function, *device)).is_some_and(|at| *at > world.now);
                let idle = !state.draining
                    && !refuses
                    && state.in_flight.iter().filter(taken).count() < state.spec.slots as usize
                    && function.constant_bytes <= state.spec.memory_bytes
                    && function.suits.contains(*device);
                assert!(!idle, "{id:?} waits although {device:?} is free");
            }
        }
    }

    /// Brings all devices back and finishes all requests in flight, after which every request has
    /// ended.
    fn settle(&mut self) {
        for id in 0..6 {
            if self.world.devices.contains_key(&DeviceId(id)) {
                self.drain(DeviceId(id), false);
            } else {
                self.world.add_device(id, DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes: 150 });
            }
        }
        for _ in 0..20 * self.requests + 100 {
            self.world.now.0 += 10;
            let in_flight = self.world.devices.values().find_map(|device| device.in_flight.first().copied());
            match in_flight {
                Some(request) => self.world.done(request.0, 10),
                None => self.world.send(PoolEvent::Tick),
            }
            if self.world.requests.values().all(|sent| sent.ended.is_some()) {
                break;
            }
        }
        let open: Vec<_> = self.world.requests.iter().filter(|(_, sent)| sent.ended.is_none()).collect();
        assert!(open.is_empty(), "requests that never end: {open:?}");
        assert_eq!(self.world.pool.waiting(), 0);
        assert_eq!(self.world.pool.wakeup(), None);
    }
}

#[test]
fn no_request_is_lost_or_runs_twice_whatever_happens() {
    let seeds = match std::env::var("ATOLL_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("ATOLL_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 1..SEEDS + 1,
    };
    for entry in PLACEMENTS {
        for seed in seeds.clone() {
            let failed = std::panic::catch_unwind(|| {
                let mut run = Run::new(entry.name, seed);
                (0..EVENTS).for_each(|_| run.step());
                run.settle();
            });
            assert!(failed.is_ok(), "policy {}: replay with ATOLL_SEED={seed}", entry.name);
        }
    }
}
