//! The table of all metrics, one row each.
//!
//! A metric describes either each device (its samples then have the label `device`) or the daemon
//! as a whole.
//!
//! `nv_inference_*` and `nv_gpu_*` are Triton's names, so that dashboards for Triton work. Names of
//! Atoll's own counters end in `_total`; units are seconds and bytes.

use super::batches::{function_of, gather_seconds, rows};
use super::executors;
use super::inference::{per_function, per_model};
use super::metric::{DeviceSnapshot, Kind, Metric, counter, gauge, histogram, of_daemon};
use super::recorder::{BUCKETS_NS, CLASSES, Outcome, class_label};
use super::text::{Labels, Samples};
use super::usage::{billed_seconds, per_row, per_row_and, price_units};
use crate::identity::Reason;
use crate::places::Closed;
use atoll_engine::{Class, ComputeUnitUse, Histogram, InvocationOutcome, MemoryKind, TenantBytes, TenantMemory};
use atoll_protocol::ModelState;
use std::sync::atomic::Ordering;

/// All metrics.
pub(super) const METRICS: &[Metric] = &[
    counter("nv_inference_request_success", "Requests with a result, also from the response cache", |s, out| {
        per_model(s, out, |c| c.success)
    }),
    counter("nv_inference_request_failure", "Requests without a result", |s, out| per_model(s, out, |c| c.failure)),
    counter("nv_inference_count", "Inferences: requests, or their rows for models with max_batch_size", |s, out| {
        per_model(s, out, |c| c.inferences)
    }),
    counter("nv_inference_exec_count", "Executions; fewer than requests if they are batched", |s, out| {
        per_model(s, out, |c| c.executions)
    }),
    counter(
        "nv_inference_request_duration_us",
        "Sum of the time from submission to answer, in microseconds",
        |s, out| per_model(s, out, |c| c.request_ns / 1000),
    ),
    counter(
        "nv_inference_queue_duration_us",
        "Part of the request duration spent in queues, in microseconds",
        |s, out| per_model(s, out, |c| c.queue_ns / 1000),
    ),
    counter(
        "nv_inference_compute_input_duration_us",
        "Part of the request duration spent writing inputs, in microseconds",
        |s, out| per_model(s, out, |c| c.input_ns / 1000),
    ),
    counter(
        "nv_inference_compute_infer_duration_us",
        "Part of the request duration spent computing, in microseconds",
        |s, out| per_model(s, out, |c| c.compute_ns / 1000),
    ),
    counter(
        "nv_inference_compute_output_duration_us",
        "Part of the request duration spent reading outputs, in microseconds",
        |s, out| per_model(s, out, |c| c.output_ns / 1000),
    ),
    histogram("atoll_batch_rows", "Rows of the runs of models with max_batch_size", rows),
    counter("atoll_batch_gather_seconds_total", "Time that requests waited for others of their batch", gather_seconds),
    gauge("nv_inference_pending_request_count", "Queued requests", |s, out| per_model(s, out, |c| c.in_queue)),
    gauge("nv_gpu_memory_total_bytes", "Usable device memory", |s, out| {
        out.integer(&[("gpu_uuid", s.name)], s.engine.device.memory_total_bytes);
    }),
    gauge("nv_gpu_memory_used_bytes", "Device memory in use", |s, out| {
        out.integer(&[("gpu_uuid", s.name)], s.engine.device.memory_used_bytes);
    }),
    counter("atoll_requests_total", "Inference requests by class and outcome", |s, out| {
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
        "Time from the head of a request to its answer, for successful requests",
        |s, out| {
            for class in CLASSES {
                let durations = s.recorder.durations(class);
                out.histogram(&[("class", class_label(class))], &durations.cumulative(), durations.sum_ns());
            }
        },
    ),
    gauge("atoll_queue_depth", "Invocations waiting for a device queue", |s, out| {
        for class in CLASSES {
            let waiting = s.engine.classes.iter().find(|c| c.class == class).map_or(0, |c| c.waiting);
            out.integer(&[("class", class_label(class))], waiting);
        }
    }),
    gauge("atoll_running_invocations", "Invocations that hold memory on the device", |s, out| {
        per_function(s, out, |f| f.running)
    }),
    counter("atoll_rejected_requests_total", "Requests refused before they were queued", |s, out| {
        per_function(s, out, |f| f.rejected)
    }),
    counter("atoll_preemptions_total", "Preemptions of running tasks", |s, out| out.integer(&[], s.engine.preemptions)),
    gauge("atoll_real_time_mode", "1 while real-time invocations are being served", |s, out| {
        out.integer(&[], u64::from(s.engine.real_time_mode))
    }),
    gauge("atoll_device_queue_depth", "Launches in a device queue; queue 0 is the most urgent", |s, out| {
        for (queue, depth) in s.engine.device.queue_depths.iter().enumerate() {
            out.integer(&[("queue", &queue.to_string())], *depth);
        }
    }),
    counter("atoll_padded_launches_total", "Real-time launches with co-scheduled best-effort blocks", |s, out| {
        out.integer(&[], s.engine.padded_launches);
    }),
    counter("atoll_padding_blocks_total", "Best-effort blocks that ran in real-time launches", |s, out| {
        out.integer(&[], s.engine.padding_blocks);
    }),
    counter(
        "atoll_compute_unit_busy_seconds_total",
        "Time during which a compute unit ran blocks, as measured by the unit",
        |s, out| {
            per_unit(s, |unit, used| out.number(&[("unit", unit)], used.busy_ns as f64 / 1e9));
        },
    ),
    counter(
        "atoll_compute_unit_chunks_total",
        "Chunks of blocks that a compute unit ran without checking for more urgent work",
        |s, out| {
            per_unit(s, |unit, used| out.integer(&[("unit", unit)], used.chunks));
        },
    ),
    counter("atoll_function_preemptions_total", "Preemptions of running tasks, by model", |s, out| {
        per_function(s, out, |f| f.preemptions)
    }),
    counter("atoll_parallel_branches_total", "Parts of invocations whose branches ran in parallel", |s, out| {
        out.integer(&[], s.engine.forks);
    }),
    counter(
        "atoll_best_effort_slices_total",
        "Time slices given to best-effort work while real-time work was waiting",
        |s, out| {
            out.integer(&[], s.engine.best_effort_slices);
        },
    ),
    counter("atoll_issued_launches_total", "Launches submitted to the device, including repeated ones", |s, out| {
        out.integer(&[], s.engine.issued_launches);
    }),
    counter("atoll_evicted_launches_total", "Launches evicted from the device before they completed", |s, out| {
        out.integer(&[], s.engine.evicted_launches)
    }),
    counter("atoll_aborted_launches_total", "Launches aborted because their invocation was cancelled", |s, out| {
        out.integer(&[], s.engine.aborted_launches);
    }),
    counter(
        "atoll_reexecuted_blocks_total",
        "Blocks that were interrupted for more urgent ones and restarted",
        |s, out| {
            out.integer(&[], s.engine.reexecuted_blocks);
        },
    ),
    counter("atoll_discarded_seconds_total", "Compute-unit time lost to blocks that were interrupted", |s, out| {
        out.number(&[], s.engine.discarded_ns as f64 / 1e9);
    }),
    gauge(
        "atoll_padding_modules",
        "Loaded dkp modules, in which kernels of several functions share launches",
        |s, out| {
            out.integer(&[], s.engine.padding_modules);
        },
    ),
    gauge("atoll_padding_candidates", "Candidate kernels in the loaded dkp modules", |s, out| {
        out.integer(&[], s.engine.padding_candidates)
    }),
    histogram(
        "atoll_preemption_latency_seconds",
        "Time from the submission of a preempting real-time invocation to its first block",
        |s, out| {
            engine_histogram(out, &[], &s.engine.preemption_latency);
        },
    ),
    histogram(
        "atoll_drain_latency_seconds",
        "Time from the submission of a preempting real-time invocation until all evicted launches left the device",
        |s, out| {
            engine_histogram(out, &[], &s.engine.drain_latency);
        },
    ),
    histogram(
        "atoll_flag_latency_seconds",
        "Time from raising the epoch until a launch with no started block left the device",
        |s, out| {
            engine_histogram(out, &[], &s.engine.flag_latency);
        },
    ),
    histogram(
        "atoll_interrupt_latency_seconds",
        "Time from raising the epoch until a launch with interrupted blocks left the device",
        |s, out| {
            engine_histogram(out, &[], &s.engine.interrupt_latency);
        },
    ),
    histogram(
        "atoll_rt_start_latency_seconds",
        "Time from the submission of a real-time invocation to its first block",
        |s, out| {
            engine_histogram(out, &[], &s.engine.rt_start_latency);
        },
    ),
    gauge("atoll_device_memory_bytes", "Usable device memory", |s, out| {
        out.integer(&[], s.engine.device.memory_total_bytes)
    }),
    gauge("atoll_device_memory_used_bytes", "Device memory in use", |s, out| {
        out.integer(&[], s.engine.device.memory_used_bytes)
    }),
    gauge("atoll_device_memory_used_bytes_max", "Peak device memory in use", |s, out| {
        out.integer(&[], s.engine.device.memory_used_bytes_max);
    }),
    gauge(
        "atoll_tenant_memory_bytes",
        "Device memory used by tenants with a quota, in total and by best-effort work",
        |s, out| {
            per_tenant(s, out, |tenant| tenant.used);
        },
    ),
    gauge(
        "atoll_tenant_memory_quota_bytes",
        "Device memory quota of tenants, in total and for best-effort work",
        |s, out| per_tenant(s, out, |tenant| tenant.quota),
    ),
    gauge(
        "atoll_constants_bytes",
        "Constants of a model by tier: on the device, in host memory (possibly both), on disk only",
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
    gauge(
        "atoll_device_constants_bytes",
        "Device memory that holds constants; equal constants are stored once",
        |s, out| {
            out.integer(&[], s.engine.device.constant_bytes);
        },
    ),
    gauge("atoll_cold_invocations", "Invocations waiting for constants or memory", |s, out| {
        out.integer(&[], s.engine.cold_invocations)
    }),
    counter("atoll_constants_loads_total", "Loads of constants onto the device, by source tier", |s, out| {
        let constants = s.engine.constants;
        for (tier, loads) in [("host", constants.loads - constants.disk_loads), ("disk", constants.disk_loads)] {
            out.integer(&[("tier", tier)], loads);
        }
    }),
    counter("atoll_constants_loaded_bytes_total", "Bytes of constants written to the device", |s, out| {
        out.integer(&[], s.engine.constants.loaded_bytes);
    }),
    counter("atoll_constants_evictions_total", "Evictions of constants from the device", |s, out| {
        out.integer(&[], s.engine.constants.evictions)
    }),
    counter("atoll_constants_evicted_bytes_total", "Bytes of constants evicted from the device", |s, out| {
        out.integer(&[], s.engine.constants.evicted_bytes)
    }),
    gauge("atoll_device_lost", "1 after the device has failed permanently", |s, out| {
        out.integer(&[], u64::from(s.engine.device.lost.is_some()))
    }),
    gauge("atoll_executors", "Executor processes of the device; 0 if it runs inside the daemon", |s, out| {
        out.integer(&[], s.engine.device.executors.alive);
    }),
    counter("atoll_executor_starts_total", "Executor processes started", |s, out| {
        out.integer(&[], s.engine.device.executors.started);
    }),
    counter(
        "atoll_executor_losses_total",
        "Executor processes lost, by cause: died, hung, protocol_violation or out_of_memory",
        executors::losses,
    ),
    counter(
        "atoll_executor_cpu_seconds_total",
        "CPU time of the executor processes of each tenant, as the system accounts for it",
        executors::cpu_seconds,
    ),
    gauge(
        "atoll_executor_memory_bytes",
        "Memory in control groups of each tenant's executors: current, peak, and limit if there is one",
        executors::memory_bytes,
    ),
    counter(
        "atoll_executor_throttled_seconds_total",
        "Time in which executors of each tenant waited because of their limit of CPU time (cpus)",
        executors::throttled_seconds,
    ),
    counter("atoll_retries_total", "Invocations run again because their executor was lost", |s, out| {
        out.integer(&[], s.engine.retries);
    }),
    gauge("atoll_device_compute_units", "Compute units", |s, out| {
        out.integer(&[], s.engine.device.compute_units.into())
    }),
    counter(
        "atoll_device_busy_seconds_total",
        "Time during which compute units ran blocks, as measured by the units, divided by their number",
        |s, out| {
            if let Some(busy_ns) = s.engine.device.busy_ns {
                out.number(&[], s.seconds(busy_ns.into()));
            }
        },
    ),
    counter(
        "atoll_usage_device_seconds_total",
        "Time on the device, weighted by the share of its compute units, as it is reported",
        |s, out| {
            per_row(s, out, |usage| s.seconds(usage.compute_unit_ns));
        },
    ),
    counter(
        "atoll_usage_billed_seconds_total",
        "Billed time: CPU time as the kernel counts it for executors, divided by the number of compute units, or the \
         time that is reported where the kernel counts none",
        billed_seconds,
    ),
    counter(
        "atoll_usage_price_units_total",
        "Price of the billed time, in units of account; no samples if no device has a price",
        price_units,
    ),
    counter("atoll_usage_memory_byte_seconds_total", "Device memory held, integrated over time, by kind", |s, out| {
        per_row_and(s, out, ("kind", MEMORY_KINDS), |usage, kind| usage.memory[kind as usize].byte_ns as f64 / 1e9);
    }),
    gauge("atoll_usage_memory_bytes", "Device memory held now, by kind", |s, out| {
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
    counter("atoll_usage_invocations_total", "Finished invocations, by outcome", |s, out| {
        per_row_and(s, out, ("outcome", OUTCOMES), |usage, outcome| usage.invocations[outcome as usize] as f64);
    }),
    counter("atoll_usage_launches_total", "Launches that ended on the device, including repeated ones", |s, out| {
        per_row(s, out, |usage| usage.launches as f64);
    }),
    counter("atoll_usage_preemptions_total", "Preemptions of invocations", |s, out| {
        per_row(s, out, |usage| usage.preemptions as f64);
    }),
    counter("atoll_usage_retries_total", "Invocations run again because their device was lost", |s, out| {
        per_row(s, out, |usage| usage.retries as f64);
    }),
    counter(
        "atoll_usage_cold_starts_total",
        "Cold starts: loads of constants for an invocation, by source tier",
        |s, out| {
            per_row_and(s, out, ("tier", &[(false, "host"), (true, "disk")]), |usage, disk| {
                if disk { usage.disk_cold_starts as f64 } else { (usage.cold_starts - usage.disk_cold_starts) as f64 }
            });
        },
    ),
    counter("atoll_usage_reclaims_total", "Evictions of constants to make room for others", |s, out| {
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
        "Size of the daemon's copies of the repository bundles that it serves",
        |s, out| out.integer(&[], s.copies_bytes),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_http_responses_total",
        "HTTP answers on the inference port, by status",
        |s, out| {
            for (digit, code) in (1..).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
                out.integer(&[("code", code)], s.recorder.responses(digit));
            }
        },
    ),
    of_daemon(Kind::Gauge, "atoll_connections", "Open connections", |s, out| {
        out.integer(&[], s.recorder.connections.load(Ordering::Relaxed) as u64)
    }),
    of_daemon(
        Kind::Counter,
        "atoll_connections_closed_total",
        "Connections closed by the daemon for inactivity or to make room, by reason",
        |s, out| {
            for why in Closed::ALL {
                out.integer(&[("reason", why.label())], s.recorder.closed.of(why));
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_denied_requests_total",
        "Requests and handshakes refused for lack of credentials, rights or quota, by reason",
        |s, out| {
            for reason in Reason::ALL {
                out.integer(&[("reason", reason.label())], s.recorder.refusals.of(reason));
            }
        },
    ),
    of_daemon(Kind::Gauge, "atoll_build_info", "Always 1; the labels name the version", |_, out| {
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

/// One sample for each tenant and class with a quota.
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
