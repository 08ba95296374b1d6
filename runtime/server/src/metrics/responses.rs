//! Metrics of the response cache. Metrics that Triton has, too, use Triton's names.

use super::metric::{Kind, Metric, Snapshot, of_daemon};
use super::text::Samples;
use crate::model::Model;

/// The metrics of the response cache.
pub(super) const RESPONSE_METRICS: &[Metric] = &[
    of_daemon(
        Kind::Counter,
        "nv_cache_num_hits_per_model",
        "Requests that were answered from the response cache",
        |s, out| each(s, out, |model| model.cache_counts.hits().count),
    ),
    of_daemon(
        Kind::Counter,
        "nv_cache_num_misses_per_model",
        "Requests that were not found in the response cache",
        |s, out| each(s, out, |model| model.cache_counts.misses().count),
    ),
    of_daemon(
        Kind::Counter,
        "nv_cache_hit_duration_per_model",
        "Time of requests that were answered from the response cache, in microseconds",
        |s, out| each(s, out, |model| model.cache_counts.hits().ns / 1_000),
    ),
    of_daemon(
        Kind::Counter,
        "nv_cache_miss_duration_per_model",
        "Time of cache lookups that missed, and of insertions, in microseconds",
        |s, out| each(s, out, |model| model.cache_counts.misses().ns / 1_000),
    ),
    of_daemon(Kind::Gauge, "atoll_response_cache_bytes", "Memory of cached responses", |s, out| {
        out.integer(&[], s.responses.bytes());
    }),
    of_daemon(Kind::Gauge, "atoll_response_cache_bytes_max", "Limit of the memory of cached responses", |s, out| {
        out.integer(&[], s.responses.bytes_max());
    }),
];

/// A sample for each model; 0 for models without the response cache.
fn each(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, of: fn(&Model) -> u64) {
    for model in snapshot.models {
        out.integer(&[("model", &model.name), ("version", &model.version)], of(model));
    }
}
