//! Every metric there is: one row each.
//!
//! A metric is of each device, whose name is the label `device` of all its samples, or of the
//! daemon as a whole.
//!
//! `nv_inference_*` and `nv_gpu_*` are Triton's names, kept so that dashboards made for it show
//! something; ours end in `_total` where they count, and are in seconds and bytes.

use super::recorder::{BUCKETS_NS, CLASSES, DeviceRecorder, Outcome, Recorder, class_label};
use super::text::{Labels, Samples};
use super::usage::{per_row, per_row_and};
use crate::model::Model;
use crate::places::Closed;
use atoll_engine::{
    Class, ComputeUnitUse, EngineStatistics, FunctionStatistics, Histogram, InvocationOutcome, MemoryKind, TenantBytes,
    TenantMemory, UsageRow,
};
use atoll_protocol::ModelState;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A device at one moment.
pub(super) struct DeviceSnapshot<'a> {
    pub(super) name: &'a str,
    pub(super) engine: EngineStatistics,
    /// Who used how much, with a bounded number of functions.
    pub(super) usage: Vec<UsageRow>,
    /// Models on it that take requests.
    pub(super) models: Vec<Arc<Model>>,
    pub(super) recorder: &'a DeviceRecorder,
}

/// Everything at one moment.
pub(super) struct Snapshot<'a> {
    pub(super) devices: Vec<DeviceSnapshot<'a>>,
    pub(super) states: Vec<(ModelState, usize)>,
    /// Bytes of the daemon's copies of bundles.
    pub(super) copies_bytes: u64,
    pub(super) recorder: &'a Recorder,
}

/// One row of the table.
pub(super) struct Metric {
    pub(super) name: &'static str,
    kind: Kind,
    help: &'static str,
    collect: Collect,
}

/// What a metric is about, and where its samples come from.
#[derive(Clone, Copy)]
enum Collect {
    /// Each device: its samples have the label `device`.
    Device(fn(&DeviceSnapshot<'_>, &mut Samples<'_>)),
    /// The daemon as a whole, whatever devices it has.
    Daemon(fn(&Snapshot<'_>, &mut Samples<'_>)),
}

#[derive(Clone, Copy)]
enum Kind {
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

const fn counter(name: &'static str, help: &'static str, collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>)) -> Metric {
    Metric { name, kind: Kind::Counter, help, collect: Collect::Device(collect) }
}

const fn gauge(name: &'static str, help: &'static str, collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>)) -> Metric {
    Metric { name, kind: Kind::Gauge, help, collect: Collect::Device(collect) }
}

const fn histogram(
    name: &'static str,
    help: &'static str,
    collect: fn(&DeviceSnapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind: Kind::Histogram, help, collect: Collect::Device(collect) }
}

/// A metric of the daemon as a whole.
const fn of_daemon(
    kind: Kind,
    name: &'static str,
    help: &'static str,
    collect: fn(&Snapshot<'_>, &mut Samples<'_>),
) -> Metric {
    Metric { name, kind, help, collect: Collect::Daemon(collect) }
}

/// All metrics.
pub(super) const METRICS: &[Metric] = &[
    counter("nv_inference_request_success", "Requests with a result", |s, out| per_model(s, out, |f| f.success)),
    counter("nv_inference_request_failure", "Requests without a result", |s, out| {
        per_model(s, out, |f| f.failure + f.rejected)
    }),
    counter("nv_inference_count", "Inferences; as many as requests, because requests are not batched", |s, out| {
        per_model(s, out, |f| f.success)
    }),
    counter("nv_inference_exec_count", "Executions; as many as inferences", |s, out| per_model(s, out, |f| f.success)),
    counter(
        "nv_inference_request_duration_us",
        "Sum of the time from submission to answer, in microseconds",
        |s, out| {
            per_model(s, out, |f| (f.queue_ns + f.input_ns + f.compute_ns + f.output_ns) / 1000);
        },
    ),
    counter("nv_inference_queue_duration_us", "Part of it spent waiting", |s, out| {
        per_model(s, out, |f| f.queue_ns / 1000)
    }),
    counter("nv_inference_compute_input_duration_us", "Part of it spent writing inputs", |s, out| {
        per_model(s, out, |f| f.input_ns / 1000)
    }),
    counter("nv_inference_compute_infer_duration_us", "Part of it spent computing", |s, out| {
        per_model(s, out, |f| f.compute_ns / 1000)
    }),
    counter("nv_inference_compute_output_duration_us", "Part of it spent reading outputs", |s, out| {
        per_model(s, out, |f| f.output_ns / 1000)
    }),
    gauge("nv_inference_pending_request_count", "Requests that wait", |s, out| per_model(s, out, |f| f.in_queue)),
    gauge("nv_gpu_memory_total_bytes", "Device memory that may be used", |s, out| {
        out.integer(&[("gpu_uuid", s.name)], s.engine.device.memory_total_bytes);
    }),
    gauge("nv_gpu_memory_used_bytes", "Device memory in use", |s, out| {
        out.integer(&[("gpu_uuid", s.name)], s.engine.device.memory_used_bytes);
    }),
    counter("atoll_requests_total", "Inference requests by class and how they ended", |s, out| {
        for class in CLASSES {
            for outcome in Outcome::ALL {
                out.integer(
                    &[("class", class_label(class)), ("outcome", outcome.label())],
                    s.recorder.requests(class, outcome),
                );
            }
        }
    }),
    histogram(
        "atoll_request_duration_seconds",
        "From the head of a request to its answer, of successful requests",
        |s, out| {
            for class in CLASSES {
                let durations = s.recorder.durations(class);
                out.histogram(&[("class", class_label(class))], &durations.cumulative(), durations.sum_ns());
            }
        },
    ),
    gauge("atoll_queue_depth", "Invocations that wait for a device queue", |s, out| {
        for class in CLASSES {
            let waiting = s.engine.classes.iter().find(|c| c.class == class).map_or(0, |c| c.waiting);
            out.integer(&[("class", class_label(class))], waiting);
        }
    }),
    gauge("atoll_running_invocations", "Invocations that have memory on the device", |s, out| {
        per_model(s, out, |f| f.running)
    }),
    counter("atoll_rejected_requests_total", "Requests that were refused before they could wait", |s, out| {
        per_model(s, out, |f| f.rejected)
    }),
    counter("atoll_preemptions_total", "Times running tasks were told to leave the device", |s, out| {
        out.integer(&[], s.engine.preemptions)
    }),
    gauge("atoll_real_time_mode", "1 while real-time invocations are served", |s, out| {
        out.integer(&[], u64::from(s.engine.real_time_mode))
    }),
    gauge("atoll_device_queue_depth", "Launches in a device queue; queue 0 is the most urgent", |s, out| {
        for (queue, depth) in s.engine.device.queue_depths.iter().enumerate() {
            out.integer(&[("queue", &queue.to_string())], *depth);
        }
    }),
    counter("atoll_padded_launches_total", "Real-time launches beside which best-effort blocks ran", |s, out| {
        out.integer(&[], s.engine.padded_launches);
    }),
    counter("atoll_padding_blocks_total", "Best-effort blocks that ran beside real-time launches", |s, out| {
        out.integer(&[], s.engine.padding_blocks);
    }),
    counter(
        "atoll_compute_unit_busy_seconds_total",
        "How long a compute unit ran blocks, by its own count",
        |s, out| {
            per_unit(s, |unit, used| out.number(&[("unit", unit)], used.busy_ns as f64 / 1e9));
        },
    ),
    counter(
        "atoll_compute_unit_chunks_total",
        "Times a compute unit ran blocks in a row without looking for more urgent work",
        |s, out| {
            per_unit(s, |unit, used| out.integer(&[("unit", unit)], used.chunks));
        },
    ),
    counter("atoll_function_preemptions_total", "The same by model", |s, out| per_model(s, out, |f| f.preemptions)),
    counter("atoll_parallel_branches_total", "Parts of invocations whose branches ran beside each other", |s, out| {
        out.integer(&[], s.engine.forks);
    }),
    counter(
        "atoll_best_effort_slices_total",
        "Times best-effort work was given the device although real-time work was there",
        |s, out| {
            out.integer(&[], s.engine.best_effort_slices);
        },
    ),
    counter("atoll_issued_launches_total", "Launches handed to the device, repeated ones included", |s, out| {
        out.integer(&[], s.engine.issued_launches);
    }),
    counter("atoll_evicted_launches_total", "Launches that left the device early", |s, out| {
        out.integer(&[], s.engine.evicted_launches)
    }),
    counter(
        "atoll_aborted_launches_total",
        "Launches ended by force because nobody wanted their invocation any more",
        |s, out| {
            out.integer(&[], s.engine.aborted_launches);
        },
    ),
    counter(
        "atoll_reexecuted_blocks_total",
        "Times blocks were stopped midway for more urgent ones and had to begin again",
        |s, out| {
            out.integer(&[], s.engine.reexecuted_blocks);
        },
    ),
    counter(
        "atoll_discarded_seconds_total",
        "Compute-unit time of blocks that were stopped midway, until then",
        |s, out| {
            out.number(&[], s.engine.discarded_ns as f64 / 1e9);
        },
    ),
    gauge(
        "atoll_padding_modules",
        "Modules on the device in which kernels of several functions share launches",
        |s, out| {
            out.integer(&[], s.engine.padding_modules);
        },
    ),
    gauge("atoll_padding_candidates", "Kernels in them", |s, out| out.integer(&[], s.engine.padding_candidates)),
    histogram(
        "atoll_preemption_latency_seconds",
        "From the submission of a real-time invocation that evicts others to its first block",
        |s, out| {
            engine_histogram(out, &[], &s.engine.preemption_latency);
        },
    ),
    histogram(
        "atoll_drain_latency_seconds",
        "From the submission of a real-time invocation that evicts others until nothing that had to leave was left on the device",
        |s, out| {
            engine_histogram(out, &[], &s.engine.drain_latency);
        },
    ),
    histogram(
        "atoll_flag_latency_seconds",
        "From a raised epoch until a launch was off the device of which no block had begun",
        |s, out| {
            engine_histogram(out, &[], &s.engine.flag_latency);
        },
    ),
    histogram(
        "atoll_interrupt_latency_seconds",
        "From a raised epoch until a launch was off the device of which blocks were stopped",
        |s, out| {
            engine_histogram(out, &[], &s.engine.interrupt_latency);
        },
    ),
    histogram(
        "atoll_rt_start_latency_seconds",
        "From the submission of any real-time invocation to its first block",
        |s, out| {
            engine_histogram(out, &[], &s.engine.rt_start_latency);
        },
    ),
    gauge("atoll_device_memory_bytes", "Device memory that may be used", |s, out| {
        out.integer(&[], s.engine.device.memory_total_bytes)
    }),
    gauge("atoll_device_memory_used_bytes", "Device memory in use", |s, out| {
        out.integer(&[], s.engine.device.memory_used_bytes)
    }),
    gauge("atoll_device_memory_used_bytes_max", "The most device memory that was ever in use", |s, out| {
        out.integer(&[], s.engine.device.memory_used_bytes_max);
    }),
    gauge(
        "atoll_tenant_memory_bytes",
        "Device memory that tenants with a quota use, in all and for best-effort work",
        |s, out| {
            per_tenant(s, out, |tenant| tenant.used);
        },
    ),
    gauge("atoll_tenant_memory_quota_bytes", "What they may use", |s, out| per_tenant(s, out, |tenant| tenant.quota)),
    gauge(
        "atoll_constants_bytes",
        "Constants of a model by where they are: on the device, in host memory (maybe both), on disk only",
        |s, out| {
            for model in &s.models {
                let memory = function_of(s, model).map_or_else(Default::default, |f| f.memory);
                let host = memory.constant_host_bytes.min(memory.constant_bytes);
                for (tier, bytes) in
                    [("device", memory.constant_device_bytes), ("host", host), ("disk", memory.constant_bytes - host)]
                {
                    out.integer(&[("model", &model.name), ("version", &model.version), ("tier", tier)], bytes);
                }
            }
        },
    ),
    gauge("atoll_device_constants_bytes", "Device memory that holds constants, equal ones once", |s, out| {
        out.integer(&[], s.engine.device.constant_bytes);
    }),
    gauge("atoll_cold_invocations", "Invocations that wait for constants or memory", |s, out| {
        out.integer(&[], s.engine.cold_invocations)
    }),
    counter(
        "atoll_constants_loads_total",
        "Times constants were brought to the device, by where they were",
        |s, out| {
            let constants = s.engine.constants;
            for (tier, loads) in [("host", constants.loads - constants.disk_loads), ("disk", constants.disk_loads)] {
                out.integer(&[("tier", tier)], loads);
            }
        },
    ),
    counter("atoll_constants_loaded_bytes_total", "Bytes of constants written to the device", |s, out| {
        out.integer(&[], s.engine.constants.loaded_bytes);
    }),
    counter("atoll_constants_evictions_total", "Times constants had to make room", |s, out| {
        out.integer(&[], s.engine.constants.evictions)
    }),
    counter("atoll_constants_evicted_bytes_total", "Their sizes at those times", |s, out| {
        out.integer(&[], s.engine.constants.evicted_bytes)
    }),
    gauge("atoll_device_lost", "1 once the device failed for good", |s, out| {
        out.integer(&[], u64::from(s.engine.device.lost.is_some()))
    }),
    gauge(
        "atoll_executors",
        "Processes that run launches for the device; none where it runs in the daemon itself",
        |s, out| {
            out.integer(&[], s.engine.device.executors.alive);
        },
    ),
    counter("atoll_executor_starts_total", "Processes that were started to run launches", |s, out| {
        out.integer(&[], s.engine.device.executors.started);
    }),
    counter(
        "atoll_executor_losses_total",
        "Such processes that were lost, by how: they died, hung, or did what they may not",
        |s, out| {
            let executors = &s.engine.device.executors;
            for (cause, count) in
                [("died", executors.died), ("hung", executors.hung), ("offended", executors.protocol_violations)]
            {
                out.integer(&[("cause", cause)], count);
            }
        },
    ),
    counter("atoll_retries_total", "Invocations that were run again because their process was lost", |s, out| {
        out.integer(&[], s.engine.retries);
    }),
    gauge("atoll_device_compute_units", "Compute units", |s, out| {
        out.integer(&[], s.engine.device.compute_units.into())
    }),
    counter(
        "atoll_device_busy_seconds_total",
        "How long compute units ran blocks, by their own count, divided by their number",
        |s, out| {
            if let Some(busy_ns) = s.engine.device.busy_ns {
                out.number(&[], device_seconds(s, busy_ns.into()));
            }
        },
    ),
    counter("atoll_usage_device_seconds_total", "Time on the device times the share of its compute units", |s, out| {
        per_row(s, out, |usage| device_seconds(s, usage.compute_unit_ns));
    }),
    counter("atoll_usage_memory_byte_seconds_total", "Device memory held, over time, by what it is for", |s, out| {
        per_row_and(s, out, ("kind", MEMORY_KINDS), |usage, kind| usage.memory[kind as usize].byte_ns as f64 / 1e9);
    }),
    gauge("atoll_usage_memory_bytes", "Device memory held now, by what it is for", |s, out| {
        per_row_and(s, out, ("kind", MEMORY_KINDS), |usage, kind| usage.memory[kind as usize].bytes as f64);
    }),
    counter(
        "atoll_usage_moved_bytes_total",
        "Bytes written to the device (inputs, constants) and read from it (outputs)",
        |s, out| {
            per_row_and(s, out, ("direction", &[(false, "written"), (true, "read")]), |usage, read| {
                if read { usage.read_bytes as f64 } else { usage.written_bytes as f64 }
            });
        },
    ),
    counter(
        "atoll_usage_invocations_total",
        "Invocations that were admitted and are over, by how they ended",
        |s, out| {
            per_row_and(s, out, ("outcome", OUTCOMES), |usage, outcome| usage.invocations[outcome as usize] as f64);
        },
    ),
    counter("atoll_usage_launches_total", "Launches that ended on the device, repeated ones included", |s, out| {
        per_row(s, out, |usage| usage.launches as f64);
    }),
    counter("atoll_usage_preemptions_total", "Times invocations were told to leave the device for others", |s, out| {
        per_row(s, out, |usage| usage.preemptions as f64);
    }),
    counter(
        "atoll_usage_retries_total",
        "Times invocations were run again because the device under them was lost",
        |s, out| {
            per_row(s, out, |usage| usage.retries as f64);
        },
    ),
    counter(
        "atoll_usage_cold_starts_total",
        "Times constants had to be brought to the device, by where they were",
        |s, out| {
            per_row_and(s, out, ("tier", &[(false, "host"), (true, "disk")]), |usage, disk| {
                if disk { usage.disk_cold_starts as f64 } else { (usage.cold_starts - usage.disk_cold_starts) as f64 }
            });
        },
    ),
    counter("atoll_usage_reclaims_total", "Times constants were taken off the device for others", |s, out| {
        per_row(s, out, |usage| usage.reclaims as f64);
    }),
    of_daemon(Kind::Gauge, "atoll_models", "Models of the repository by state", |s, out| {
        for (state, count) in &s.states {
            out.integer(&[("state", state_label(*state))], *count as u64);
        }
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_bundle_copies_bytes",
        "The daemon's own copies of the bundles that it serves from the repository",
        |s, out| out.integer(&[], s.copies_bytes),
    ),
    of_daemon(Kind::Counter, "atoll_http_responses_total", "Answers on the protocol's port by status", |s, out| {
        for (digit, code) in (1..).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
            out.integer(&[("code", code)], s.recorder.responses(digit));
        }
    }),
    of_daemon(Kind::Gauge, "atoll_connections", "Open connections", |s, out| {
        out.integer(&[], s.recorder.connections.load(Ordering::Relaxed) as u64)
    }),
    of_daemon(
        Kind::Counter,
        "atoll_connections_closed_total",
        "Connections closed by the daemon for doing nothing, by reason",
        |s, out| {
            for why in Closed::ALL {
                out.integer(&[("reason", why.label())], s.recorder.closed.of(why));
            }
        },
    ),
    of_daemon(Kind::Gauge, "atoll_build_info", "Always 1; the labels say what runs", |_, out| {
        out.number(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)
    }),
];

const MEMORY_KINDS: &[(MemoryKind, &str)] = &{
    use MemoryKind::{Constants, Idle, Invocations};
    [(Constants, Constants.label()), (Invocations, Invocations.label()), (Idle, Idle.label())]
};

const OUTCOMES: &[(InvocationOutcome, &str)] = &{
    use InvocationOutcome::{Cancelled, DeadlineExceeded, Failed, Refused, Success};
    [
        (Success, Success.label()),
        (Failed, Failed.label()),
        (Cancelled, Cancelled.label()),
        (DeadlineExceeded, DeadlineExceeded.label()),
        (Refused, Refused.label()),
    ]
};

/// Time of compute units as time of the whole device.
fn device_seconds(snapshot: &DeviceSnapshot<'_>, compute_unit_ns: u128) -> f64 {
    compute_unit_ns as f64 / 1e9 / f64::from(snapshot.engine.device.compute_units.max(1))
}

fn function_of<'a>(snapshot: &'a DeviceSnapshot<'_>, model: &Model) -> Option<&'a FunctionStatistics> {
    snapshot.engine.functions.iter().find(|f| f.key == model.key)
}

/// A sample per model that takes requests, from its first moment on.
fn per_model(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&FunctionStatistics) -> u64) {
    for model in &snapshot.models {
        let labels: Labels<'_> = &[("model", &model.name), ("version", &model.version)];
        out.integer(labels, function_of(snapshot, model).map_or(0, &value));
    }
}

/// What bounds nothing has no sample.
fn per_tenant(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&TenantMemory) -> TenantBytes) {
    for tenant in &snapshot.engine.tenants {
        let TenantBytes { all, best_effort } = value(tenant);
        for (class, bytes) in [("all", all), (class_label(Class::BestEffort), best_effort)] {
            if bytes != u64::MAX {
                out.integer(&[("tenant", tenant.tenant.as_str()), ("class", class)], bytes);
            }
        }
    }
}

fn per_unit(snapshot: &DeviceSnapshot<'_>, mut sample: impl FnMut(&str, &ComputeUnitUse)) {
    for (unit, used) in snapshot.engine.device.units.iter().enumerate() {
        sample(&unit.to_string(), used);
    }
}

fn engine_histogram(out: &mut Samples<'_>, labels: Labels<'_>, histogram: &Histogram) {
    let bounds = BUCKETS_NS.iter().map(|bound| histogram.count_at_most(*bound));
    let cumulative: Vec<u64> = bounds.chain([histogram.count()]).collect();
    out.histogram(labels, &cumulative, histogram.sum_ns());
}

fn state_label(state: ModelState) -> &'static str {
    match state {
        ModelState::Ready => "ready",
        ModelState::Loading => "loading",
        ModelState::Unloading => "unloading",
        ModelState::Unavailable => "unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_follow_the_custom() {
        let mut names = HashSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{} is there twice", metric.name);
            assert!(!metric.help.is_empty());
            let counts = matches!(metric.kind, Kind::Counter) && metric.name.starts_with("atoll_");
            assert_eq!(metric.name.ends_with("_total"), counts, "{}: exactly our counters end in _total", metric.name);
            assert_eq!(metric.name.ends_with("_seconds"), matches!(metric.kind, Kind::Histogram), "{}", metric.name);
        }
    }
}
