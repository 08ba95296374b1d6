//! Whether a daemon that is started in the same way could limit executors by control groups.

use super::Finding;
use atoll_executor::ControlGroups;

pub(super) fn finding() -> Finding {
    match ControlGroups::enter() {
        Ok(groups) => {
            let cpu = if groups.has_cpu() { ", threads and CPU time" } else { " and threads, but not CPU time" };
            Finding::good("memory limit", format!("by control groups: the kernel limits each executor's memory{cpu}"))
        }
        Err(error) => Finding::absent(
            "memory limit",
            format!(
                "by checks only: an executor that touches device memory beyond what its work holds is killed within \
                50 ms, and executors are the first to go when memory is short. No control groups: {error}"
            ),
            "start the daemon as a systemd service with Delegate=yes, or in a cgroup v2 of its own that its user may \
            write; `systemd-run --user --scope -p Delegate=yes atoll serve ...` does so",
        ),
    }
}
