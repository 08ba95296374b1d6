//! Metrics of the access log.

use super::metric::{Kind, Metric, of_daemon};
use std::sync::atomic::Ordering;

/// The metrics of the access log.
pub(super) const ACCESS_LOG_METRICS: &[Metric] = &[of_daemon(
    Kind::Counter,
    "atoll_access_log_dropped_total",
    "Lines of the access log that were dropped because the file was too slow or could not be written",
    |s, out| out.integer(&[], s.recorder.access_log_dropped.load(Ordering::Relaxed)),
)];
