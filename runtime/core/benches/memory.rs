//! The time of one memory decision with 1,000 functions, a quarter of which fit on the device
//! (budget: 2 µs).
//!
//! `cargo bench -p atoll-core --bench memory`

use atoll_core::memory::{
    Action, ConstantSpec, Event, FunctionId, FunctionSpec, InvocationSpec, Memory, MemoryQuotas, MemorySpec, StageSpec,
    TenantBytes,
};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, Residency, residency_policy_by_name};
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceOffset, Nanos, TaskId, Tenant};
use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const FUNCTIONS: u64 = 1_000;
const CONSTANT_BYTES: u64 = 256 << 10;
const FITTING: u64 = FUNCTIONS / 4;
/// Most invocations that are prepared at a time.
const PREPARED_MAX: usize = 4;

/// The request load.
#[derive(Clone, Copy)]
struct Load {
    /// Requests are drawn uniformly from this many functions.
    functions: u64,
    /// Number of requests present at any time.
    clients: u64,
    /// Quota of the functions' tenant, in functions.
    quota: Option<u64>,
}

/// Memory decisions with an engine that carries out everything at once.
struct Driver {
    memory: Memory,
    load: Load,
    tenant: Tenant,
    rng: Rng,
    now: u64,
    tasks: u64,
    /// Number of requests present.
    alive: u64,
    ready: VecDeque<TaskId>,
    prepared: VecDeque<TaskId>,
    /// Number of events handled; each is a decision.
    events: u64,
}

impl Driver {
    fn new(load: Load) -> Driver {
        let constants_bytes = FITTING * CONSTANT_BYTES;
        let spec = MemorySpec {
            memory_bytes: constants_bytes,
            constants_base: DeviceOffset(1 << 40),
            constants_bytes,
            constants_granule: 4096,
            limit_bytes: None,
            overcommit: 8.0,
        };
        let policy = residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is a policy");
        let tenant = load.quota.map_or_else(Tenant::default, |_| "alice".parse().expect("a name of a tenant"));
        let quota = load.quota.map(|functions| {
            (tenant.clone(), TenantBytes { all: functions * CONSTANT_BYTES, ..TenantBytes::UNLIMITED })
        });
        let quotas = MemoryQuotas { default: TenantBytes::UNLIMITED, tenants: BTreeMap::from_iter(quota) };
        let mut memory = Memory::new(&spec, Residency::new((policy.make)()), quotas);
        for function in 0..load.functions {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&function.to_le_bytes());
            let constants = vec![ConstantSpec { digest, bytes: CONSTANT_BYTES, offset: 0 }];
            let spec = FunctionSpec {
                function: FunctionId(function),
                tenant: tenant.clone(),
                class: Class::BestEffort,
                constants,
            };
            memory.register(spec).expect("there is room for all functions");
        }
        let (ready, prepared) = (VecDeque::new(), VecDeque::new());
        Driver { memory, load, tenant, rng: Rng::new(1), now: 0, tasks: 0, alive: 0, ready, prepared, events: 0 }
    }

    fn send(&mut self, event: Event) {
        self.note(event);
        while let Some(action) = self.memory.next_action() {
            match action {
                Action::Admitted { task, ready: true } | Action::Ready { task } => self.ready.push_back(task),
                Action::Unready { task } => self.ready.retain(|other| *other != task),
                Action::Reserve { set, generation, .. } => {
                    self.note(Event::Reserved { set, generation, refused: None })
                }
                Action::Stage { set, .. } => self.note(Event::Staged { set, end: usize::MAX }),
                Action::Write { from, .. } => self.note(Event::Written { bytes: from.len() as u64, took_ns: 50_000 }),
                Action::Begin { task } => {
                    self.prepared.push_back(task);
                    self.note(Event::Prepared { task });
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, event: Event) {
        self.now += 1_000;
        self.events += 1;
        self.memory.handle(Nanos(self.now), event);
    }

    fn arrive(&mut self) {
        self.tasks += 1;
        self.alive += 1;
        let function = FunctionId(self.rng.below(self.load.functions));
        let stages = vec![StageSpec { function, shape: Box::new([1]), bytes: 4096 }];
        let spec = InvocationSpec {
            task: TaskId(self.tasks),
            class: Class::BestEffort,
            tenant: self.tenant.clone(),
            stages,
            session: None,
        };
        self.send(Event::Arrived(spec));
    }

    /// One event: a request arrives, is prepared or ends, constants are written, or time passes.
    fn step(&mut self) {
        if self.alive < self.load.clients {
            return self.arrive();
        }
        if self.prepared.len() < PREPARED_MAX
            && let Some(task) = self.ready.pop_front()
        {
            return self.send(Event::Prepare { task });
        }
        let before = self.events;
        self.send(Event::Advance);
        if self.events > before + 1 || !self.ready.is_empty() && self.prepared.len() < PREPARED_MAX {
            return;
        }
        if let Some(task) = self.prepared.pop_front() {
            self.alive -= 1;
            self.send(Event::Ended { task });
            return self.send(Event::Resume);
        }
        if let Some(at) = self.memory.next_wakeup() {
            self.now = self.now.max(at.0);
            self.send(Event::Tick);
        }
    }

    /// The time of at least `decisions` decisions, scaled to that number.
    fn time(&mut self, decisions: u64) -> Duration {
        let (begin, before) = (Instant::now(), self.events);
        while self.events - before < decisions {
            self.step();
        }
        begin.elapsed().mul_f64(decisions as f64 / (self.events - before) as f64)
    }
}

fn memory(c: &mut Criterion) {
    let loads = [
        ("a request in four finds its constants", Load { functions: FUNCTIONS, clients: 1, quota: None }),
        ("all requests find their constants", Load { functions: 100, clients: 1, quota: None }),
        ("64 clients, a request in four finds its constants", Load { functions: FUNCTIONS, clients: 64, quota: None }),
        (
            "64 clients of a tenant that may have a fifth of them",
            Load { functions: FUNCTIONS, clients: 64, quota: Some(FUNCTIONS / 5) },
        ),
    ];
    for (name, load) in loads {
        let mut driver = Driver::new(load);
        driver.time(100_000);
        c.bench_function(&format!("memory decision, 1,000 functions, {name}"), |b| {
            b.iter_custom(|decisions| driver.time(decisions))
        });
    }
}

criterion_group!(benches, memory);
criterion_main!(benches);
