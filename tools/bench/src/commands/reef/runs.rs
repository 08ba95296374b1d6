//! Simulated runs.

use anyhow::{Context, Result, anyhow};
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_core::{Class, PaddingOptions, policy_by_name};
use atoll_sim::{
    Client, DeviceParameters, Faults, Load, Model, Report, Simulation, Workload, device_by_name, simulate,
};
use std::collections::BTreeMap;

/// A simulated device by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device(pub(super) &'static str);

/// REEF's AMD GPU.
pub(super) const MI50: Device = Device("mi50");

/// The GPU of REEF-N.
pub(super) const V100: Device = Device("v100");

/// GPREEMPT's AMD GPU.
pub(super) const MI100: Device = Device("mi100");

impl Device {
    /// Its parameters.
    pub(super) fn parameters(self) -> Result<DeviceParameters> {
        device_by_name(self.0).copied().with_context(|| format!("there is a device {}", self.0))
    }
}

/// The models, and the settings of all runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs<'a> {
    pub(super) models: &'a BTreeMap<String, Model>,
    pub(super) duration_ns: u64,
    pub(super) seed: u64,
}

/// A client of a model.
pub(super) fn client(class: Class, model: &str, load: Load) -> Client {
    Client { id: format!("{model} {class}"), class, model: model.to_owned(), load }
}

/// `a / b`, or 0 if there is nothing to compare with.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

impl Runs<'_> {
    /// A workload of DISB by its letter.
    pub(super) fn disb(&self, letter: &str) -> Result<Workload> {
        let workload = Workload::disb(letter).with_context(|| format!("there is a workload {letter}"))?;
        Ok(Workload { name: letter.to_owned(), duration_ns: self.duration_ns, ..workload })
    }

    /// A workload of some clients.
    pub(super) fn workload(&self, name: &str, clients: Vec<Client>) -> Workload {
        Workload { name: name.to_owned(), duration_ns: self.duration_ns, clients }
    }

    /// Runs a workload with the default capacity of queues.
    pub(super) fn run(&self, device: Device, policy: &str, workload: &Workload) -> Result<Report> {
        self.run_with(device, policy, workload, DEVICE_QUEUE_CAPACITY_DEFAULT)
    }

    /// Runs a workload. Latencies are measured as DISB does.
    pub(super) fn run_with(&self, device: Device, policy: &str, workload: &Workload, capacity: u32) -> Result<Report> {
        self.run_padded(device, policy, workload, capacity, PaddingOptions::default())
    }

    /// Runs a workload with options of padding.
    pub(super) fn run_padded(
        &self,
        device: Device,
        policy: &str,
        workload: &Workload,
        capacity: u32,
        padding: PaddingOptions,
    ) -> Result<Report> {
        let simulation = Simulation {
            policy: policy_by_name(policy).with_context(|| format!("there is a policy {policy}"))?,
            device: device.parameters()?,
            queue_capacity: capacity,
            lanes: &[],
            workload,
            models: self.models,
            padding,
            faults: Faults::default(),
            seed: self.seed,
            as_disb: true,
        };
        simulate(&simulation).map_err(|error| anyhow!("{error}"))
    }
}

/// Throughput of all clients, in answers per second.
pub(super) fn throughput(report: &Report) -> f64 {
    report.throughput(Class::RealTime) + report.throughput(Class::BestEffort)
}

/// Mean latency of real-time calls in milliseconds.
pub(super) fn rt_mean_ms(report: &Report) -> f64 {
    report.mean_latency_us(Class::RealTime) / 1e3
}

/// Mean time to the first block of real-time calls that met best-effort launches, in microseconds.
pub(super) fn first_block_us(report: &Report) -> f64 {
    report.first_block_us.map_or(0.0, |times| times.mean)
}
