//! Metrics of requests that were sent to a second device.

use super::metric::{Kind, Metric, of_daemon};

/// The metrics of hedged models; others have no samples.
pub(super) const HEDGE_METRICS: &[Metric] = &[of_daemon(
    Kind::Counter,
    "atoll_hedged_requests_total",
    "Requests that were also sent to a second device: won if it answered first, else lost",
    |s, out| {
        for model in s.models {
            for (outcome, count) in model.hedging.iter().flat_map(|hedging| hedging.counts()) {
                out.integer(&[("model", &model.name), ("outcome", outcome)], count);
            }
        }
    },
)];
