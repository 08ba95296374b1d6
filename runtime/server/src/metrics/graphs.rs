//! Metrics of the admission of requests to graphs.

use super::metric::{Kind, Metric, of_daemon};
use std::sync::atomic::Ordering;

/// The metrics of graph admission. Without a desk they have no samples.
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
    of_daemon(Kind::Gauge, "atoll_graph_running", "Admitted requests to graphs that have not ended", |s, out| {
        if let Some(desk) = s.desk {
            out.integer(&[], desk.running() as u64);
        }
    }),
];
