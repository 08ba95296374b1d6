//! Metrics of the pool of devices: placements of requests on devices.

use super::metric::{Kind, Metric, counter, gauge, of_daemon};

/// The metrics of the pool. All are 0 if each function has one device.
pub(super) const POOL_METRICS: &[Metric] = &[
    of_daemon(Kind::Gauge, "atoll_pool_waiting", "Requests that wait for a device", |s, out| {
        out.integer(&[], s.fleet.waiting);
    }),
    of_daemon(
        Kind::Counter,
        "atoll_pool_placements_total",
        "Requests for which a device was chosen, by the reason for that device",
        |s, out| s.fleet.decisions.placed().for_each(|(why, count)| out.integer(&[("why", why)], count)),
    ),
    of_daemon(
        Kind::Counter,
        "atoll_pool_rejections_total",
        "Requests that the placement policy rejected, by reason",
        |s, out| s.fleet.decisions.rejected().for_each(|(reason, count)| out.integer(&[("reason", reason)], count)),
    ),
    gauge("atoll_device_drained", "1 while the device gets no new requests", |s, out| {
        out.integer(&[], u64::from(s.place.is_drained));
    }),
    gauge("atoll_device_in_flight", "Requests that the placement policy gave the device, unanswered", |s, out| {
        out.integer(&[], s.place.in_flight);
    }),
    counter("atoll_device_placed_total", "Requests that the placement policy gave the device", |s, out| {
        out.integer(&[], s.place.dispatched);
    }),
    counter(
        "atoll_device_moved_total",
        "Requests that were taken back because this device or its executor was lost, or it refused them",
        |s, out| out.integer(&[], s.place.moved),
    ),
];
