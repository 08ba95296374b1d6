//! Metrics of system shared memory.

use super::metric::{Kind, Metric, of_daemon};
use std::sync::atomic::Ordering;

/// The metrics of system shared memory.
pub(super) const SHARED_MEMORY_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_shared_memory_regions", "Registered regions of system shared memory", |s, out| {
        for (tenant, registered) in s.regions.registered() {
            out.integer(&[("tenant", tenant.as_str())], registered.regions as u64);
        }
    }),
    of_daemon(Kind::Gauge, "atoll_shared_memory_bytes", "Bytes of the registered regions", |s, out| {
        for (tenant, registered) in s.regions.registered() {
            out.integer(&[("tenant", tenant.as_str())], registered.bytes);
        }
    }),
    of_daemon(
        Kind::Counter,
        "atoll_shared_memory_read_bytes_total",
        "Bytes of inputs that were copied from shared memory",
        |s, out| out.integer(&[], s.regions.read_bytes.load(Ordering::Relaxed)),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_shared_memory_written_bytes_total",
        "Bytes of outputs that were copied to shared memory",
        |s, out| out.integer(&[], s.regions.written_bytes.load(Ordering::Relaxed)),
    ),
];
