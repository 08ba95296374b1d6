//! Samples of executor processes: losses by cause, and what tenants' processes used, as the system
//! accounts for it.

use super::metric::DeviceSnapshot;
use super::text::Samples;
use atoll_engine::{DomainUse, GroupUse, Tenant};

pub(super) fn losses(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    let executors = &snapshot.engine.device.executors;
    for (cause, count) in [
        ("died", executors.died),
        ("hung", executors.hung),
        ("protocol_violation", executors.protocol_violations),
        ("out_of_memory", executors.out_of_memory),
    ] {
        out.integer(&[("cause", cause)], count);
    }
}

pub(super) fn cpu_seconds(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    let domains = &snapshot.engine.device.executors.domains;
    let local = Tenant::default();
    if !domains.iter().any(|domain| domain.domain == local.as_str()) {
        out.integer(&[("tenant", local.as_str())], 0);
    }
    for domain in domains {
        out.number(&[("tenant", &domain.domain)], domain.cpu_ns as f64 / 1e9);
    }
}

pub(super) fn memory_bytes(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for (tenant, group) in groups(snapshot) {
        let limit = group.limit.map_or(0, |limit| limit.bytes());
        for (kind, bytes) in [("current", group.current_bytes), ("peak", group.peak_bytes), ("limit", limit)] {
            out.integer(&[("tenant", tenant), ("kind", kind)], bytes);
        }
    }
}

pub(super) fn throttled_seconds(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for (tenant, group) in groups(snapshot) {
        out.number(&[("tenant", tenant)], group.throttled_ns as f64 / 1e9);
    }
}

/// The control groups of tenants, if there are any.
fn groups<'a>(snapshot: &'a DeviceSnapshot<'_>) -> impl Iterator<Item = (&'a str, &'a GroupUse)> {
    let domains = &snapshot.engine.device.executors.domains;
    domains.iter().filter_map(|DomainUse { domain, group, .. }| Some((domain.as_str(), group.as_ref()?)))
}
