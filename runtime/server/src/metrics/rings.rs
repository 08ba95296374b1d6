//! Metrics of rings.

use super::metric::{Kind, Metric, of_daemon};
use crate::rings::registry::End;
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The metrics of rings.
pub(super) const RING_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_rings", "Open rings of clients on this machine", |s, out| {
        for (tenant, open) in s.rings.open() {
            out.integer(&[("tenant", tenant.as_str())], open.rings as u64);
        }
    }),
    of_daemon(Kind::Gauge, "atoll_ring_memory_bytes", "Bytes of the memory of open rings", |s, out| {
        for (tenant, open) in s.rings.open() {
            out.integer(&[("tenant", tenant.as_str())], open.bytes);
        }
    }),
    of_daemon(Kind::Counter, "atoll_ring_requests_total", "Inference requests over rings by outcome", |s, out| {
        let (succeeded, failed) = s.rings.answers();
        out.integer(&[("outcome", "success")], succeeded);
        out.integer(&[("outcome", "failure")], failed);
    }),
    of_daemon(
        Kind::Counter,
        "atoll_rings_closed_total",
        "Closed rings: by the client, for a violation of the protocol, or because the daemon stopped",
        |s, out| {
            for end in End::ALL {
                out.integer(&[("reason", end.label())], s.rings.closed(end));
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_ring_sleeps_total",
        "How often threads of rings went to sleep because they had nothing to do",
        |s, out| out.integer(&[], s.rings.sleeps.load(Ordering::Relaxed)),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_ring_cpu_seconds_total",
        "CPU time of the daemon's threads of a tenant's rings, which the tenant is billed for",
        |s, out| {
            // `local` is always included, so that the metric exists before the first ring.
            let mut cpu = BTreeMap::from([(Tenant::default(), Duration::ZERO)]);
            cpu.extend(s.rings.cpu());
            for (tenant, cpu) in cpu {
                out.number(&[("tenant", tenant.as_str())], cpu.as_secs_f64());
            }
        },
    ),
    of_daemon(
        Kind::Counter,
        "atoll_ring_pauses_total",
        "How often threads of rings paused because their tenant's rings were awake for too long without a request",
        |s, out| out.integer(&[], s.rings.pauses.load(Ordering::Relaxed)),
    ),
];
