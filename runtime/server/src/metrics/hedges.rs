//! Metrics of requests that were sent to a second device.

use super::metric::{Kind, Metric, of_daemon};
use std::collections::BTreeMap;

/// The metrics of hedged models; others have no samples.
pub(super) const HEDGE_METRICS: &[Metric] = &[of_daemon(
    Kind::Counter,
    "atoll_hedged_requests_total",
    "Requests that were also sent to a second device: won if it answered first, else lost",
    |s, out| {
        // Of all versions of a model together.
        let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for model in s.models {
            for (outcome, count) in model.hedging.iter().flat_map(|hedging| hedging.counts()) {
                *sums.entry((&model.name, outcome)).or_default() += count;
            }
        }
        for ((model, outcome), count) in sums {
            out.integer(&[("model", model), ("outcome", outcome)], count);
        }
    },
)];
