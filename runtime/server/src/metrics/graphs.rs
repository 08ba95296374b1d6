//! Metrics of the admission of requests to graphs, and of their CPU stages.

use super::metric::{Kind, Metric, of_daemon};
use std::sync::atomic::Ordering;

/// The metrics of graphs. Without a desk, the metrics of admission have no samples.
pub(super) const GRAPH_METRICS: &[Metric] = &[
    of_daemon(
        Kind::Counter,
        "atoll_graph_admissions_total",
        "Requests to graphs that ran: admitted with reserved devices, to measure their stages, or without limits",
        |s, out| {
            let Some(desk) = s.desk else { return };
            let counts = &desk.counts;
            for (outcome, count) in
                [("admitted", &counts.admitted), ("measured", &counts.measured), ("unlimited", &counts.unlimited)]
            {
                out.integer(&[("outcome", outcome)], count.load(Ordering::Relaxed));
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_graph_rejections_total",
        "Requests to graphs that were rejected at their arrival, by reason",
        |s, out| {
            for (reason, count) in s.desk.iter().flat_map(|desk| desk.counts.rejected()) {
                out.integer(&[("reason", reason)], count);
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_graph_late_total",
        "Admitted requests to graphs that were not answered before their deadline",
        |s, out| {
            if let Some(desk) = s.desk {
                out.integer(&[], desk.counts.late.load(Ordering::Relaxed));
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_graph_intermediate_bytes_total",
        "Inputs of functions in graphs that other functions made, by way: copied on the device, or through host memory",
        |s, out| {
            let Some(desk) = s.desk else { return };
            for (way, bytes) in [("device", &desk.counts.handed_over_bytes), ("host", &desk.counts.copied_bytes)] {
                out.integer(&[("way", way)], bytes.load(Ordering::Relaxed));
            }
        },
    ),
    of_daemon(Kind::Gauge, "atoll_graph_running", "Admitted requests to graphs that have not ended", |s, out| {
        if let Some(desk) = s.desk {
            out.integer(&[], desk.running() as u64);
        }
    }),
    of_daemon(
        Kind::Counter,
        "atoll_stage_cpu_seconds_total",
        "CPU time of the stage processes of each tenant, as the system accounts for it",
        |s, out| {
            for (tenant, used) in s.stages {
                out.number(&[("tenant", tenant.as_str())], used.cpu_ns as f64 / 1e9);
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_stage_price_units_total",
        "Price of the CPU time of each tenant's stage processes, in units of account; no samples without a price",
        |s, out| {
            let Some(price) = s.cpu_price_per_s else { return };
            for (tenant, used) in s.stages {
                out.number(&[("tenant", tenant.as_str())], price * used.cpu_ns as f64 / 1e9);
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_stage_process_starts_total",
        "Stage processes that were started for each tenant",
        |s, out| {
            for (tenant, used) in s.stages {
                out.integer(&[("tenant", tenant.as_str())], used.starts);
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_stage_process_losses_total",
        "Stage processes that were lost with a call, by cause: time_limit or died",
        |s, out| {
            for (tenant, used) in s.stages {
                for (cause, count) in [("time_limit", used.time_limits), ("died", used.losses)] {
                    out.integer(&[("tenant", tenant.as_str()), ("cause", cause)], count);
                }
            }
        },
    ),
];
