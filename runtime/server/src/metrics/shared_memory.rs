//! Metrics of shared memory.

use super::metric::{Kind, Metric, of_daemon};
use crate::shared_memory::Sharing;
use std::sync::atomic::Ordering;

/// The metrics of system shared memory and of CUDA shared memory.
pub(super) const SHARED_MEMORY_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_shared_memory_regions", "Registered regions of system shared memory", |s, out| {
        for (tenant, registered) in s.regions.registered(Sharing::System) {
            out.integer(&[("tenant", tenant.as_str())], registered.regions as u64);
        }
    }),
    of_daemon(Kind::Gauge, "atoll_shared_memory_bytes", "Bytes of the registered regions", |s, out| {
        for (tenant, registered) in s.regions.registered(Sharing::System) {
            out.integer(&[("tenant", tenant.as_str())], registered.bytes);
        }
    }),
    of_daemon(
        Kind::Counter,
        "atoll_shared_memory_read_bytes_total",
        "Bytes of inputs that were copied from shared memory",
        |s, out| out.integer(&[], s.regions.copied(Sharing::System).read.load(Ordering::Relaxed)),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_shared_memory_written_bytes_total",
        "Bytes of outputs that were copied to shared memory",
        |s, out| out.integer(&[], s.regions.copied(Sharing::System).written.load(Ordering::Relaxed)),
    ),
    of_daemon(Kind::Gauge, "atoll_cuda_shared_memory_regions", "Registered regions of CUDA shared memory", |s, out| {
        for (tenant, registered) in s.regions.registered(Sharing::Cuda) {
            out.integer(&[("tenant", tenant.as_str())], registered.regions as u64);
        }
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_cuda_shared_memory_bytes",
        "Bytes of the registered regions of CUDA shared memory",
        |s, out| {
            for (tenant, registered) in s.regions.registered(Sharing::Cuda) {
                out.integer(&[("tenant", tenant.as_str())], registered.bytes);
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_shared_memory_read_bytes_total",
        "Bytes of inputs that were copied from CUDA shared memory",
        |s, out| out.integer(&[], s.regions.copied(Sharing::Cuda).read.load(Ordering::Relaxed)),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_cuda_shared_memory_written_bytes_total",
        "Bytes of outputs that were copied to CUDA shared memory",
        |s, out| out.integer(&[], s.regions.copied(Sharing::Cuda).written.load(Ordering::Relaxed)),
    ),
];
