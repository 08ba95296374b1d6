//! Control groups (cgroup v2): the kernel bounds the memory, the threads and the CPU time of each
//! executor, and accounts for them.
//!
//! The daemon may make groups below its own one if the group was delegated to it: by systemd
//! (`Delegate=`), by an administrator who gave it the folder, or because it is root and no systemd
//! unit owns the group. It moves itself into the child `daemon`, since a group with processes cannot
//! hand its controllers to children, and makes a child for each executor:
//!
//! ```text
//! atoll.service/             the daemon's own group at start
//!     daemon/                the daemon, and what it starts besides executors
//!     executor-PID-1/        one executor
//!     executor-PID-2/
//! ```
//!
//! The parent puts an executor into its group before it orders it to load code. The memory of a
//! group is what its process touches first: device memory, code, stacks. Constants and inputs are
//! written by the daemon and count as the daemon's.
//!
//! Where no groups can be made, executors run without; the checks of the supervisor hold in both
//! cases.

mod group;
mod place;

pub(crate) use group::Group;
pub use place::NoControlGroups;

use atoll_device::GroupLimit;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Memory of an executor besides device memory, in bytes: the program's data, loaded code, page
/// tables and what the kernel keeps for the process.
pub const PROCESS_BYTES: u64 = 256 << 20;

/// Memory of an executor for each compute unit in bytes: stacks, and the shared and local memory of
/// blocks. Kernels with much local memory need more, which the tenant's quota grants.
pub const UNIT_BYTES: u64 = 16 << 20;

/// Threads of an executor besides its compute units.
const OTHER_THREADS: u32 = 32;

/// Weights for CPU time: of executors of the daemon's own tenant, and of those of other tenants. The
/// second is that of nice value 5, which executors of tenants have outside groups.
const OWN_WEIGHT: u32 = 100;
const TENANT_WEIGHT: u32 = 33;

/// The period in which the kernel enforces a limit of CPU time, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// What a tenant's executors may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExecutorQuota {
    /// Device memory in bytes.
    pub device_bytes: u64,
    /// Memory of the process besides device memory in bytes; if absent, [`PROCESS_BYTES`] and
    /// [`UNIT_BYTES`] for each compute unit.
    pub process_bytes: Option<u64>,
    /// CPU time per time, as in 1.5 CPUs. Unlimited if absent.
    pub cpus: Option<f64>,
}

impl ExecutorQuota {
    /// No limit.
    pub const UNLIMITED: ExecutorQuota = ExecutorQuota { device_bytes: u64::MAX, process_bytes: None, cpus: None };
}

/// The quotas of all tenants.
#[derive(Clone, Debug)]
pub struct ExecutorQuotas {
    /// Of tenants that are not listed.
    pub default: ExecutorQuota,
    /// By the names of tenants.
    pub tenants: BTreeMap<String, ExecutorQuota>,
}

impl Default for ExecutorQuotas {
    fn default() -> ExecutorQuotas {
        ExecutorQuotas { default: ExecutorQuota::UNLIMITED, tenants: BTreeMap::new() }
    }
}

/// The executor for which a group is made.
#[derive(Clone, Debug)]
pub(crate) struct GroupSpec {
    pub(crate) domain: String,
    /// Whether it is the daemon's own tenant.
    pub(crate) is_own: bool,
    /// Size of the device memory in bytes.
    pub(crate) device_bytes: u64,
    pub(crate) compute_units: u32,
}

/// The groups of this process's executors.
#[derive(Debug)]
pub struct ControlGroups {
    /// The folder in which groups are made.
    base: PathBuf,
    /// Whether this process moved into a child of `base`; dropping this moves it back.
    has_moved: bool,
    has_cpu: bool,
    /// The controllers that this process handed on, which dropping this takes back.
    handed_on: Vec<&'static str>,
    given: AtomicU64,
    quotas: ExecutorQuotas,
    /// Whether a group could not be made and this was logged.
    was_told: AtomicBool,
}

impl ControlGroups {
    /// Makes this process's own control group ready for executors' groups. Call it once, before
    /// executors are started.
    ///
    /// # Errors
    /// If the machine has no cgroup v2, or this process may not make groups.
    pub fn enter() -> Result<ControlGroups, NoControlGroups> {
        let base = place::own_group(&place::read("/proc/self/cgroup")?, &place::read("/proc/self/mountinfo")?)?;
        place::check_delegated(&base)?;
        Self::at(&base)
    }

    /// As [`ControlGroups::enter`], below the group whose folder is `base`.
    ///
    /// # Errors
    /// If controllers are missing, or groups cannot be made there.
    pub fn at(base: &Path) -> Result<ControlGroups, NoControlGroups> {
        place::remove_stale(base);
        let place::Prepared { has_moved, has_cpu, handed_on } = place::prepare(base)?;
        Ok(ControlGroups {
            base: base.to_owned(),
            has_moved,
            has_cpu,
            handed_on,
            given: AtomicU64::new(0),
            quotas: ExecutorQuotas::default(),
            was_told: AtomicBool::new(false),
        })
    }

    /// Sets the quotas of groups that are made from now on.
    #[must_use]
    pub fn with_quotas(mut self, quotas: ExecutorQuotas) -> ControlGroups {
        self.quotas = quotas;
        self
    }

    /// The folder in which groups are made.
    pub fn folder(&self) -> &Path {
        &self.base
    }

    /// Whether CPU time is weighted and limited, besides memory and threads.
    pub fn has_cpu(&self) -> bool {
        self.has_cpu
    }

    /// Makes a group and puts a process into it. If that is not possible the process runs without;
    /// the first failure is logged.
    ///
    /// # Errors
    /// If the folder of groups is gone, or the kernel refuses a group or a limit.
    pub(crate) fn admit(&self, spec: &GroupSpec, pid: u32) -> io::Result<Group> {
        let made = self.make(spec).and_then(|group| group.add(pid).map(|()| group));
        if let Err(error) = &made
            && !self.was_told.swap(true, Relaxed)
        {
            tracing::warn!(
                %error, "an executor runs without a control group; its device memory is still checked while it runs"
            );
        }
        made
    }

    fn make(&self, spec: &GroupSpec) -> io::Result<Group> {
        let number = self.given.fetch_add(1, Relaxed);
        let path = self.base.join(place::group_name(std::process::id(), number));
        let quota = self.quotas.tenants.get(&spec.domain).unwrap_or(&self.quotas.default);
        let limit = GroupLimit {
            device_bytes: quota.device_bytes.min(spec.device_bytes),
            overhead_bytes: quota.process_bytes.unwrap_or(PROCESS_BYTES + UNIT_BYTES * u64::from(spec.compute_units)),
        };
        let group = Group::create(path, limit)?;
        group.write("pids.max", spec.compute_units.saturating_add(OTHER_THREADS))?;
        if self.has_cpu {
            group.write("cpu.weight", if spec.is_own { OWN_WEIGHT } else { TENANT_WEIGHT })?;
        }
        if let Some(cpus) = quota.cpus {
            // The kernel accepts no less than a millisecond.
            let microseconds = ((cpus * CPU_PERIOD_US as f64) as u64).max(1000);
            group.write("cpu.max", format_args!("{microseconds} {CPU_PERIOD_US}"))?;
        }
        Ok(group)
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        place::undo(&self.base, &self.handed_on, self.has_moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like a group with these controllers, of which none is handed on.
    fn fake(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        std::fs::write(folder.path().join("cgroup.subtree_control"), "").unwrap();
        folder
    }

    fn spec(domain: &str) -> GroupSpec {
        GroupSpec { domain: domain.to_owned(), is_own: domain == "local", device_bytes: 1 << 30, compute_units: 4 }
    }

    fn read(group: &Group, file: &str) -> String {
        std::fs::read_to_string(group.path().join(file)).unwrap()
    }

    #[test]
    fn an_executor_gets_the_limits_of_its_tenant() {
        let folder = fake("cpuset cpu io memory pids\n");
        let quota = ExecutorQuota { device_bytes: 64 << 20, process_bytes: None, cpus: Some(1.5) };
        let quotas = ExecutorQuotas { tenants: [("vision".to_owned(), quota)].into(), ..ExecutorQuotas::default() };
        let groups = ControlGroups::at(folder.path()).unwrap().with_quotas(quotas);
        assert!(groups.has_cpu());
        let group = groups.admit(&spec("vision"), 4711).unwrap();
        assert_eq!(read(&group, "memory.high"), (384u64 << 20).to_string());
        assert_eq!(read(&group, "memory.max"), (416u64 << 20).to_string());
        assert_eq!(read(&group, "memory.oom.group"), "1");
        assert_eq!(read(&group, "pids.max"), "36");
        assert_eq!(read(&group, "cpu.weight"), "33");
        assert_eq!(read(&group, "cpu.max"), "150000 100000");
        assert_eq!(read(&group, "cgroup.procs"), "4711");
        // Without a quota, the size of the device is the limit.
        let own = groups.admit(&spec("local"), 4712).unwrap();
        assert_eq!((read(&own, "memory.high"), read(&own, "cpu.weight")), ((1344u64 << 20).to_string(), "100".into()));
        assert!(!own.path().join("cpu.max").exists() && own.path() != group.path());
    }

    #[test]
    fn work_that_holds_more_than_the_quota_raises_the_limit() {
        let folder = fake("memory pids");
        let groups = ControlGroups::at(folder.path()).unwrap();
        assert!(!groups.has_cpu());
        let group = groups.admit(&spec("a"), 1).unwrap();
        group.allow_device_bytes(1 << 30);
        assert_eq!(read(&group, "memory.high"), (1344u64 << 20).to_string());
        // Small buffers take whole pages, so more may be in use than was asked for.
        group.allow_device_bytes(2 << 30);
        assert_eq!(read(&group, "memory.high"), ((2u64 << 30) + (320 << 20)).to_string());
        group.allow_device_bytes(u64::MAX);
        group.allow_device_bytes(0);
        assert_eq!(read(&group, "memory.high"), ((2u64 << 30) + (320 << 20)).to_string());
    }

    #[test]
    fn the_kernels_counts_are_read() {
        let folder = fake("memory pids cpu");
        let groups = ControlGroups::at(folder.path()).unwrap();
        let group = groups.admit(&spec("a"), 1).unwrap();
        assert_eq!(group.usage().peak_bytes, 0, "there is nothing to read in a plain folder");
        let write = |file: &str, text: &str| std::fs::write(group.path().join(file), text).unwrap();
        write("memory.current", "1000\n");
        group.observe();
        write("memory.current", "400\n");
        assert!(!group.observe());
        assert_eq!(group.usage().peak_bytes, 1000, "kernels before 5.19 have no memory.peak");
        write("memory.peak", "5000\n");
        write("memory.events", "low 0\nhigh 7\nmax 3\noom 1\noom_kill 1\noom_group_kill 1\n");
        write("cpu.stat", "usage_usec 77\nuser_usec 70\nnr_throttled 2\nthrottled_usec 1500\n");
        group.observe();
        let usage = group.usage();
        assert_eq!((usage.peak_bytes, usage.kills, usage.cpu_ns, usage.throttled_ns), (5000, 1, 77_000, 1_500_000));
        // What stays above the limit is to be killed; one look may have been in the middle of a
        // reclaim.
        write("memory.current", &(2u64 << 30).to_string());
        assert!(!group.observe());
        assert!(group.observe());
        assert_eq!(group.usage().kills, 1, "a kill of the kernel and one of the daemon are the same end");
        // Text that is no number is no count.
        write("memory.current", "max\n");
        assert!(!group.observe());
    }

    #[test]
    fn a_group_that_cannot_be_made_leaves_the_executor_without() {
        let folder = fake("memory pids cpu");
        let groups = ControlGroups::at(folder.path()).unwrap();
        groups.admit(&spec("a"), 1).unwrap();
        std::fs::remove_dir_all(folder.path()).unwrap();
        for pid in 2..4 {
            let error = groups.admit(&spec("a"), pid).unwrap_err().to_string();
            assert!(error.contains("/executor-"), "{error}");
        }
    }

    #[test]
    fn a_group_without_memory_or_pids_is_refused() {
        for controllers in ["", "cpu pids", "memory cpu"] {
            let folder = fake(controllers);
            let error = ControlGroups::at(folder.path()).unwrap_err().to_string();
            assert!(error.contains("controller"), "{error}");
        }
        let missing = ControlGroups::at(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/at/all/cgroup.controllers"), "{missing}");
    }
}
