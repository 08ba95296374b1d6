//! The time of one placement: a request arrives and an earlier one finishes, with 64 devices
//! (budget: 5 µs) and 1,000 devices (budget: 1 µs).
//!
//! `cargo bench -p atoll-core --bench placement`

use atoll_core::placement::*;
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceId, Nanos};
use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::black_box;

const FUNCTIONS: u32 = 200;
const SERVICE_NS: u64 = 1_000_000;

/// A pool whose devices are all busy, with one waiting request per device.
struct Driver {
    pool: Pool,
    actions: Vec<PoolAction>,
    in_flight: VecDeque<(RequestId, DeviceId)>,
    rng: Rng,
    now: u64,
    requests: u64,
    functions: u32,
}

impl Driver {
    fn new(policy: &str, devices: u16, functions: u32) -> Driver {
        let policy = placement_by_name(policy).expect("a policy");
        let mut driver = Driver {
            pool: Pool::new(PoolConfig::new(policy)),
            actions: Vec::new(),
            in_flight: VecDeque::new(),
            rng: Rng::new(1),
            now: 0,
            requests: 0,
            functions,
        };
        for device in 0..devices {
            // A fifth of all functions fits.
            let memory_bytes = u64::from((functions / 5).max(1));
            let spec = DeviceSpec { kind: DeviceKind(0), slots: 1, memory_bytes };
            driver.send(PoolEvent::DeviceAdded { device: DeviceId(device), spec });
        }
        for function in 0..functions {
            let expected = Expected { service: Some(Nanos(SERVICE_NS)), reload: Some(Nanos(SERVICE_NS)) };
            let spec = FunctionSpec {
                group: GroupId(function),
                constant_bytes: 1,
                suits: Suits::All,
                expected: vec![(DeviceKind(0), expected)],
            };
            driver.send(PoolEvent::FunctionAdded { function: FunctionId(function), spec });
        }
        for device in 0..devices {
            for _ in 0..(functions / 5).max(1) {
                let function = FunctionId(driver.rng.below(u64::from(functions)) as u32);
                driver.send(PoolEvent::Resident { device: DeviceId(device), function });
            }
        }
        (0..2 * devices).for_each(|_| driver.arrive());
        (0..8 * devices).for_each(|_| driver.place());
        driver
    }

    fn send(&mut self, event: PoolEvent) {
        self.pool.handle(Nanos(self.now), event, &mut self.actions);
        for action in self.actions.drain(..) {
            match action {
                PoolAction::Dispatch { request, device } => self.in_flight.push_back((request, device)),
                other => _ = black_box(other),
            }
        }
    }

    fn arrive(&mut self) {
        self.requests += 1;
        let spec = RequestSpec {
            function: FunctionId(self.rng.below(u64::from(self.functions)) as u32),
            class: Class::BestEffort,
            arrival: Nanos(self.now),
            deadline: None,
            may_retry: true,
        };
        self.send(PoolEvent::Arrived { request: RequestId(self.requests), spec });
    }

    /// One placement: a request finishes, the next one is dispatched, and another one arrives.
    fn place(&mut self) {
        self.now += 1000;
        let Some((request, device)) = self.in_flight.pop_front() else { return };
        let end = RequestEnd::Done { service: Nanos(SERVICE_NS), loaded: None };
        self.send(PoolEvent::Finished { request, device, end });
        self.arrive();
    }
}

fn placement(criterion: &mut Criterion) {
    for entry in PLACEMENTS {
        for (devices, functions) in [(64, 1), (64, FUNCTIONS), (1000, FUNCTIONS)] {
            let mut driver = Driver::new(entry.name, devices, functions);
            let name = format!("placement/{}/{devices} devices/{functions} functions", entry.name);
            criterion.bench_function(&name, |bencher| bencher.iter(|| driver.place()));
        }
    }
}

criterion_group!(benches, placement);
criterion_main!(benches);
