//! Selects the node for a new instance, by the capacity that the daemons report.
//!
//! The daemon has the last word. If it refuses an instance, that costs a round trip, and the node is
//! left out for a while.

use crate::resources::{Share, Spread};
use atoll_client::{CapacityReport, DeviceCapacity, DeviceCondition};
use atoll_kubernetes::hold::Reason;
use std::cmp::Reverse;

/// A node that may have an instance of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) node: &'a str,
    /// The last report of the daemon; `None` if there is none.
    pub(crate) report: Option<&'a CapacityReport>,
    /// Instances of the function there.
    pub(crate) of_function: usize,
    /// Instances there.
    pub(crate) instances: usize,
    /// Whether the daemon refused an instance there a moment ago.
    pub(crate) is_left_out: bool,
    /// Whether its capacity is about to change, or was not reported yet.
    pub(crate) is_pending: bool,
}

/// The node for an instance of this share; `None` if no node has room, or if the node to be filled
/// first has not reported its capacity since its last change.
pub(crate) fn place<'a>(candidates: &[Candidate<'a>], share: &Share, spread: Spread) -> Option<&'a str> {
    let has_room = |one: &&Candidate<'_>| {
        !one.is_left_out && !one.is_pending && one.report.is_some_and(|report| fits(report, share))
    };
    let all = candidates.iter().filter(has_room);
    let chosen = match spread {
        Spread::Nodes => all.min_by_key(|one| (one.of_function, one.instances, one.node))?,
        Spread::Pack => {
            let most = |one: &Candidate<'_>| (Reverse(one.of_function), Reverse(one.instances));
            let chosen = all.min_by_key(|one| (most(one), one.node))?;
            let may_be_better = |one: &Candidate<'_>| one.is_pending && !one.is_left_out && most(one) < most(chosen);
            if candidates.iter().any(may_be_better) {
                return None;
            }
            chosen
        }
    };
    Some(chosen.node)
}

/// Why no node has room.
pub(crate) fn why_not(candidates: &[Candidate<'_>], share: &Share) -> (Reason, String) {
    let (mut pending, mut silent, mut refused, mut full) = (0, 0, 0, 0);
    for one in candidates {
        *match one {
            Candidate { is_pending: true, .. } => &mut pending,
            Candidate { report: None, .. } => &mut silent,
            Candidate { is_left_out: true, .. } => &mut refused,
            Candidate { .. } => &mut full,
        } += 1;
    }
    let reason = match (pending, full + refused) {
        (0, 0) => Reason::NoDaemon,
        (0, _) => Reason::NoRoom,
        _ => Reason::Asking,
    };
    let Share { sm_partition, quota_request, memory_bytes, .. } = share;
    let message = format!(
        "of {} nodes, {full} have no room for {sm_partition} % of the compute units for {} % of the time and \
         {memory_bytes} bytes, {refused} refused an instance in the last minute, {silent} have no daemon that answers, \
         and {pending} were asked",
        candidates.len(),
        quota_request * 100.0,
    );
    (reason, message)
}

/// Whether a device of the daemon has room.
fn fits(report: &CapacityReport, share: &Share) -> bool {
    report.devices.iter().any(|device| fits_on(device, share))
}

fn fits_on(device: &DeviceCapacity, share: &Share) -> bool {
    let memory = device.memory_bytes.saturating_sub(device.promised_memory_bytes);
    let slots = device.real_time_slots.saturating_sub(device.promised_real_time_slots);
    // The ledger counts whole percents.
    let has_area = |free: &atoll_client::FreeShare| {
        free.sm_partition >= share.sm_partition && free.quota * 100.0 + 1e-6 >= share.quota_request * 100.0
    };
    matches!(device.state, DeviceCondition::Ready | DeviceCondition::Unready)
        && device.free.iter().any(has_area)
        && u64::try_from(share.memory_bytes).is_ok_and(|bytes| bytes <= memory)
        && share.slots() <= i64::from(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::FreeShare;

    fn report(free: &[(f64, f64)], memory_bytes: u64) -> CapacityReport {
        let free = free.iter().map(|(sm_partition, quota)| FreeShare { sm_partition: *sm_partition, quota: *quota });
        let device = DeviceCapacity {
            device: "host:0".into(),
            state: DeviceCondition::Ready,
            compute_units: 4,
            promised_sm_pct: 0.0,
            free: free.collect(),
            memory_bytes,
            promised_memory_bytes: 10,
            real_time_slots: 4,
            promised_real_time_slots: 3,
        };
        CapacityReport { leases: 0, devices: vec![device] }
    }

    fn share(sm_partition: f64, quota_request: f64, memory_bytes: i64, slots: i64) -> Share {
        let real_time_slots = Some(slots);
        Share { class: None, sm_partition, quota_request, quota_limit: 1.0, memory_bytes, real_time_slots, ttl_s: 15 }
    }

    fn candidate<'a>(node: &'a str, report: &'a CapacityReport, of_function: usize) -> Candidate<'a> {
        Candidate {
            node,
            report: Some(report),
            of_function,
            instances: of_function,
            is_left_out: false,
            is_pending: false,
        }
    }

    #[test]
    fn all_of_a_share_has_to_fit_one_device() {
        let report = report(&[(100.0, 0.2), (30.0, 0.6)], 100);
        assert!(fits(&report, &share(30.0, 0.6, 90, 1)));
        assert!(fits(&report, &share(100.0, 0.2, 1, 0)));
        for (sm, quota, bytes, slots) in
            [(31.0, 0.6, 90, 1), (30.0, 0.61, 90, 1), (30.0, 0.6, 91, 1), (30.0, 0.6, 90, 2)]
        {
            assert!(!fits(&report, &share(sm, quota, bytes, slots)), "{sm} {quota} {bytes} {slots}");
        }
        let mut drained = report.clone();
        drained.devices[0].state = DeviceCondition::Drained;
        assert!(!fits(&drained, &share(1.0, 0.1, 1, 0)));
    }

    #[test]
    fn instances_go_to_many_nodes_or_to_few() {
        let (room, full) = (report(&[(100.0, 1.0)], 100), report(&[], 100));
        let all = [candidate("a", &room, 1), candidate("b", &room, 0), candidate("c", &room, 2)];
        let share = share(24.0, 1.0, 20, 0);
        assert_eq!(place(&all, &share, Spread::Nodes), Some("b"));
        assert_eq!(place(&all, &share, Spread::Pack), Some("c"));
        let all = [candidate("a", &full, 0), Candidate { is_left_out: true, ..candidate("b", &room, 0) }];
        assert_eq!(place(&all, &share, Spread::Nodes), None);
        let silent = Candidate { report: None, ..all[0] };
        let (reason, why) = why_not(&[all[0], all[1], silent], &share);
        assert_eq!(reason, Reason::NoRoom);
        for says in ["of 3 nodes, 1 have no room for 24 %", "1 refused", "1 have no daemon", "0 were asked"] {
            assert!(why.contains(says), "{why}");
        }
        assert_eq!(why_not(&[silent], &share).0, Reason::NoDaemon);
        assert_eq!(why_not(&[], &share).0, Reason::NoDaemon);
        let pending = Candidate { is_pending: true, ..candidate("c", &room, 0) };
        assert_eq!(place(&[pending], &share, Spread::Nodes), None);
        // A node with more instances is waited for.
        let fuller = Candidate { is_pending: true, ..candidate("d", &room, 2) };
        let all = [candidate("a", &room, 1), fuller];
        assert_eq!((place(&all, &share, Spread::Nodes), place(&all, &share, Spread::Pack)), (Some("a"), None));
        assert_eq!(why_not(&[all[0], pending], &share).0, Reason::Asking);
    }
}
