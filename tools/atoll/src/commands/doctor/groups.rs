//! Whether a daemon that is started in the same way could limit executors and CPU stages by control
//! groups.

use super::Finding;
use atoll_executor::ControlGroups;
use atoll_stages::limits::PROCESS_BYTES;

pub(super) fn finding() -> Finding {
    match ControlGroups::enter() {
        Ok(groups) => {
            let cpu = if groups.has_cpu() { ", threads and CPU time" } else { " and threads, but not CPU time" };
            let whose = "each executor and each process of CPU stages";
            Finding::good("memory limit", format!("by control groups: the kernel limits the memory of {whose}{cpu}"))
        }
        Err(error) => Finding::absent(
            "memory limit",
            format!(
                "by checks only: an executor that touches device memory beyond what its work holds is killed within \
                50 ms, and executors are the first to go when memory is short. A process of CPU stages has a resource \
                limit of {} MiB. No control groups: {error}",
                PROCESS_BYTES >> 20
            ),
            "start the daemon as a systemd service with Delegate=yes, or in a cgroup v2 of its own that its user may \
            write; `systemd-run --user --scope -p Delegate=yes atoll serve ...` does so",
        ),
    }
}
