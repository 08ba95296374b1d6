//! Metrics of the spans that are sent to a collector.

use super::metric::{Kind, Metric, of_daemon};
use std::sync::atomic::Ordering;

/// The metrics of spans.
pub(super) const OTLP_METRICS: &[Metric] = &[
    of_daemon(Kind::Counter, "atoll_otlp_spans_exported_total", "Spans that the collector accepted", |s, out| {
        out.integer(&[], s.recorder.otlp.exported.load(Ordering::Relaxed));
    }),
    of_daemon(
        Kind::Counter,
        "atoll_otlp_spans_dropped_total",
        "Spans that were dropped: the queue was full, or the collector did not accept them",
        |s, out| {
            let counts = &s.recorder.otlp;
            out.integer(&[("reason", "queue_full")], counts.overflowed.load(Ordering::Relaxed));
            out.integer(&[("reason", "not_taken")], counts.refused.load(Ordering::Relaxed));
        },
    ),
];
