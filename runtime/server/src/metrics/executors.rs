//! Samples of executor processes: losses by cause, and the resources that each tenant's processes
//! used, as the operating system accounts for them.

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
    for used in domains(snapshot) {
        out.number(&[("tenant", &used.domain)], used.cpu_ns as f64 / 1e9);
    }
}

pub(super) fn memory_bytes(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for used in domains(snapshot) {
        let GroupUse { limit, current_bytes, peak_bytes, .. } = used.group.unwrap_or_default();
        let used_bytes = [("current", current_bytes), ("peak", peak_bytes)];
        // Without a limit there is no sample: a zero would look like a limit of zero.
        let limit = limit.map(|limit| ("limit", limit.bytes()));
        for (kind, bytes) in used_bytes.into_iter().chain(limit) {
            out.integer(&[("tenant", &used.domain), ("kind", kind)], bytes);
        }
    }
}

pub(super) fn throttled_seconds(snapshot: &DeviceSnapshot<'_>, out: &mut Samples<'_>) {
    for used in domains(snapshot) {
        out.number(&[("tenant", &used.domain)], used.group.unwrap_or_default().throttled_ns as f64 / 1e9);
    }
}

/// Resources that tenants' processes used, with zeros for the daemon's own tenant if it had no
/// process.
fn domains(snapshot: &DeviceSnapshot<'_>) -> Vec<DomainUse> {
    let mut domains = snapshot.engine.device.executors.domains.clone();
    let local = Tenant::default();
    if !domains.iter().any(|used| used.domain == local.as_str()) {
        domains.insert(0, DomainUse { domain: local.to_string(), ..DomainUse::default() });
    }
    domains
}
