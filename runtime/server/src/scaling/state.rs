//! The state of the autoscaler for all models.

use super::basis::Basis;
use super::meter::Meter;
use super::queue::Queue;
use crate::instances::InstanceError;
use crate::model::Model;
use atoll_core::Nanos;
use atoll_core::scaling::{Autoscaler, Needed, Profile};
use atoll_engine::{Class, FunctionKey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The state of the autoscaler.
pub(crate) struct Scaler {
    /// Wakes the loop when a request waits for an instance.
    pub(super) wake: Notify,
    /// The folder of profiles.
    pub(super) profiles: Option<PathBuf>,
    /// State of each model. Only the loop locks it.
    functions: Mutex<BTreeMap<FunctionKey, Scaled>>,
    /// Copies of the statuses, for readers that must not wait for the loop.
    statuses: Mutex<BTreeMap<FunctionKey, ScalingStatus>>,
    /// The queues of requests that wait for an instance. Models without waiting requests have none.
    queues: Mutex<BTreeMap<FunctionKey, Arc<Queue>>>,
    /// Number of moves of instances to another device, by function.
    moves: Mutex<BTreeMap<FunctionKey, u64>>,
    /// Whether instances were removed since the loop last looked for a device that moves free.
    pub(super) may_free: AtomicBool,
    /// Instances whose removal has failed and was logged.
    failed: Mutex<BTreeSet<FunctionKey>>,
    /// Runs the check of the `[scaling.NAME]` sections once.
    pub(super) names_checked: Once,
    began: Instant,
}

/// The autoscaling state of a model. It is reset when the model is loaded again.
pub(super) struct Scaled {
    pub(super) meter: Arc<Meter>,
    pub(super) autoscaler: Autoscaler,
    pub(super) basis: Basis,
    /// When the next decision is due.
    pub(super) due: Nanos,
    /// The earliest time of the next attempt to start a first instance.
    pub(super) may_start: Nanos,
    /// The earliest time of the next attempt to add an instance between two decisions.
    pub(super) may_add: Nanos,
    /// Whether a new instance waits until others have moved.
    pub(super) awaits_room: bool,
    /// Moving average of the time that an instance takes to start.
    cold_start_ns: Option<u64>,
    /// The time of the last request of each class, over the last idle time.
    classes: Vec<(Class, Nanos)>,
    pub(super) status: ScalingStatus,
    /// The problem that was logged last, and when.
    logged: Option<(String, Instant)>,
}

/// The autoscaling status of a model. Rates are in requests per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ScalingStatus {
    /// Whether the throughput of instances comes from a profile, not from measured requests.
    pub(crate) is_profiled: bool,
    /// The rate of arrivals in the last interval.
    pub(crate) rate: f64,
    /// The rate that was predicted for this interval.
    pub(crate) predicted: f64,
    /// The load to serve: what recent requests needed, or the rate with headroom and queue.
    pub(crate) load: f64,
    /// The capacity of the instances.
    pub(crate) capacity: f64,
    /// Instances that the autoscaler created and that accept requests.
    pub(crate) instances: u64,
    /// Requests that wait for an instance.
    pub(crate) waiting: u64,
    /// Counts of decisions, indexed as [`KINDS`].
    pub(crate) decisions: [u64; KINDS.len()],
    /// Why the load is not covered; `None` if it is covered.
    pub(crate) problem: Option<String>,
}

/// Kinds of decisions.
pub(crate) const KINDS: [&str; 5] = ["create", "resize", "remove", "move", "refused"];

/// An index of [`KINDS`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Create,
    Resize,
    Remove,
    Move,
    Refused,
}

impl Scaler {
    pub(crate) fn new(profiles: Option<PathBuf>) -> Scaler {
        Scaler {
            wake: Notify::new(),
            profiles,
            functions: Mutex::default(),
            statuses: Mutex::default(),
            queues: Mutex::default(),
            moves: Mutex::default(),
            may_free: AtomicBool::new(false),
            failed: Mutex::default(),
            names_checked: Once::new(),
            began: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn functions(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Scaled>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, ScalingStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, statuses: BTreeMap<FunctionKey, ScalingStatus>) {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| statuses.contains_key(key));
        *self.all() = statuses;
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests that wait for an instance of a model.
    pub(super) fn queue(&self, function: &FunctionKey) -> Arc<Queue> {
        self.queues().entry(function.clone()).or_default().clone()
    }

    /// Number of requests that wait for an instance of a model.
    pub(super) fn waiting(&self, function: &FunctionKey) -> u64 {
        self.queues().get(function).map_or(0, |queue| queue.waiting())
    }

    /// Wakes all waiting requests so that they look for an instance. Requests of models that are
    /// not autoscaled any more (`is_over`) stop waiting.
    pub(super) fn wake_waiting(&self, is_over: impl Fn(&FunctionKey) -> bool) {
        let mut queues = self.queues();
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        queues.iter().for_each(|(key, queue)| queue.wake(is_over(key)));
    }

    /// Notes whether the removal of an instance failed. Returns whether this is its first failure.
    pub(super) fn note_removal(&self, instance: &FunctionKey, has_failed: bool) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if has_failed {
            return failed.insert(instance.clone());
        }
        failed.remove(instance);
        false
    }

    /// Counts a move of an instance of a function to another device.
    pub(super) fn note_move(&self, function: &FunctionKey) {
        *self.moves.lock().unwrap_or_else(PoisonError::into_inner).entry(function.clone()).or_default() += 1;
    }

    /// Number of moves of a function's instances since the daemon started.
    pub(super) fn moves_of(&self, function: &FunctionKey) -> u64 {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).get(function).copied().unwrap_or(0)
    }

    /// The statuses of all autoscaled models.
    pub(crate) fn statuses(&self) -> BTreeMap<FunctionKey, ScalingStatus> {
        self.all().clone()
    }

    /// Why the load of a model is not covered.
    pub(super) fn problem(&self, function: &FunctionKey) -> Option<String> {
        self.all().get(function)?.problem.clone()
    }
}

impl Scaled {
    pub(super) fn new(meter: Arc<Meter>, basis: Basis, now: Nanos) -> Scaled {
        let config = meter.settings.config();
        Scaled {
            autoscaler: Autoscaler::new(config, meter.settings.predictor()),
            status: ScalingStatus { is_profiled: matches!(basis, Basis::Profile(_)), ..ScalingStatus::default() },
            meter,
            basis,
            due: Nanos(now.0.saturating_add(config.interval_ns)),
            may_start: now,
            may_add: now,
            awaits_room: false,
            cold_start_ns: None,
            classes: Vec::new(),
            logged: None,
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.status.decisions[kind as usize] += 1;
    }

    /// The points of an instance; `None` if nothing is measured yet.
    pub(super) fn points(&self) -> Option<Profile> {
        self.basis.points(&self.meter.settings)
    }

    /// What recent requests need now, by a profile.
    pub(super) fn needed(&self, now: Nanos, profile: Option<&Profile>) -> Option<Needed> {
        self.meter.needed(now, profile, self.cold_start_ns.unwrap_or(0))
    }

    /// Updates the measured device time of a request, in nanoseconds, if the model has no profile.
    pub(super) fn learn(&mut self, service_ns: Option<u64>) {
        if let Basis::Learned(known) = &mut self.basis {
            *known = service_ns.or(*known);
        }
    }

    /// Notes that an instance was created, and how long that took.
    pub(super) fn created(&mut self, took: Duration) {
        self.count(Kind::Create);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // An exponential moving average with weight 1/4.
        let mean = self.cold_start_ns.map_or(took, |mean| mean - mean / 4 + took / 4);
        self.cold_start_ns = Some(mean);
        self.autoscaler.set_cold_start(mean);
    }

    /// Notes the classes of the requests since the last call.
    pub(super) fn see_classes(&mut self, now: Nanos) {
        for (class, _) in self.meter.take_classes().into_iter().filter(|(_, was_there)| *was_there) {
            self.classes.retain(|(known, _)| *known != class);
            self.classes.push((class, now));
        }
        let idle_ns = self.meter.settings.config().idle_ns;
        self.classes.retain(|(_, at)| now.0.saturating_sub(at.0) < idle_ns);
    }

    /// The class of all requests within the last idle time; `None` if there were requests of both
    /// classes, or none.
    pub(super) fn only_class(&self) -> Option<Class> {
        match self.classes[..] {
            [(class, _)] => Some(class),
            _ => None,
        }
    }

    /// Notes that a device refused an instance. Counts it only when it is logged.
    pub(super) fn refuse(&mut self, model: &Model, error: &InstanceError) {
        if self.note_problem(model, error.to_string()) {
            self.count(Kind::Refused);
        }
    }

    /// Notes why the load is not covered. Logs the same problem once in a cool-down. Returns
    /// whether it was logged.
    pub(super) fn note_problem(&mut self, model: &Model, problem: String) -> bool {
        let cool_down = Duration::from_millis(self.meter.settings.cool_down_ms);
        let is_new = self.logged.as_ref().is_none_or(|(known, at)| *known != problem || at.elapsed() >= cool_down);
        if is_new {
            tracing::warn!(model = model.name, problem, "the load is not covered");
            self.logged = Some((problem.clone(), Instant::now()));
        }
        self.status.problem = Some(problem);
        is_new
    }
}
