//! Metrics of clients with shares: promised and received device time, and requests of instances.

use super::metric::{DeviceSnapshot, Kind, Metric, Snapshot, counter, gauge, histogram, of_daemon};
use super::recorder::BUCKETS_NS;
use super::text::Samples;
use crate::routes::Load;
use atoll_engine::ShareStatistics;
use atoll_fleet::ShareRefusal;

/// The metrics of shares, with labels `tenant` and `instance`; the latter is empty for the share of
/// a tenant. Without shares they have no samples.
pub(super) const SHARE_METRICS: &[Metric] = &[
    gauge("atoll_share_promised_ratio", "Fraction of the time that a client with a share is promised", |s, out| {
        per_share(s, out, |share| f64::from(share.share.request().millionths()) / 1e6);
    }),
    gauge("atoll_share_received_ratio", "Fraction of the last second that the client received", |s, out| {
        per_share(s, out, |share| share.received_ratio);
    }),
    gauge(
        "atoll_share_error_ratio_max",
        "Largest difference from the promise over any second in which the client always had work",
        |s, out| per_share(s, out, |share| share.error_max),
    ),
    histogram(
        "atoll_share_overshoot_seconds",
        "Device time beyond the limit of the client, for each window in which it used the device",
        |s, out| {
            for share in &s.engine.shares {
                let counts = BUCKETS_NS.iter().map(|bound| share.overshoot.count_at_most(*bound));
                let counts: Vec<u64> = counts.chain([share.overshoot.count()]).collect();
                out.histogram(&labels(share), &counts, share.overshoot.sum_ns());
            }
        },
    ),
    counter("atoll_share_received_seconds_total", "Device time charged to the client", |s, out| {
        per_share(s, out, |share| share.received_ns as f64 / 1e9);
    }),
    counter(
        "atoll_share_received_unit_seconds_total",
        "Device time charged to the client, multiplied by the compute units that it had",
        |s, out| per_share(s, out, |share| share.received_unit_ns as f64 / 1e9),
    ),
    gauge("atoll_share_granted_ratio", "Fraction of the compute units that it has while its work runs", |s, out| {
        per_share(s, out, |share| f64::from(share.granted.millionths()) / 1e6);
    }),
    gauge("atoll_share_bound", "1 if the client is bound to certain compute units, 0 if not", |s, out| {
        per_share(s, out, |share| f64::from(u8::from(share.bound.is_some())));
    }),
    of_daemon(
        Kind::Gauge,
        "atoll_share_refused",
        "1 for a share that is not in force because a device of its function refused it",
        |s, out| {
            for ShareRefusal { client, .. } in s.refusals {
                let instance = client.instance.as_deref().unwrap_or_default();
                out.integer(&[("tenant", client.tenant.as_str()), ("instance", instance)], 1);
            }
        },
    ),
    of_daemon(Kind::Counter, "atoll_instance_requests_total", "Requests of an instance that have ended", |s, out| {
        per_instance(s, out, Load::count_ended);
    }),
    of_daemon(
        Kind::Counter,
        "atoll_instance_late_requests_total",
        "Requests of an instance that took longer than its target latency",
        |s, out| per_instance(s, out, |load| load.late),
    ),
    counter("atoll_share_tokens_total", "Tokens that the client was given", |s, out| {
        per_share(s, out, |share| share.tokens as f64);
    }),
];

fn per_share(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&ShareStatistics) -> f64) {
    for share in &snapshot.engine.shares {
        out.number(&labels(share), value(share));
    }
}

fn per_instance(snapshot: &Snapshot<'_>, out: &mut Samples<'_>, value: impl Fn(&Load) -> u64) {
    for (key, load) in snapshot.instances {
        out.integer(&[("tenant", key.tenant.as_str()), ("instance", &key.name)], value(load));
    }
}

fn labels(share: &ShareStatistics) -> [(&'static str, &str); 2] {
    let instance = share.client.instance.as_deref().unwrap_or_default();
    [("tenant", share.client.tenant.as_str()), ("instance", instance)]
}
