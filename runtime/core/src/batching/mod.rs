//! Dynamic batching: decides which requests of a function run as one task, and when.
//!
//! Requests that may share a task form a *group*: they have the same function, class and priority,
//! and the same sizes except the number of rows. A function and class run one batch at a time.
//! Requests that arrive meanwhile wait and form the next batch. A second batch is submitted while
//! one runs only if it is full, so that the device has it ready.
//!
//! When no batch runs, a request starts at once, except in the *window* after the end of a batch.
//! Clients that wait for each answer send their next requests shortly after the batch. Without a
//! window the first of these requests would run alone, and the others would wait for it. The window
//! lasts at most as long as one saved run is worth ([`cost::Cost::fixed_ns`]). It ends early once
//! as many rows wait as the last batch and the queue had together. If the rows do not come back,
//! the next windows are skipped. A function may have a fixed delay instead
//! ([`BatchSpec::max_delay_ns`], Triton's `max_queue_delay_microseconds`).
//!
//! A request with a deadline is not delayed past the time at which its batch must start.
//!
//! Real-time requests do not wait behind a batch unless their own deadline allows it. Each of them
//! may wait while there is time to run twice before its deadline, and for what runs now. One without
//! a deadline runs at once, and so does any before a run time is known. With
//! [`BatchSpec::real_time_waits`], they wait like other requests.
//!
//! The caller identifies each request and each batch by a [`TaskId`]. A batch has the id of its
//! first request.

mod cost;
mod queue;

use crate::ids::{Class, Nanos, TaskId};
use crate::memory::FunctionId;
pub use cost::Cost;
pub use queue::Group;
use queue::{Queue, Waiting};
use std::collections::{BTreeMap, BTreeSet};

/// Longest window, in nanoseconds. A client that does not come back delays the others by at most
/// this.
pub const WINDOW_NS_MAX: u64 = 20_000_000;

/// Largest [`BatchSpec::max_delay_ns`], in nanoseconds.
pub const DELAY_NS_MAX: u64 = 10_000_000_000;

/// Largest [`BatchSpec::max_rows`].
pub const ROWS_MAX: u32 = 65_536;

/// Largest number of preferred batch sizes of a function.
pub const PREFERRED_MAX: usize = 32;

/// Batches of a function and class that are closed and have not ended: one that runs, and a full
/// one that runs next. Real-time requests whose time has come do not wait for either.
pub const BATCHES_MAX: u32 = 2;

/// Largest number of windows that are skipped in a row because rows did not come back.
const SKIPPED_MAX: u32 = 64;

/// How the requests of a function are batched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSpec {
    /// Largest number of rows of a batch, at least 1. A request with more rows runs alone.
    pub max_rows: u32,
    /// Largest sum of [`Request::bytes`] of a batch. A request with more bytes runs alone.
    pub max_bytes: u64,
    /// Preferred sizes of batches, in rows and in any order.
    pub preferred: Vec<u32>,
    /// How long a request waits for others while no batch runs, in nanoseconds. `None` derives the
    /// delay from measurements, as the module's documentation describes.
    pub max_delay_ns: Option<u64>,
    /// Whether real-time requests wait for others like best-effort ones, instead of only as far as
    /// their deadlines allow.
    pub real_time_waits: bool,
}

/// A request that may run in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its id, unique among requests that have not ended.
    pub task: TaskId,
    /// The function.
    pub function: FunctionId,
    /// The class.
    pub class: Class,
    /// The other properties that all requests of a batch have in common.
    pub group: Group,
    /// Its rows, at least 1.
    pub rows: u64,
    /// The memory that it would need if it ran alone, in bytes.
    pub bytes: u64,
    /// The time at which it fails if it has not been answered.
    pub deadline: Option<Nanos>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A function whose requests are batched was loaded.
    Loaded {
        /// The function.
        function: FunctionId,
        /// How its requests are batched.
        spec: BatchSpec,
    },
    /// A function was unloaded. All its requests have ended.
    Unloaded(FunctionId),
    /// A request arrived for a loaded function.
    Arrived(Request),
    /// A request was answered before its batch ended, for example because it was cancelled. Ignored
    /// if it has ended.
    Left(TaskId),
    /// A batch ended, and with it all its requests.
    Ended {
        /// Its first request.
        batch: TaskId,
        /// How long it ran, in nanoseconds; `None` if the time is not representative, for example
        /// because the batch was preempted or failed.
        ran_ns: Option<u64>,
    },
    /// Time passed; see [`Batching::next_wakeup`].
    Tick,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run these requests as one task, with the id of the first one.
    Close {
        /// The requests, in the order of their arrival.
        requests: Vec<TaskId>,
        /// Rows of all of them.
        rows: u64,
    },
    /// Answer a request whose deadline has passed.
    Expire(TaskId),
    /// Cancel a batch: all its requests have left it.
    Cancel(TaskId),
}

/// A function and a class, whose batches run one after the other.
type Key = (FunctionId, Class);

/// A batch that was closed and has not ended.
#[derive(Debug)]
struct Batch {
    key: Key,
    group: Group,
    /// Number of requests that have not left.
    left: usize,
    /// Rows of the requests that have not left.
    rows: u64,
    /// Rows of all its requests when it was closed.
    closed_rows: u64,
    requests: Vec<TaskId>,
}

/// A request that has not ended.
#[derive(Debug)]
struct Known {
    key: Key,
    group: Group,
    rows: u64,
    deadline: Option<Nanos>,
    /// The batch it is in.
    batch: Option<TaskId>,
}

/// The requests of all functions of a device whose requests are batched.
#[derive(Debug, Default)]
pub struct Batching {
    functions: BTreeMap<FunctionId, BatchSpec>,
    queues: BTreeMap<Key, Queue>,
    requests: BTreeMap<TaskId, Known>,
    batches: BTreeMap<TaskId, Batch>,
    deadlines: BTreeSet<(Nanos, TaskId)>,
    /// When to decide about queues again.
    wakeups: BTreeSet<(Nanos, Key)>,
    /// Number of the next arrival.
    arrivals: u64,
}

impl Batching {
    /// Handles an event at the time `now`, which never decreases. Actions are appended.
    pub fn handle(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Loaded { function, spec } => self.load(function, spec),
            Event::Unloaded(function) => self.unload(function),
            Event::Arrived(request) => self.arrive(now, request, actions),
            Event::Left(task) => self.leave(now, task, actions),
            Event::Ended { batch, ran_ns } => self.end(now, batch, ran_ns, actions),
            Event::Tick => self.tick(now, actions),
        }
    }

    /// When the next [`Event::Tick`] is due.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let wakeup = self.wakeups.first().map(|&(at, _)| at);
        [deadline, wakeup].into_iter().flatten().min()
    }

    /// Whether a request has arrived and has not ended.
    pub fn knows(&self, task: TaskId) -> bool {
        self.requests.contains_key(&task)
    }

    /// The batch that a request is in, if it is in one.
    pub fn batch_of(&self, task: TaskId) -> Option<TaskId> {
        self.requests.get(&task)?.batch
    }

    /// The requests of a function that wait for a batch, by id.
    pub fn waiting_of(&self, function: FunctionId) -> Vec<TaskId> {
        let waits = |known: &Known| known.key.0 == function && known.batch.is_none();
        self.requests.iter().filter(|(_, known)| waits(known)).map(|(task, _)| *task).collect()
    }

    /// All requests that wait for a batch, by id.
    pub fn waiting(&self) -> Vec<TaskId> {
        self.requests.iter().filter(|(_, known)| known.batch.is_none()).map(|(task, _)| *task).collect()
    }

    fn load(&mut self, function: FunctionId, mut spec: BatchSpec) {
        assert!((1..=ROWS_MAX).contains(&spec.max_rows), "a batch has 1 to {ROWS_MAX} rows");
        spec.preferred.retain(|rows| (1..=spec.max_rows).contains(rows));
        spec.preferred.sort_unstable();
        spec.max_delay_ns = spec.max_delay_ns.map(|delay| delay.min(DELAY_NS_MAX));
        assert!(self.functions.insert(function, spec).is_none(), "a function is loaded once");
    }

    fn unload(&mut self, function: FunctionId) {
        self.functions.remove(&function);
        for class in [Class::RealTime, Class::BestEffort] {
            let Some(queue) = self.queues.remove(&(function, class)) else { continue };
            assert!(queue.is_idle(), "a function is unloaded when its requests have ended");
            self.wakeups.retain(|(_, key)| *key != (function, class));
        }
    }

    fn arrive(&mut self, now: Nanos, request: Request, actions: &mut Vec<Action>) {
        let Request { task, function, class, group, rows, bytes, deadline } = request;
        assert!(self.functions.contains_key(&function), "requests arrive for loaded functions");
        let key = (function, class);
        let waiting = Waiting { task, rows, bytes, deadline, arrived: now, number: self.arrivals };
        self.arrivals += 1;
        self.deadlines.extend(deadline.map(|at| (at, task)));
        let known = Known { key, group: group.clone(), rows, deadline, batch: None };
        assert!(self.requests.insert(task, known).is_none(), "a request arrives once");
        self.queues.entry(key).or_default().push(group, waiting);
        self.decide(now, key, actions);
    }

    fn leave(&mut self, now: Nanos, task: TaskId, actions: &mut Vec<Action>) {
        let Some(known) = self.requests.remove(&task) else { return };
        self.forget_deadline(task, known.deadline);
        let Some(id) = known.batch else {
            let queue = self.queues.get_mut(&known.key).expect("a waiting request has a queue");
            queue.remove(&known.group, task);
            return self.decide(now, known.key, actions);
        };
        let batch = self.batches.get_mut(&id).expect("a batch outlives its requests");
        batch.left -= 1;
        batch.rows -= known.rows;
        if batch.left == 0 {
            actions.push(Action::Cancel(id));
        }
    }

    fn end(&mut self, now: Nanos, id: TaskId, ran_ns: Option<u64>, actions: &mut Vec<Action>) {
        let batch = self.batches.remove(&id).expect("a batch ends once");
        for task in batch.requests {
            // A request that left may have arrived again, alone or in another batch.
            if self.requests.get(&task).is_some_and(|known| known.batch == Some(id)) {
                let known = self.requests.remove(&task).expect("present: found above");
                self.forget_deadline(task, known.deadline);
            }
        }
        let spec = &self.functions[&batch.key.0];
        let queue = self.queues.get_mut(&batch.key).expect("a batch has a queue");
        queue.end(now, spec, &batch.group, batch.rows, ran_ns.map(|ns| (batch.closed_rows, ns)));
        self.decide(now, batch.key, actions);
    }

    fn tick(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        while let Some(&(at, task)) = self.deadlines.first()
            && at <= now
        {
            actions.push(Action::Expire(task));
            self.leave(now, task, actions);
        }
        while let Some(&(at, key)) = self.wakeups.first()
            && at <= now
        {
            self.decide(now, key, actions);
        }
    }

    fn forget_deadline(&mut self, task: TaskId, deadline: Option<Nanos>) {
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, task));
        }
    }

    /// Closes all batches of a queue that are due, and notes when to decide again.
    fn decide(&mut self, now: Nanos, key: Key, actions: &mut Vec<Action>) {
        let spec = &self.functions[&key.0];
        let queue = self.queues.get_mut(&key).expect("a queue that is decided about exists");
        if let Some(at) = queue.wakeup.take() {
            self.wakeups.remove(&(at, key));
        }
        let by_deadline = key.1 == Class::RealTime && !spec.real_time_waits;
        while let Some((group, count)) = queue.due(now, spec, by_deadline) {
            let members = queue.close(&group, count);
            let (id, rows) = (members[0].task, members.iter().map(|member| member.rows).sum());
            for member in &members {
                let known = self.requests.get_mut(&member.task).expect("a waiting request is known");
                known.batch = Some(id);
                if members.len() == 1 {
                    // The scheduler enforces the deadline of a task with a single request.
                    known.deadline.take().map(|at| self.deadlines.remove(&(at, member.task)));
                }
            }
            let requests: Vec<TaskId> = members.iter().map(|member| member.task).collect();
            let batch = Batch { key, group, left: requests.len(), rows, closed_rows: rows, requests: requests.clone() };
            assert!(self.batches.insert(id, batch).is_none(), "a batch has the id of its first request");
            actions.push(Action::Close { requests, rows });
        }
        self.wakeups.extend(queue.wakeup.map(|at| (at, key)));
    }
}
