//! Pools of different kinds of devices: whether a request waits for a faster device.
//!
//! A slow device that is free is not always of use: on a CPU that takes fifty times as long as a
//! GPU, the request ends later than behind many others on the GPU. So a request goes to a slower
//! device only if it ends there before the faster devices have worked off all waiting requests. Its
//! wait has a bound: once it has waited for as long as it would take on the slower device, it goes
//! there.

use crate::ids::{DeviceId, Nanos};
use crate::placement::state::{Function, State};

/// Devices that are compared with the slower one.
const COMPARED: usize = 64;

/// Expected time from now until a request that goes to the device now ends there.
pub(super) fn finish_ns(now: Nanos, state: &State, function: &Function, device: DeviceId) -> u64 {
    let member = state.member(device);
    member.best_effort.left_ns(now).saturating_add(alone_ns(state, function, device))
}

/// Expected time of a request that begins on the device at once.
pub(in crate::placement) fn alone_ns(state: &State, function: &Function, device: DeviceId) -> u64 {
    state.reload(function, device).saturating_add(state.service(function, state.member(device)))
}

/// Whether a device takes longer for a function than another kind of device of the pool.
pub(super) fn is_slower(state: &State, function: &Function, device: DeviceId) -> bool {
    state.is_mixed() && state.service(function, state.member(device)) > function.shortest_service()
}

/// Whether the first request of a function goes to a device now instead of waiting for a faster
/// one. `backlog_ns` is the expected time of all waiting requests that compete with it for the
/// faster devices, itself included, on a device of the fastest kind.
pub(super) fn may_run_on(
    now: Nanos,
    state: &State,
    function: &Function,
    device: DeviceId,
    backlog_ns: impl FnOnce() -> u64,
) -> bool {
    if !is_slower(state, function, device) {
        return true;
    }
    let here = state.service(function, state.member(device));
    let arrived = function.waiting.first().map_or(now, |((arrival, _), _)| arrival);
    if now.0.saturating_sub(arrived.0) >= alone_ns(state, function, device) {
        return true;
    }
    let active = &state.classes.get(function.class).active;
    let (mut count, mut busy_ns, mut alone) = (0, 0_u64, u64::MAX);
    for other in active.iter().take(COMPARED) {
        let member = state.member(other);
        if state.service(function, member) < here {
            count += 1;
            busy_ns = busy_ns.saturating_add(member.best_effort.left_ns(now));
            alone = alone.min(alone_ns(state, function, other));
        }
    }
    if count == 0 {
        return true;
    }
    let before_ns = backlog_ns().saturating_sub(function.shortest_service());
    let worked_off = busy_ns.saturating_add(before_ns) / count;
    finish_ns(now, state, function, device) <= worked_off.saturating_add(alone)
}
