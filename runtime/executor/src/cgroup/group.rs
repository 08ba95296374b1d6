//! The control group of one executor.

use atoll_device::{GroupLimit, GroupUse};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Between the limit from which on the kernel slows a process down and reclaims its memory
/// (`memory.high`), and that at which it kills (`memory.max`). The supervisor kills a process that
/// stays in between, and so names the cause.
const SLACK_BYTES: u64 = 32 << 20;

/// How many observations in a row must be above the limit before the process is to be killed.
const OVER_MAX: u32 = 2;

/// A group; its folder is removed when this is dropped, which needs the process to be gone.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    overhead_bytes: u64,
    /// Bytes of device memory in the limit.
    device_bytes: AtomicU64,
    /// Observations in a row above the limit.
    over: AtomicU32,
    usage: Mutex<GroupUse>,
}

impl Group {
    /// Makes a group with this limit of memory.
    pub(super) fn create(path: PathBuf, limit: GroupLimit) -> io::Result<Group> {
        std::fs::create_dir(&path).map_err(|error| at(&path, &error))?;
        let group = Group {
            path,
            overhead_bytes: limit.overhead_bytes,
            device_bytes: AtomicU64::new(limit.device_bytes),
            over: AtomicU32::new(0),
            usage: Mutex::new(GroupUse { limit: Some(limit), ..GroupUse::default() }),
        };
        group.write_limits(limit)?;
        group.write("memory.oom.group", 1)?;
        // Absent on kernels without swap. With swap, a group would go on there beyond its limit.
        if group.path.join("memory.swap.max").exists() {
            group.write("memory.swap.max", 0)?;
        }
        Ok(group)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a process with all its threads into the group.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", pid)
    }

    pub(super) fn write(&self, file: &str, value: impl fmt::Display) -> io::Result<()> {
        let file = self.path.join(file);
        std::fs::write(&file, value.to_string()).map_err(|error| at(&file, &error))
    }

    fn write_limits(&self, limit: GroupLimit) -> io::Result<()> {
        // The higher one first, so that raising them never kills.
        self.write("memory.max", limit.bytes().saturating_add(SLACK_BYTES))?;
        self.write("memory.high", limit.bytes())
    }

    /// Raises the limit if the work of the tenant holds more device memory than it has room for.
    /// That is possible within a quota, since a buffer takes whole pages.
    pub(crate) fn allow_device_bytes(&self, bytes: u64) {
        if bytes == u64::MAX || self.device_bytes.fetch_max(bytes, Relaxed) >= bytes {
            return;
        }
        let limit = GroupLimit { device_bytes: bytes, overhead_bytes: self.overhead_bytes };
        if let Err(error) = self.write_limits(limit) {
            tracing::warn!(%error, "the memory limit of an executor cannot be raised; it may be killed");
        }
        self.own_usage().limit = Some(limit);
    }

    /// Reads the kernel's counts. True if the process stays above its limit and is to be killed.
    pub(crate) fn observe(&self) -> bool {
        let current = self.number("memory.current").unwrap_or_default();
        let peak = self.number("memory.peak").unwrap_or(current);
        let kills = self.keyed("memory.events", "oom_kill").unwrap_or_default();
        let cpu = |key| self.keyed("cpu.stat", key).unwrap_or_default().saturating_mul(1000);
        let (cpu_ns, throttled_ns) = (cpu("usage_usec"), cpu("throttled_usec"));
        let mut usage = self.own_usage();
        usage.current_bytes = current;
        usage.peak_bytes = usage.peak_bytes.max(peak);
        usage.kills = usage.kills.max(kills);
        usage.cpu_ns = usage.cpu_ns.max(cpu_ns);
        usage.throttled_ns = usage.throttled_ns.max(throttled_ns);
        let is_over = usage.limit.is_some_and(|limit| current > limit.bytes());
        let over = if is_over { self.over.load(Relaxed) + 1 } else { 0 };
        self.over.store(over, Relaxed);
        if over < OVER_MAX {
            return false;
        }
        // The daemon's kill counts as the kernel's does.
        usage.kills = usage.kills.max(1);
        true
    }

    /// What the kernel counted, as of the last observation.
    pub(crate) fn usage(&self) -> GroupUse {
        *self.own_usage()
    }

    fn own_usage(&self) -> MutexGuard<'_, GroupUse> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number in a file; `None` if it is absent or has none.
    fn number(&self, file: &str) -> Option<u64> {
        std::fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }

    /// The number behind a word in a file with a word and a number in each line.
    fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the next daemon starts.
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
