//! Metrics of the gRPC port.

use super::codes::name;
use super::metric::{Kind, Metric, of_daemon};

/// The metrics of the gRPC port.
pub(super) const GRPC_METRICS: &[Metric] =
    &[of_daemon(Kind::Counter, "atoll_grpc_responses_total", "Answers on the gRPC port, by code", |s, out| {
        for (code, count) in s.recorder.grpc() {
            out.integer(&[("code", name(code))], count);
        }
    })];
