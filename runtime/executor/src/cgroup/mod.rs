//! Control groups (cgroup v2): the kernel limits the memory, the threads and the CPU time of each
//! executor and each process of CPU stages, and accounts for them.
//!
//! The daemon may create groups below its own group if that group is delegated to it: by systemd
//! (`Delegate=`), by an administrator who made the daemon the folder's owner, or because the daemon
//! is root and no systemd unit owns the group. It moves itself into the child `daemon`, since a
//! group with processes cannot enable controllers for children, and creates a child for each
//! of these processes:
//!
//! ```text
//! atoll.service/             the daemon's own group at start
//!     daemon/                the daemon, and its children other than executors
//!     executor-PID-1/        one executor
//!     executor-PID-2/        one process of CPU stages
//! ```
//!
//! The daemon puts an executor into its group before it sends it code to load. A group is charged
//! for the memory that its process touches first: device memory, code, stacks. Constants and inputs
//! are written by the daemon and charged to the daemon's group.
//!
//! If no groups can be created, executors run without them. The checks of the supervisor apply in
//! both cases.

mod folder;
mod group;
mod place;
mod process;

pub(crate) use group::Group;
pub use place::NoControlGroups;

use group::{Grant, Overhead};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Memory of an executor besides device memory, in bytes: the program's data, loaded code, page
/// tables and the kernel's memory for the process.
pub const PROCESS_BYTES: u64 = 256 << 20;

/// Memory of an executor for each compute unit in bytes, besides the scratch memory that its
/// kernels declare: stacks, and the shared memory of blocks.
pub const UNIT_BYTES: u64 = 16 << 20;

/// Threads of an executor besides its compute units.
const OTHER_THREADS: u32 = 32;

/// Weights for CPU time of executors of the daemon's own tenant and of other tenants. The second
/// corresponds to nice value 5, which executors of tenants have outside groups.
const OWN_WEIGHT: u32 = 100;
const TENANT_WEIGHT: u32 = 33;

/// The period in which the kernel enforces a limit of CPU time, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

/// The limits of a tenant's executors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExecutorQuota {
    /// Device memory in bytes.
    pub device_bytes: u64,
    /// Memory of the process besides device memory, in bytes. `None` for [`PROCESS_BYTES`], plus
    /// [`UNIT_BYTES`] and the scratch memory that kernels declare for each compute unit. With
    /// `u64::MAX` the process has no memory limit.
    pub process_bytes: Option<u64>,
    /// CPU time per time, as in 1.5 CPUs. Unlimited if `None`.
    pub cpus: Option<f64>,
}

impl ExecutorQuota {
    /// No limit.
    pub const UNLIMITED: ExecutorQuota =
        ExecutorQuota { device_bytes: u64::MAX, process_bytes: Some(u64::MAX), cpus: None };

    fn overhead(&self, compute_units: u32) -> Overhead {
        match self.process_bytes {
            Some(u64::MAX) => Overhead::Unlimited,
            Some(bytes) => Overhead::Fixed(bytes),
            None => Overhead::Derived(PROCESS_BYTES + UNIT_BYTES * u64::from(compute_units)),
        }
    }
}

/// The quotas of all tenants.
#[derive(Clone, Debug)]
pub struct ExecutorQuotas {
    /// The quota of tenants that are not listed.
    pub default: ExecutorQuota,
    /// Quotas by tenant name.
    pub tenants: BTreeMap<String, ExecutorQuota>,
}

impl Default for ExecutorQuotas {
    fn default() -> ExecutorQuotas {
        ExecutorQuotas { default: ExecutorQuota::UNLIMITED, tenants: BTreeMap::new() }
    }
}

/// The executor for which a group is created.
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
    /// The folder in which groups are created.
    base: PathBuf,
    /// Whether this process moved into a child of `base`. Dropping this moves it back.
    has_moved: bool,
    has_cpu: bool,
    /// The controllers that this process enabled for children. Dropping this disables them.
    handed_on: Vec<&'static str>,
    given: AtomicU64,
    quotas: ExecutorQuotas,
    /// Whether a failure to create a group has been logged.
    was_told: AtomicBool,
}

impl ControlGroups {
    /// Prepares this process's own control group for the groups of executors. Call it once, before
    /// executors are started.
    ///
    /// # Errors
    /// If the machine has no cgroup v2, or this process may not create groups.
    pub fn enter() -> Result<ControlGroups, NoControlGroups> {
        let base = place::own_group(&place::read("/proc/self/cgroup")?, &place::read("/proc/self/mountinfo")?)?;
        place::check_delegated(&base)?;
        Self::at(&base)
    }

    /// As [`ControlGroups::enter`], below the group whose folder is `base`.
    ///
    /// # Errors
    /// If controllers are missing, or groups cannot be created there.
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

    /// Sets the quotas of groups that are created from now on.
    #[must_use]
    pub fn with_quotas(mut self, quotas: ExecutorQuotas) -> ControlGroups {
        self.quotas = quotas;
        let has_cpus = self.quotas.tenants.values().chain([&self.quotas.default]).any(|quota| quota.cpus.is_some());
        if has_cpus && !self.has_cpu {
            tracing::warn!(
                group = %self.base.display(),
                "limits of CPU time (cpus) have no effect: this control group has no controller `cpu`"
            );
        }
        self
    }

    /// The folder in which groups are created.
    pub fn folder(&self) -> &Path {
        &self.base
    }

    /// Whether CPU time is weighted and limited, besides memory and threads.
    pub fn has_cpu(&self) -> bool {
        self.has_cpu
    }

    /// Creates a group and moves a process into it. If that fails, the process runs without a
    /// group; the first failure is logged.
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

    /// The quota of a tenant.
    fn quota(&self, tenant: &str) -> &ExecutorQuota {
        self.quotas.tenants.get(tenant).unwrap_or(&self.quotas.default)
    }

    fn make(&self, spec: &GroupSpec) -> io::Result<Group> {
        let quota = self.quota(&spec.domain);
        let grant = Grant {
            device_bytes: quota.device_bytes.min(spec.device_bytes),
            device_bytes_max: spec.device_bytes,
            overhead: quota.overhead(spec.compute_units),
            compute_units: spec.compute_units,
        };
        self.limited(grant, quota, spec.is_own)
    }

    /// Creates a group that also has limits of threads and of CPU time.
    fn limited(&self, grant: Grant, quota: &ExecutorQuota, is_own: bool) -> io::Result<Group> {
        let group = self.create(grant)?;
        group.write("pids.max", grant.compute_units.saturating_add(OTHER_THREADS))?;
        if !self.has_cpu {
            return Ok(group);
        }
        group.write("cpu.weight", if is_own { OWN_WEIGHT } else { TENANT_WEIGHT })?;
        if let Some(cpus) = quota.cpus {
            // The kernel's minimum is a millisecond.
            let microseconds = ((cpus * CPU_PERIOD_US as f64) as u64).max(1000);
            group.write("cpu.max", format_args!("{microseconds} {CPU_PERIOD_US}"))?;
        }
        Ok(group)
    }

    /// Creates a group with the next free name. An earlier daemon with the same process id may have
    /// left groups, since process ids repeat in containers.
    fn create(&self, grant: Grant) -> io::Result<Group> {
        loop {
            let number = self.given.fetch_add(1, Relaxed);
            match Group::create(self.base.join(place::group_name(std::process::id(), number)), grant) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
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
    use atoll_device::ProcessGroups;
    use std::time::{Duration, Instant};

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
        assert_eq!(read(&group, "memory.swap.max"), "0");
        // Without a quota there is no limit, but a weight.
        let own = groups.admit(&spec("local"), 4712).unwrap();
        assert_eq!((read(&own, "memory.max"), read(&own, "cpu.weight")), (String::new(), "100".into()));
        assert_eq!((read(&own, "cpu.max"), own.usage().limit), (String::new(), None));
        assert!(own.path() != group.path());
    }

    #[test]
    fn a_process_of_cpu_stages_has_a_limit_of_its_own_and_the_cpu_time_of_its_tenant() {
        let groups = limited("cpu memory pids", Some(1.5));
        let folder = |number| groups.folder().join(place::group_name(std::process::id(), number));
        let read = |number, file: &str| std::fs::read_to_string(folder(number).join(file)).unwrap();
        let admitted = groups.admit_process("a", 64 << 20, 4711).unwrap();
        assert_eq!([read(0, "memory.high"), read(0, "memory.max")], [64u64 << 20, 96 << 20].map(|n| n.to_string()));
        assert_eq!([read(0, "pids.max"), read(0, "cpu.weight"), read(0, "cpu.max")], ["32", "33", "150000 100000"]);
        assert_eq!(read(0, "cgroup.procs"), "4711");
        assert!(admitted.observe(Instant::now()).is_none());
        assert_eq!(admitted.usage().limit.map(|limit| limit.bytes()), Some(64 << 20));
        let own = groups.admit_process("local", 64 << 20, 4712).unwrap();
        assert_eq!((read(1, "cpu.weight"), own.usage().kills), ("100".into(), 0));
    }

    #[test]
    fn a_limit_of_cpu_time_without_its_controller_leaves_the_limit_of_memory() {
        let groups = limited("memory pids", Some(1.5));
        assert!(!groups.has_cpu());
        let group = groups.admit(&spec("a"), 1).unwrap();
        assert_eq!(read(&group, "memory.high"), (384u64 << 20).to_string());
        assert!(!group.path().join("cpu.max").exists());
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let groups = limited("memory pids", None);
        let taken = groups.folder().join(place::group_name(std::process::id(), 0));
        std::fs::create_dir(&taken).unwrap();
        let group = groups.admit(&spec("a"), 1).unwrap();
        assert_eq!(group.path(), groups.folder().join(place::group_name(std::process::id(), 1)));
    }

    /// Groups of which each has 64 MiB of device memory, in a folder that stays.
    fn limited(controllers: &str, cpus: Option<f64>) -> ControlGroups {
        let default = ExecutorQuota { device_bytes: 64 << 20, process_bytes: None, cpus };
        let quotas = ExecutorQuotas { default, ..ExecutorQuotas::default() };
        ControlGroups::at(&fake(controllers).keep()).unwrap().with_quotas(quotas)
    }

    #[test]
    fn work_that_holds_more_than_the_quota_raises_the_limit_until_it_is_given_back() {
        let groups = limited("memory pids", None);
        let group = groups.admit(&spec("a"), 1).unwrap();
        let high = || read(&group, "memory.high").parse::<u64>().unwrap() >> 20;
        group.allow_device_bytes(64 << 20);
        assert_eq!(high(), 384);
        // Small buffers take whole pages, so more may be in use than was asked for, but never more
        // than there is.
        group.allow_device_bytes(100 << 20);
        assert_eq!(high(), 420);
        group.allow_device_bytes(2 << 30);
        assert_eq!(high(), 320 + 1024);
        group.allow_device_bytes(u64::MAX);
        assert_eq!(high(), 320 + 1024);
        // The kernel's limit follows once the memory is given back.
        group.allow_device_bytes(0);
        assert_eq!(group.usage().limit.unwrap().bytes() >> 20, 384);
        std::fs::write(group.path().join("memory.current"), (500u64 << 20).to_string()).unwrap();
        assert_eq!((group.observe(Instant::now()), high()), (None, 320 + 1024));
        std::fs::write(group.path().join("memory.current"), "1000").unwrap();
        assert_eq!((group.observe(Instant::now()), high()), (None, 384));
    }

    #[test]
    fn kernels_with_much_scratch_memory_have_room_for_it() {
        let groups = limited("memory pids", None);
        let group = groups.admit(&spec("a"), 1).unwrap();
        let overhead = || group.usage().limit.unwrap().overhead_bytes >> 20;
        group.allow_scratch_bytes(10 << 20);
        group.allow_scratch_bytes(1 << 20);
        assert_eq!(overhead(), 320 + 4 * 10);
        group.allow_scratch_bytes(u64::MAX);
        assert_eq!(overhead(), 320 + 4 * 256, "no device accepts more");
    }

    #[test]
    fn the_kernels_counts_are_read() {
        let groups = limited("memory pids cpu", None);
        let group = groups.admit(&spec("a"), 1).unwrap();
        let write = |file: &str, text: &str| std::fs::write(group.path().join(file), text).unwrap();
        let now = Instant::now();
        write("memory.current", "1000\n");
        assert_eq!(group.observe(now), None);
        write("memory.current", "400\n");
        assert_eq!(group.observe(now), None);
        assert_eq!(group.usage().peak_bytes, 1000, "kernels before 5.19 have no memory.peak");
        write("memory.peak", "5000\n");
        // The group above was at its limit, or the whole machine.
        write("memory.events.local", "low 0\nhigh 7\nmax 3\noom 0\noom_kill 1\noom_group_kill 1\n");
        write("cpu.stat", "usage_usec 77\nuser_usec 70\nnr_throttled 2\nthrottled_usec 1500\n");
        assert_eq!(group.observe(now), None);
        let usage = group.usage();
        assert_eq!((usage.peak_bytes, usage.kills, usage.throttled_ns), (5000, 0, 1_500_000));
        write("memory.events.local", "low 0\nhigh 7\nmax 3\noom 1\noom_kill 1\noom_group_kill 1\n");
        assert_eq!(group.observe(now), None);
        assert_eq!(group.usage().kills, 1);
    }

    #[test]
    fn what_stays_above_a_limit_is_to_be_killed() {
        let groups = limited("memory pids", None);
        let group = groups.admit(&spec("a"), 1).unwrap();
        let write = |file: &str, text: String| std::fs::write(group.path().join(file), text).unwrap();
        let start = Instant::now();
        let is_over = |after_ms| group.observe(start + Duration::from_millis(after_ms)).is_some();
        write("memory.current", (2u64 << 30).to_string());
        // Many looks at one time are one look, which may have been in the middle of a reclaim.
        assert!((0..9).all(|_| !is_over(0)) && !is_over(50));
        write("memory.current", (2u64 << 20).to_string());
        assert!(!is_over(100));
        write("memory.current", (2u64 << 30).to_string());
        assert!(!is_over(110) && is_over(210));
        assert_eq!(group.usage().kills, 1, "a kill of the kernel and one of the daemon are the same end");
        // Memory that is not device memory has a limit of its own.
        write("memory.current", (350u64 << 20).to_string());
        write("memory.stat", format!("anon {}\nfile 0\n", 320u64 << 20));
        assert!(!is_over(300) && !is_over(500));
        write("memory.stat", format!("anon {}\nfile 0\n", 321u64 << 20));
        assert!(!is_over(600) && is_over(700));
    }

    #[test]
    fn a_group_that_can_no_longer_be_read_is_lost_and_not_empty() {
        let groups = limited("memory pids", None);
        let group = groups.admit(&spec("a"), 1).unwrap();
        let current = group.path().join("memory.current");
        std::fs::write(&current, "1000\n").unwrap();
        assert_eq!((group.observe(Instant::now()), group.lost()), (None, None));
        std::fs::remove_file(&current).unwrap();
        assert_eq!(group.observe(Instant::now()), None);
        assert!(group.lost().is_some_and(|why| why.contains("memory.current")), "{:?}", group.lost());
        let usage = group.usage();
        assert_eq!((usage.limit, usage.current_bytes, usage.peak_bytes), (None, 0, 1000));
        // It does not get its limit back by what its tenant does.
        group.allow_device_bytes(1 << 30);
        assert_eq!(group.usage().limit, None);
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
