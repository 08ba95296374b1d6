//! Random requests, and what must hold of every batch.

use super::MS;
use atoll_core::batching::{Action, BATCHES_MAX, BatchSpec, Batching, Event, Group, Request, WINDOW_NS_MAX};
use atoll_core::memory::FunctionId;
use atoll_core::rng::Rng;
use atoll_core::{Class, Nanos, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Requests of several functions, classes, shapes and sizes at random, on a device that ends
/// batches in any order, with cancelled requests and deadlines.
#[test]
fn random_requests_end_once_and_wait_for_a_reason() {
    for seed in 0..200 {
        World::new(seed).run();
    }
}

struct World {
    seed: u64,
    rng: Rng,
    batching: Batching,
    specs: Vec<BatchSpec>,
    now: u64,
    /// Requests that have not ended, and when they arrived.
    open: BTreeMap<TaskId, (Request, u64)>,
    running: BTreeMap<TaskId, Vec<TaskId>>,
    last_closed: BTreeMap<(FunctionId, Class, Group), TaskId>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let specs: Vec<BatchSpec> = (0..1 + rng.below(3))
            .map(|_| BatchSpec {
                max_rows: 1 + rng.below(8) as u32,
                max_bytes: 1 + rng.below(20),
                preferred: (0..rng.below(3)).map(|_| rng.below(10) as u32).collect(),
                max_delay_ns: rng.one_in(2).then(|| rng.below(5 * MS)),
                real_time_waits: rng.one_in(2),
            })
            .collect();
        let mut world = World {
            seed,
            rng,
            batching: Batching::default(),
            specs,
            now: 0,
            open: BTreeMap::new(),
            running: BTreeMap::new(),
            last_closed: BTreeMap::new(),
        };
        for (number, spec) in world.specs.clone().into_iter().enumerate() {
            world.send(Event::Loaded { function: FunctionId(number as u64), spec });
        }
        world
    }

    fn run(&mut self) {
        for task in 0..300 {
            self.advance_by(self.rng.clone().below(MS));
            let request = self.request(task);
            self.open.insert(request.task, (request.clone(), self.now));
            self.send(Event::Arrived(request));
            while self.rng.one_in(2) {
                self.disturb();
            }
        }
        // Without new requests everything ends.
        for _ in 0..10_000 {
            if self.open.is_empty() && self.running.is_empty() {
                break;
            }
            self.advance_by(MS);
            self.end_one();
        }
        assert!(self.open.is_empty() && self.running.is_empty(), "seed {}: {:?}", self.seed, self.open);
        assert_eq!(self.batching.next_wakeup(), None, "seed {}", self.seed);
        (0..self.specs.len() as u64).for_each(|function| self.send(Event::Unloaded(FunctionId(function))));
    }

    fn request(&mut self, task: u64) -> Request {
        let rng = &mut self.rng;
        Request {
            task: TaskId(task),
            function: FunctionId(rng.below(self.specs.len() as u64)),
            class: if rng.one_in(3) { Class::RealTime } else { Class::BestEffort },
            group: Group { priority: rng.below(2) as u32, shape: [rng.below(2) as i64].into() },
            rows: 1 + rng.below(4),
            bytes: 1 + rng.below(6),
            deadline: rng.one_in(4).then(|| Nanos(self.now + rng.below(10 * MS))),
        }
    }

    fn disturb(&mut self) {
        match self.rng.below(4) {
            0 if !self.open.is_empty() => {
                let at = self.rng.below(self.open.len() as u64) as usize;
                let task = *self.open.keys().nth(at).expect("below the length");
                self.open.remove(&task);
                self.send(Event::Left(task));
                // A client may cancel twice, or too late.
                self.send(Event::Left(task));
            }
            1 => self.advance_by(MS),
            _ => self.end_one(),
        }
    }

    fn end_one(&mut self) {
        let at = self.rng.below(self.running.len().max(1) as u64) as usize;
        let Some(batch) = self.running.keys().nth(at).copied() else { return };
        for task in self.running.remove(&batch).expect("present: found above") {
            self.open.remove(&task);
        }
        let ran_ns = self.rng.one_in(2).then(|| self.rng.clone().below(4 * MS));
        self.send(Event::Ended { batch, ran_ns });
    }

    /// Lets time pass, with a tick at each wakeup.
    fn advance_by(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(at) = self.batching.next_wakeup()
            && at.0 <= until
        {
            self.now = self.now.max(at.0);
            self.send(Event::Tick);
            assert!(
                self.batching.next_wakeup().is_none_or(|at| at.0 > self.now),
                "seed {}: a tick is final",
                self.seed
            );
        }
        self.now = until;
    }

    fn send(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.batching.handle(Nanos(self.now), event, &mut actions);
        for action in actions {
            match action {
                Action::Close { requests, rows } => self.close(requests, rows),
                Action::Expire(task) => {
                    let (request, _) = self.open.remove(&task).expect("a request expires before it ends");
                    assert!(request.deadline.is_some_and(|at| at.0 <= self.now), "seed {}", self.seed);
                }
                Action::Cancel(batch) => {
                    let requests = &self.running[&batch];
                    assert!(requests.iter().all(|task| !self.open.contains_key(task)), "seed {}", self.seed);
                }
            }
        }
        self.check_waiting();
    }

    fn close(&mut self, requests: Vec<TaskId>, rows: u64) {
        let seed = self.seed;
        let members: Vec<Request> = requests.iter().map(|task| self.open[task].0.clone()).collect();
        let spec = &self.specs[members[0].function.0 as usize];
        let kind = |request: &Request| (request.function, request.class, request.group.clone());
        assert!(members.iter().all(|member| kind(member) == kind(&members[0])), "seed {seed}: a batch of one kind");
        assert_eq!(rows, members.iter().map(|member| member.rows).sum::<u64>(), "seed {seed}");
        let bytes: u64 = members.iter().map(|member| member.bytes).sum();
        let fits = rows <= spec.max_rows.into() && bytes <= spec.max_bytes;
        assert!(fits || members.len() == 1, "seed {seed}: {rows} rows, {bytes} bytes of {spec:?}");
        // Within a group, requests keep the order of arrival, which is the order of ids here.
        let last = self.last_closed.insert(kind(&members[0]), *requests.last().expect("no batch is empty"));
        assert!(last.is_none_or(|last| last < requests[0]) && requests.is_sorted(), "seed {seed}: first come");
        let queue = (members[0].function, members[0].class);
        let is_limited = queue.1 == Class::BestEffort || spec.real_time_waits;
        self.running.insert(requests[0], requests);
        assert!(!is_limited || self.running_of(queue) <= BATCHES_MAX as usize, "seed {seed}");
    }

    /// Batches of a function and class that have not ended. A batch whose requests have all left
    /// counts until it ends, but its function is no longer known here.
    fn running_of(&self, queue: (FunctionId, Class)) -> usize {
        let of = |requests: &&Vec<TaskId>| {
            requests.iter().find_map(|task| self.open.get(task)).is_some_and(|(r, _)| (r.function, r.class) == queue)
        };
        self.running.values().filter(of).count()
    }

    /// Checks that every waiting request waits for a batch of its function, or for a wakeup soon.
    fn check_waiting(&self) {
        let in_batch: BTreeSet<TaskId> = self.running.values().flatten().copied().collect();
        for (task, (request, arrived)) in self.open.iter().filter(|(task, _)| !in_batch.contains(task)) {
            assert!(self.batching.knows(*task) && self.batching.batch_of(*task).is_none(), "seed {}", self.seed);
            let delay = self.specs[request.function.0 as usize].max_delay_ns.unwrap_or(WINDOW_NS_MAX);
            let spec = &self.specs[request.function.0 as usize];
            if request.class == Class::RealTime && !spec.real_time_waits {
                let wakes = request.deadline.zip(self.batching.next_wakeup()).is_some_and(|(by, at)| at < by);
                assert!(wakes, "seed {}: {request:?} waits longer than its deadline allows", self.seed);
            }
            let is_busy = self.running_of((request.function, request.class)) > 0 || self.has_orphans();
            assert!(
                is_busy || self.batching.next_wakeup().is_some_and(|at| at.0 <= self.now.max(*arrived) + delay),
                "seed {}: {request:?} waits for nothing",
                self.seed
            );
        }
    }

    /// Whether all requests of some running batch have left.
    fn has_orphans(&self) -> bool {
        self.running.values().any(|requests| requests.iter().all(|task| !self.open.contains_key(task)))
    }
}
