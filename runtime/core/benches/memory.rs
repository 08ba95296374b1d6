//! The time of one memory decision with 1,000 functions, of which a quarter fits (budget: 2 µs).
//!
//! `cargo bench -p atoll-core --bench memory`

use atoll_core::memory::{
    Action, ConstantSpec, Event, FunctionId, FunctionSpec, InvocationSpec, Memory, MemoryQuotas, MemorySpec, StageSpec,
};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, Residency, residency_policy_by_name};
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceOffset, Nanos, TaskId, Tenant};
use criterion::{Criterion, criterion_group, criterion_main};
use std::time::{Duration, Instant};

const FUNCTIONS: u64 = 1_000;
const CONSTANT_BYTES: u64 = 256 << 10;

/// Memory decisions with an engine that does everything at once.
struct Driver {
    memory: Memory,
    rng: Rng,
    now: u64,
    ready: bool,
    /// Events told so far: each is a decision.
    events: u32,
}

impl Driver {
    fn new() -> Driver {
        let constants_bytes = FUNCTIONS / 4 * CONSTANT_BYTES;
        let spec = MemorySpec {
            memory_bytes: constants_bytes,
            constants_base: DeviceOffset(1 << 40),
            constants_bytes,
            constants_granule: 4096,
            limit_bytes: None,
            overcommit: 8.0,
        };
        let policy = residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is a policy");
        let mut memory = Memory::new(&spec, Residency::new((policy.make)()), MemoryQuotas::default());
        for function in 0..FUNCTIONS {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&function.to_le_bytes());
            let constants = vec![ConstantSpec { digest, bytes: CONSTANT_BYTES, offset: 0 }];
            let spec = FunctionSpec { function: FunctionId(function), tenant: Tenant::default(), class: Class::BestEffort, constants };
            memory.join(spec).expect("there is room for all functions");
        }
        Driver { memory, rng: Rng::new(1), now: 0, ready: false, events: 0 }
    }

    fn tell(&mut self, event: Event) {
        self.note(event);
        while let Some(action) = self.memory.next_action() {
            match action {
                Action::Admitted { ready, .. } => self.ready = ready,
                Action::Ready { .. } => self.ready = true,
                Action::Reserve { set, generation, .. } => self.note(Event::Reserved { set, generation, refused: None }),
                Action::Stage { set, .. } => self.note(Event::Staged { set, end: usize::MAX }),
                Action::Write { from, .. } => self.note(Event::Written { bytes: from.len() as u64, took_ns: 50_000 }),
                Action::Begin { task } => self.note(Event::Prepared { task }),
                _ => {}
            }
        }
    }

    fn note(&mut self, event: Event) {
        self.now += 1_000;
        self.events += 1;
        self.memory.handle(Nanos(self.now), event);
    }

    /// A request from its arrival to its end.
    fn request(&mut self, function: u64) {
        let task = TaskId(self.now);
        let stages = vec![StageSpec { function: FunctionId(function), shape: Box::new([1]), bytes: 4096 }];
        self.tell(Event::Arrived(InvocationSpec { task, class: Class::BestEffort, tenant: Tenant::default(), stages }));
        while !std::mem::take(&mut self.ready) {
            self.tell(Event::Advance);
        }
        self.tell(Event::Prepare { task });
        self.tell(Event::Left { task });
        self.tell(Event::Resume);
    }

    /// The mean time of a decision over so many requests for any of these functions.
    fn time(&mut self, requests: u64, functions: u64) -> Duration {
        let (begin, before) = (Instant::now(), self.events);
        for _ in 0..requests {
            let function = self.rng.below(functions);
            self.request(function);
        }
        begin.elapsed() / (self.events - before).max(1)
    }
}

fn memory(c: &mut Criterion) {
    let mut driver = Driver::new();
    driver.time(20_000, FUNCTIONS);
    c.bench_function("memory decision, 1,000 functions, a request in four finds its constants", |b| {
        b.iter_custom(|requests| driver.time(requests.clamp(100, 10_000), FUNCTIONS) * u32::try_from(requests).unwrap_or(u32::MAX));
    });
    let mut driver = Driver::new();
    driver.time(20_000, 100);
    c.bench_function("memory decision, 1,000 functions, all requests find their constants", |b| {
        b.iter_custom(|requests| driver.time(requests.clamp(100, 10_000), 100) * u32::try_from(requests).unwrap_or(u32::MAX));
    });
}

criterion_group!(benches, memory);
criterion_main!(benches);
