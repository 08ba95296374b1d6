//! Whether a daemon that is started in the same way could limit executors and CPU stages by control
//! groups.

use super::Finding;
use atoll_executor::ControlGroups;
use atoll_stages::limits::PROCESS_BYTES;
use std::fmt::Display;

pub(super) fn finding() -> Finding {
    // Leaves the group again at the end.
    of(ControlGroups::enter().map(|groups| groups.has_cpu()))
}

/// The finding: control groups, and whether they limit CPU time, or the reason for having none.
fn of(groups: Result<bool, impl Display>) -> Finding {
    match groups {
        Ok(has_cpu) => {
            let cpu = if has_cpu { ", threads and CPU time" } else { " and threads, but not CPU time" };
            let whose = "each executor and each process of CPU stages";
            Finding::good("memory limit", format!("by control groups: the kernel limits the memory of {whose}{cpu}"))
        }
        Err(error) => Finding::absent(
            "memory limit",
            format!(
                "by regions and checks: the executor of a tenant with `device_bytes` has a region of twice that size, \
                and one without has a region as large as the device. An executor that touches device memory beyond \
                what its work holds is killed within 50 ms, and executors are the first to go when memory is short. A \
                process of CPU stages has a resource limit of {} MiB. No control groups: {error}",
                PROCESS_BYTES >> 20
            ),
            "start the daemon as a systemd service with Delegate=yes, or in a cgroup v2 of its own that its user may \
            write; `systemd-run --user --scope -p Delegate=yes atoll serve ...` does so",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn the_finding_says_which_limit_holds() {
        let with = |has_cpu| of(Ok::<bool, String>(has_cpu));
        assert!(with(true).detail.ends_with("CPU stages, threads and CPU time"));
        assert!(with(false).detail.ends_with("and threads, but not CPU time"));
        assert_eq!((with(true).state, with(true).remedy), (State::Good, None));
        let without = of(Err("cgroup v1"));
        assert_eq!(without.state, State::Absent);
        for part in ["`device_bytes` has a region of twice that size", "within 50 ms", "No control groups: cgroup v1"] {
            assert!(without.detail.contains(part), "{}", without.detail);
        }
        assert!(without.remedy.is_some_and(|remedy| remedy.contains("Delegate=yes")));
    }
}
