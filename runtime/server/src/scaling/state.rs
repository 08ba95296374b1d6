//! The state of the scaling of all models.

use super::basis::Basis;
use super::meter::Meter;
use crate::instances::InstanceError;
use crate::model::Model;
use atoll_core::Nanos;
use atoll_core::scaling::{Autoscaler, Predictor, Profile};
use atoll_engine::FunctionKey;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// The longest start of an instance so far.
    pub(super) cold_start_ns: u64,
    pub(super) status: ScalingStatus,
    /// The problem that was logged last.
    logged: Option<String>,
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
    pub(crate) decisions: [u64; 4],
    /// Why the load is not covered, if it is not.
    pub(crate) problem: Option<String>,
}

/// Kinds of decisions.
pub(crate) const KINDS: [&str; 4] = ["create", "resize", "remove", "refused"];

/// An index of [`KINDS`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Create,
    Resize,
    Remove,
    Refused,
}

impl Scaler {
    pub(crate) fn new(profiles: Option<PathBuf>) -> Scaler {
        Scaler {
            wake: Notify::new(),
            profiles,
            functions: Mutex::default(),
            statuses: Mutex::default(),
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
            cold_start_ns: 0,
            logged: None,
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.status.decisions[kind as usize] += 1;
    }

    /// The points of an instance on so many devices; `None` if nothing was measured yet.
    pub(super) fn points(&self, devices: u64) -> Option<Profile> {
        self.basis.points(&self.meter.settings, devices)
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
        self.cold_start_ns = self.cold_start_ns.max(took);
        self.autoscaler.set_cold_start(self.cold_start_ns);
    }

    /// A device refused an instance.
    pub(super) fn refuse(&mut self, model: &Model, error: &InstanceError) {
        self.count(Kind::Refused);
        self.note_problem(model, error.to_string());
    }

    /// Why the load is not covered. It is logged once.
    pub(super) fn note_problem(&mut self, model: &Model, problem: String) {
        if self.logged.as_ref() != Some(&problem) {
            tracing::warn!(model = model.name, problem, "the load is not covered");
            self.logged = Some(problem.clone());
        }
        self.status.problem = Some(problem);
    }
}
