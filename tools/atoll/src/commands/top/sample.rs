//! Snapshots: rates from the daemon's counters, latencies from its recorded events.

use crate::control::Classify;
use anyhow::Result;
use atoll_client::{Class, Client, FunctionStatus, LatencyStatus, StatusReport, Tenant, UnitStatus, WholeStatus};
use atoll_core::{Nanos, Outcome, TaskId};
use atoll_trace::{EventKind, Record};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// Maximum number of open requests to track. A daemon has fewer, unless records of their ends were
/// overwritten before they could be read.
const REQUESTS_MAX: usize = 1 << 16;

/// Activity during an interval.
#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    /// The first device, for programs that expect a single one.
    #[serde(flatten)]
    pub(super) first: Option<DeviceRow>,
    pub(super) policy: String,
    pub(super) uptime_s: f64,
    pub(super) interval_s: f64,
    /// Records that were overwritten before they could be read. If nonzero, latencies cover part of
    /// the requests.
    pub(super) lost_records: u64,
    pub(super) devices: Vec<DeviceRow>,
    pub(super) functions: Vec<FunctionRow>,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DeviceRow {
    pub(super) device: String,
    pub(super) compute_units: u32,
    pub(super) lost: Option<String>,
    /// `None` if the peer may not see other tenants.
    pub(super) whole: Option<Whole>,
}

/// State of a device over all tenants.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Whole {
    /// Current mode: `real-time` or `normal`.
    pub(super) mode: &'static str,
    /// Share of the interval in real-time mode.
    pub(super) real_time_share: f64,
    pub(super) queue_depths: Vec<u64>,
    pub(super) queue_capacity: u32,
    pub(super) real_time_waiting: u64,
    pub(super) best_effort_waiting: u64,
    pub(super) preemptions: u64,
    pub(super) preemptions_per_s: f64,
    /// Since the daemon started.
    pub(super) preemption_latency_us: LatencyStatus,
    pub(super) launches_per_s: f64,
    pub(super) evicted_launches_per_s: f64,
    pub(super) padded_launches_per_s: f64,
    pub(super) memory_bytes: u64,
    pub(super) memory_used_bytes: u64,
    pub(super) units: Vec<UnitRow>,
}

/// A compute unit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnitRow {
    pub(super) unit: usize,
    /// Share of the interval in which it ran blocks.
    pub(super) used: f64,
    pub(super) chunks_per_s: f64,
}

/// A function.
#[derive(Debug, Serialize)]
pub(super) struct FunctionRow {
    pub(super) device: String,
    pub(super) tenant: Tenant,
    pub(super) function: String,
    /// The class of requests that state none.
    pub(super) class: Class,
    /// Share of the requests that arrived which were real-time; `None` if none arrived.
    pub(super) real_time_share: Option<f64>,
    pub(super) running: u64,
    pub(super) waiting: u64,
    /// Requests with a result.
    pub(super) requests_per_s: f64,
    /// Requests without a result, including rejected ones.
    pub(super) failures_per_s: f64,
    pub(super) preemptions_per_s: f64,
    /// Latencies of requests with a result; `None` if there were none.
    pub(super) latency_ms: Option<Latency>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// Takes snapshots of a daemon.
pub(super) struct Sampler {
    client: Client,
    last: StatusReport,
    at: Instant,
    /// Indexed by device number.
    devices: Vec<Watched>,
}

/// Reading position and open requests of a device.
#[derive(Debug)]
struct Watched {
    next: u64,
    requests: Requests,
}

impl Sampler {
    pub(super) fn new(mut client: Client) -> Result<Sampler> {
        let (mut devices, mut count) = (Vec::new(), 1);
        while devices.len() < count {
            let piece = client.trace(devices.len() as u16, None).classify()?;
            count = piece.devices.len();
            devices.push(Watched { next: piece.next, requests: Requests::default() });
        }
        let last = client.status().classify()?;
        Ok(Sampler { client, last, at: Instant::now(), devices })
    }

    /// The activity since the previous snapshot.
    pub(super) fn sample(&mut self) -> Result<Snapshot> {
        let mut lost_records = 0;
        for (at, watched) in self.devices.iter_mut().enumerate() {
            lost_records += watched.look(&mut self.client, at as u16)?;
        }
        let status = self.client.status().classify()?;
        let interval_s = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        let last = std::mem::replace(&mut self.last, status);
        let mut requests: Vec<&mut Requests> = self.devices.iter_mut().map(|watched| &mut watched.requests).collect();
        Ok(snapshot(&last, &self.last, &mut requests, interval_s, lost_records))
    }
}

impl Watched {
    /// Reads the records since the previous call. Returns the number of lost ones.
    fn look(&mut self, client: &mut Client, device: u16) -> Result<u64> {
        let mut lost_records = 0;
        loop {
            let piece = client.trace(device, Some(self.next)).classify()?;
            self.next = piece.next;
            lost_records += piece.lost;
            piece.functions.iter().for_each(|(number, name)| self.requests.name(*number, &name.tenant, &name.name));
            piece.records.iter().for_each(|record| self.requests.take(record));
            if !piece.more {
                return Ok(lost_records);
            }
        }
    }
}

/// Requests, reconstructed from records.
#[derive(Debug, Default)]
pub(super) struct Requests {
    names: HashMap<u64, (String, String)>,
    /// Open requests: time of arrival, and whether they are real-time.
    open: HashMap<TaskId, (Nanos, bool)>,
    urgent: u64,
    urgent_since: Nanos,
    urgent_ns: u64,
    /// What was seen of each function since the previous call of [`Requests::seen`].
    seen: HashMap<u64, Seen>,
}

/// What was seen of a function.
#[derive(Debug, Default)]
struct Seen {
    /// Requests that arrived, and how many of them were real-time.
    arrived: u64,
    urgent: u64,
    /// Latencies of requests with a result, in nanoseconds.
    latencies: Vec<u64>,
}

impl Seen {
    fn real_time_share(&self) -> Option<f64> {
        (self.arrived > 0).then(|| self.urgent as f64 / self.arrived as f64)
    }
}

impl Requests {
    /// Sets the name of a function.
    pub(super) fn name(&mut self, number: u64, tenant: &str, name: &str) {
        self.names.insert(number, (tenant.to_owned(), name.to_owned()));
    }

    pub(super) fn take(&mut self, record: &Record) {
        match record.kind {
            EventKind::Arrived { class, .. } if self.open.len() < REQUESTS_MAX => {
                let is_urgent = class == Class::RealTime;
                self.end(record.task, record.at);
                self.open.insert(record.task, (record.at, is_urgent));
                let seen = self.seen.entry(record.function).or_default();
                seen.arrived += 1;
                seen.urgent += u64::from(is_urgent);
                if is_urgent {
                    self.urgent_since = if self.urgent == 0 { record.at } else { self.urgent_since };
                    self.urgent += 1;
                }
            }
            EventKind::Finished { outcome, .. } => {
                if let Some(arrived) = self.end(record.task, record.at)
                    && outcome == Outcome::Complete
                {
                    let latencies = &mut self.seen.entry(record.function).or_default().latencies;
                    latencies.push(record.at.0.saturating_sub(arrived.0));
                }
            }
            _ => {}
        }
    }

    /// Ends a request and returns its time of arrival.
    fn end(&mut self, task: TaskId, at: Nanos) -> Option<Nanos> {
        let (arrived, is_urgent) = self.open.remove(&task)?;
        if is_urgent {
            self.urgent -= 1;
            if self.urgent == 0 {
                self.urgent_ns += at.0.saturating_sub(self.urgent_since.0);
            }
        }
        Some(arrived)
    }

    /// What was seen since the previous call, by tenant and name.
    fn seen(&mut self) -> HashMap<(String, String), Seen> {
        let mut all: HashMap<_, Seen> = HashMap::new();
        for (function, mut seen) in self.seen.drain() {
            let Some(name) = self.names.get(&function) else { continue };
            let of = all.entry(name.clone()).or_default();
            of.arrived += seen.arrived;
            of.urgent += seen.urgent;
            of.latencies.append(&mut seen.latencies);
        }
        all
    }
}

/// Builds a snapshot. `requests` has one entry per device, in the order of the status.
pub(super) fn snapshot(
    last: &StatusReport,
    now: &StatusReport,
    requests: &mut [&mut Requests],
    interval_s: f64,
    lost_records: u64,
) -> Snapshot {
    // Each function is on one device, so the maps are disjoint.
    let mut seen = HashMap::new();
    requests.iter_mut().for_each(|requests| seen.extend(requests.seen()));
    let functions = now.functions.iter().map(|now| {
        let last = last.functions.iter().find(|last| (&last.tenant, &last.function) == (&now.tenant, &now.function));
        let seen = seen.remove(&(now.tenant.to_string(), now.function.clone())).unwrap_or_default();
        function(last, now, seen, interval_s)
    });
    let functions = functions.collect();
    let mut urgent_s = requests.iter_mut().map(|requests| std::mem::take(&mut requests.urgent_ns) as f64 / 1e9);
    let devices = now.devices.iter().map(|now| {
        let real_time_share = (urgent_s.next().unwrap_or(0.0) / interval_s).min(1.0);
        let last = last.devices.iter().find(|last| last.device == now.device).and_then(|last| last.whole.as_ref());
        DeviceRow {
            device: now.device.clone(),
            compute_units: now.compute_units,
            lost: now.lost.clone(),
            whole: now.whole.as_ref().zip(last).map(|(now, last)| whole(last, now, real_time_share, interval_s)),
        }
    });
    let devices: Vec<DeviceRow> = devices.collect();
    let (policy, uptime_s) = (now.policy.clone(), now.uptime_s);
    Snapshot { first: devices.first().cloned(), policy, uptime_s, interval_s, lost_records, devices, functions }
}

fn function(last: Option<&FunctionStatus>, now: &FunctionStatus, seen: Seen, interval_s: f64) -> FunctionRow {
    let rate = |of: fn(&FunctionStatus) -> u64| of(now).saturating_sub(last.map_or(0, of)) as f64 / interval_s;
    FunctionRow {
        device: now.device.clone(),
        tenant: now.tenant.clone(),
        function: now.function.clone(),
        class: now.class,
        real_time_share: seen.real_time_share(),
        running: now.running,
        waiting: now.waiting,
        requests_per_s: rate(|function| function.success),
        failures_per_s: rate(|function| function.failure + function.rejected),
        preemptions_per_s: rate(|function| function.preemptions),
        latency_ms: latency(seen.latencies),
    }
}

fn whole(last: &WholeStatus, now: &WholeStatus, real_time_share: f64, interval_s: f64) -> Whole {
    let per_s = |of: fn(&WholeStatus) -> u64| of(now).saturating_sub(of(last)) as f64 / interval_s;
    let unit = |(unit, (now, last)): (usize, (&UnitStatus, &UnitStatus))| UnitRow {
        unit,
        used: ((now.busy_s - last.busy_s) / interval_s).clamp(0.0, 1.0),
        chunks_per_s: now.chunks.saturating_sub(last.chunks) as f64 / interval_s,
    };
    Whole {
        mode: if now.real_time_mode { "real-time" } else { "normal" },
        real_time_share,
        queue_depths: now.queue_depths.clone(),
        queue_capacity: now.queue_capacity,
        real_time_waiting: now.real_time_waiting,
        best_effort_waiting: now.best_effort_waiting,
        preemptions: now.preemptions,
        preemptions_per_s: per_s(|status| status.preemptions),
        preemption_latency_us: now.preemption_latency_us,
        launches_per_s: per_s(|status| status.launches),
        evicted_launches_per_s: per_s(|status| status.evicted_launches),
        padded_launches_per_s: per_s(|status| status.padded_launches),
        memory_bytes: now.memory_bytes,
        memory_used_bytes: now.memory_used_bytes,
        units: now.units.iter().zip(&last.units).enumerate().map(unit).collect(),
    }
}

fn latency(mut taken: Vec<u64>) -> Option<Latency> {
    taken.sort_unstable();
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |q: f64| ms(taken[((taken.len() as f64 * q).ceil() as usize).clamp(1, taken.len()) - 1]);
    let max = ms(*taken.last()?);
    Some(Latency {
        mean: taken.iter().map(|&ns| ms(ns)).sum::<f64>() / taken.len() as f64,
        p50: at(0.5),
        p99: at(0.99),
        max,
    })
}
