//! Metrics of autoscaled models.

use super::metric::{Kind, Metric, Snapshot, of_daemon};
use super::text::Samples;
use crate::scaling::state::{KINDS, ScalingStatus};

/// The metrics of autoscaled models; other models have no samples.
pub(super) const SCALING_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_scaling_instances", "Instances of the autoscaler that accept requests", {
        |s, out| per_model(s, out, |status| status.instances as f64)
    }),
    of_daemon(Kind::Gauge, "atoll_scaling_waiting_requests", "Requests that wait for an instance", {
        |s, out| per_model(s, out, |status| status.waiting as f64)
    }),
    of_daemon(Kind::Gauge, "atoll_scaling_arrival_rate", "Requests per second that arrived in the last interval", {
        |s, out| per_model(s, out, |status| status.rate)
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_scaling_predicted_rate",
        "Requests per second that the autoscaler predicted for this interval",
        |s, out| per_model(s, out, |status| status.predicted),
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_scaling_load_rate",
        "Requests per second to serve: what recent requests needed, or arrivals with headroom and queue",
        |s, out| per_model(s, out, |status| status.load),
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_scaling_capacity_rate",
        "Requests per second that the instances can serve, including those of operators, by profile or measurement",
        |s, out| per_model(s, out, |status| status.capacity),
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_scaling_profiled",
        "1 if the capacity comes from a profile, 0 if it comes from measured requests",
        |s, out| per_model(s, out, |status| f64::from(u8::from(status.is_profiled))),
    ),
    of_daemon(
        Kind::Gauge,
        "atoll_scaling_uncovered",
        "1 if the load is not covered (no room, no profile point within the target, or a stopped clock), else 0",
        |s, out| per_model(s, out, |status| f64::from(u8::from(status.problem.is_some()))),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_scaling_decisions_total",
        "Instances that the autoscaler created, resized, removed, moved to another device, or that a device refused; \
         the same refusal counts once in a cool-down",
        |s, out| {
            for (function, status) in s.scaling {
                for (kind, count) in KINDS.into_iter().zip(status.decisions) {
                    out.integer(&[("model", &function.to_string()), ("decision", kind)], count);
                }
            }
        },
    ),
];

fn per_model(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&ScalingStatus) -> f64) {
    for (function, status) in snapshot.scaling {
        out.number(&[("model", &function.to_string())], value(status));
    }
}
