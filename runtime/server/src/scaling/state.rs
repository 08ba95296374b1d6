//! The state of the scaling of all models.

use super::basis::Basis;
use super::meter::Meter;
use super::queue::Queue;
use crate::instances::InstanceError;
use crate::model::Model;
use atoll_core::Nanos;
use atoll_core::scaling::{Autoscaler, Predictor, Profile};
use atoll_engine::{Class, FunctionKey};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The scaling of all models.
pub(crate) struct Scaler {
    /// Wakes the loop: a request waits for an instance.
    pub(super) wake: Notify,
    /// The folder of profiles.
    pub(super) profiles: Option<PathBuf>,
    /// Of the loop only.
    functions: Mutex<BTreeMap<FunctionKey, Scaled>>,
    /// For all others, who must not wait for the loop.
    statuses: Mutex<BTreeMap<FunctionKey, ScalingStatus>>,
    /// The requests that wait for an instance; models for which none waits are left out.
    queues: Mutex<BTreeMap<FunctionKey, Arc<Queue>>>,
    /// How often an instance of a function moved to another device.
    moves: Mutex<BTreeMap<FunctionKey, u64>>,
    /// Instances whose removal failed, which was logged.
    failed: Mutex<BTreeSet<FunctionKey>>,
    /// Whether the names of `[scaling.NAME]` were looked for.
    pub(super) names_checked: Once,
    began: Instant,
}

/// The scaling of a model. It begins anew when the model is loaded again.
pub(super) struct Scaled {
    pub(super) meter: Arc<Meter>,
    pub(super) autoscaler: Autoscaler,
    pub(super) basis: Basis,
    /// When the next decision is due.
    pub(super) due: Nanos,
    /// Before that no first instance is started, since one could not be.
    pub(super) may_start: Nanos,
    /// How long an instance takes to start, as a mean.
    cold_start_ns: Option<u64>,
    /// When there was a request of a class.
    classes: Vec<(Class, Nanos)>,
    pub(super) status: ScalingStatus,
    /// The problem that was logged last, and when.
    logged: Option<(String, Instant)>,
}

/// What the scaling of a model does. Rates are in requests per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ScalingStatus {
    /// Whether the throughput of instances comes from a profile, not from measured requests.
    pub(crate) is_profiled: bool,
    /// The rate of arrivals in the last interval.
    pub(crate) rate: f64,
    /// The rate that was predicted for this interval.
    pub(crate) predicted: f64,
    /// The load that is to be served: with headroom and queue.
    pub(crate) load: f64,
    /// What the instances serve.
    pub(crate) capacity: f64,
    /// Instances that the loop made and that take requests.
    pub(crate) instances: u64,
    /// Requests that wait for an instance.
    pub(crate) waiting: u64,
    /// Decisions, by [`KINDS`].
    pub(crate) decisions: [u64; KINDS.len()],
    /// Why the load is not covered, if it is not.
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
        *self.all() = statuses;
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<FunctionKey, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests that wait for an instance of a model.
    pub(super) fn queue(&self, function: &FunctionKey) -> Arc<Queue> {
        self.queues().entry(function.clone()).or_default().clone()
    }

    /// How many requests wait for an instance of a model.
    pub(super) fn waiting(&self, function: &FunctionKey) -> u64 {
        self.queues().get(function).map_or(0, |queue| queue.waiting())
    }

    /// Lets all requests that wait look for an instance, and says to those of models that are not
    /// scaled any more that none comes.
    pub(super) fn wake_waiting(&self, is_over: impl Fn(&FunctionKey) -> bool) {
        let mut queues = self.queues();
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        queues.iter().for_each(|(key, queue)| queue.wake(is_over(key)));
    }

    /// The removal of an instance succeeded or failed. Says whether that is a new failure.
    pub(super) fn note_removal(&self, instance: &FunctionKey, has_failed: bool) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if has_failed {
            return failed.insert(instance.clone());
        }
        failed.remove(instance);
        false
    }

    /// An instance of a function moves to another device.
    pub(super) fn note_move(&self, function: &FunctionKey) {
        *self.moves.lock().unwrap_or_else(PoisonError::into_inner).entry(function.clone()).or_default() += 1;
    }

    /// How often an instance of a function moved since the daemon started.
    pub(super) fn moves_of(&self, function: &FunctionKey) -> u64 {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner).get(function).copied().unwrap_or(0)
    }

    /// The models that are scaled, and what their scaling does.
    pub(crate) fn statuses(&self) -> BTreeMap<FunctionKey, ScalingStatus> {
        self.all().clone()
    }

    /// Why a model has no instance.
    pub(super) fn problem(&self, function: &FunctionKey) -> Option<String> {
        self.all().get(function)?.problem.clone()
    }
}

impl Scaled {
    pub(super) fn new(meter: Arc<Meter>, basis: Basis, now: Nanos) -> Scaled {
        let config = meter.settings.config();
        Scaled {
            autoscaler: Autoscaler::new(config, Predictor::new()),
            status: ScalingStatus { is_profiled: matches!(basis, Basis::Profile(_)), ..ScalingStatus::default() },
            meter,
            basis,
            due: Nanos(now.0.saturating_add(config.interval_ns)),
            may_start: now,
            cold_start_ns: None,
            classes: Vec::new(),
            logged: None,
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.status.decisions[kind as usize] += 1;
    }

    /// The points of an instance; `None` if nothing was measured yet.
    pub(super) fn points(&self) -> Option<Profile> {
        self.basis.points(&self.meter.settings)
    }

    /// Takes the measured device time of a request, if the model has no profile.
    pub(super) fn learn(&mut self, service_ns: Option<u64>) {
        if let Basis::Learned(known) = &mut self.basis {
            *known = service_ns.or(*known);
        }
    }

    /// An instance was created, which took so long.
    pub(super) fn created(&mut self, took: Duration) {
        self.count(Kind::Create);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // A slow start counts less with each one that follows.
        let mean = self.cold_start_ns.map_or(took, |mean| mean - mean / 4 + took / 4);
        self.cold_start_ns = Some(mean);
        self.autoscaler.set_cold_start(mean);
    }

    /// Notes of which classes there were requests since the last decision.
    pub(super) fn see_classes(&mut self, now: Nanos) {
        for (class, _) in self.meter.take_classes().into_iter().filter(|(_, was_there)| *was_there) {
            self.classes.retain(|(known, _)| *known != class);
            self.classes.push((class, now));
        }
        let idle_ns = self.meter.settings.config().idle_ns;
        self.classes.retain(|(_, at)| now.0.saturating_sub(at.0) < idle_ns);
    }

    /// The class of all requests of the last idle time; `None` if there were several, or no
    /// request.
    pub(super) fn only_class(&self) -> Option<Class> {
        match self.classes[..] {
            [(class, _)] => Some(class),
            _ => None,
        }
    }

    /// A device refused an instance. That counts as often as it is logged.
    pub(super) fn refuse(&mut self, model: &Model, error: &InstanceError) {
        if self.note_problem(model, error.to_string()) {
            self.count(Kind::Refused);
        }
    }

    /// Why the load is not covered. It is logged once in a cool-down; says whether it was.
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
