//! A row of the table of metrics, and the state from which samples are collected.

use super::recorder::{DeviceRecorder, Recorder};
use super::text::Samples;
use crate::cuda::counts::Counts;
use crate::graphs::{Desk, StageUse};
use crate::model::Model;
use crate::response_cache::ResponseCache;
use crate::rings::registry::Rings;
use crate::routes::Load;
use crate::scaling::state::ScalingStatus;
use crate::shared_memory::Regions;
use atoll_engine::{DeviceId, EngineStatistics, FunctionKey, Tenant, UsageRow};
use atoll_fleet::{DeviceState, FleetStatus, ShareRefusal};
use atoll_protocol::ModelState;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// State of a device at one moment.
pub(super) struct DeviceSnapshot<'a> {
    pub(super) id: DeviceId,
    pub(super) name: &'a str,
    pub(super) engine: EngineStatistics,
    /// Usage by tenant, function and class, with a bounded number of functions.
    pub(super) usage: Vec<UsageRow>,
    /// The models on it that accept requests.
    pub(super) models: Vec<Arc<Model>>,
    /// The graphs whose requests count for it.
    pub(super) graphs: Vec<Arc<Model>>,
    pub(super) recorder: &'a DeviceRecorder,
    /// Its state in the pool.
    pub(super) place: DeviceState,
    /// Its price in units of account per second; `None` if no device has a price.
    pub(super) price_per_s: Option<f64>,
}

impl DeviceSnapshot<'_> {
    /// Converts compute-unit time to seconds of the whole device.
    pub(super) fn seconds(&self, compute_unit_ns: u128) -> f64 {
        compute_unit_ns as f64 / 1e9 / f64::from(self.engine.device.compute_units.max(1))
    }
}

/// State of the daemon at one moment.
pub(super) struct Snapshot<'a> {
    pub(super) devices: Vec<DeviceSnapshot<'a>>,
    pub(super) states: Vec<(ModelState, usize)>,
    /// Total size of the daemon's copies of bundles.
    pub(super) copies_bytes: u64,
    pub(super) recorder: &'a Recorder,
    /// All models that accept requests.
    pub(super) models: &'a [Arc<Model>],
    pub(super) responses: &'a ResponseCache,
    pub(super) regions: &'a Regions,
    /// Sessions of CUDA programs.
    pub(super) cuda: &'a Counts,
    pub(super) rings: &'a Rings,
    /// The queue in front of the devices.
    pub(super) fleet: &'a FleetStatus,
    /// The admission of requests to graphs.
    pub(super) desk: Option<&'a Desk>,
    /// What the CPU stages of graphs used.
    pub(super) stages: &'a BTreeMap<Tenant, StageUse>,
    /// Their price in units of account per second of CPU time; `None` if they have none.
    pub(super) cpu_price_per_s: Option<f64>,
    /// Shares that a device refused.
    pub(super) refusals: &'a [ShareRefusal],
    /// The instances of functions, and their requests.
    pub(super) instances: &'a [(FunctionKey, Load)],
    /// Models that are autoscaled.
    pub(super) scaling: &'a BTreeMap<FunctionKey, ScalingStatus>,
}

/// One row of the table.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    collect: Collect,
}

/// Scope of a metric, and the function that writes its samples.
#[derive(Clone, Copy)]
enum Collect {
    /// Per device: samples have the label `device`.
    Device(fn(&DeviceSnapshot<'_>, &mut Samples<'_>)),
    /// The daemon as a whole.
    Daemon(fn(&Snapshot<'_>, &mut Samples<'_>)),
}

/// A metric type of Prometheus.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Metric {
    pub(super) fn write(&self, snapshot: &Snapshot<'_>, text: &mut String) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} {kind}", self.name, self.help, self.name);
        match self.collect {
            Collect::Daemon(collect) => collect(snapshot, &mut Samples { name: self.name, device: None, text }),
            Collect::Device(collect) => {
                for device in &snapshot.devices {
                    collect(device, &mut Samples { name: self.name, device: Some(device.name), text: &mut *text });
                }
            }
        }
    }
}

pub(super) const fn counter(
    name: &'static str,
    help: &'static str,
    collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: Kind::Counter, help, collect: Collect::Device(collect) }
}

pub(super) const fn gauge(
    name: &'static str,
    help: &'static str,
    collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: Kind::Gauge, help, collect: Collect::Device(collect) }
}

pub(super) const fn histogram(
    name: &'static str,
    help: &'static str,
    collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: Kind::Histogram, help, collect: Collect::Device(collect) }
}

/// A metric of the daemon as a whole.
pub(super) const fn of_daemon(
    kind: Kind,
    name: &'static str,
    help: &'static str,
    collect: fn(&Snapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind, help, collect: Collect::Daemon(collect) }
}
