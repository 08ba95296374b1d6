//! The control group of one executor.

use super::folder::{at, make_folder, write_existing};
use atoll_device::{GroupLimit, GroupUse};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Distance between `memory.high`, above which the kernel throttles a process and reclaims its
/// memory, and `memory.max`, at which it kills. The supervisor kills a process that stays between
/// the two, so that the cause is known.
const SLACK_BYTES: u64 = 32 << 20;

/// How long a process may be above its limit while the kernel may be reclaiming its memory.
const OVER_FOR: Duration = Duration::from_millis(100);

/// The most scratch memory of a compute unit, in bytes, that devices accept.
const SCRATCH_BYTES_MAX: u64 = 256 << 20;

/// The memory that an executor is granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// Device memory of its tenant in bytes.
    pub(super) device_bytes: u64,
    /// Size of the device memory in bytes, which no process can exceed.
    pub(super) device_bytes_max: u64,
    pub(super) overhead: Overhead,
    pub(super) compute_units: u32,
}

/// Memory besides device memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Overhead {
    /// No limit; the group then has no memory limit at all.
    Unlimited,
    Fixed(u64),
    /// This many bytes, plus for each compute unit the scratch memory of the kernel that needs
    /// most.
    Derived(u64),
}

impl Grant {
    /// The limit while the tenant's work holds `held` bytes of device memory, and kernels that need
    /// `scratch` bytes for each compute unit are loaded.
    fn limit(&self, held: u64, scratch: u64) -> Option<GroupLimit> {
        let overhead_bytes = match self.overhead {
            Overhead::Unlimited => return None,
            Overhead::Fixed(bytes) => bytes,
            Overhead::Derived(bytes) => bytes.saturating_add(scratch.saturating_mul(u64::from(self.compute_units))),
        };
        Some(GroupLimit { device_bytes: self.device_bytes.max(held.min(self.device_bytes_max)), overhead_bytes })
    }
}

/// A group. Dropping it removes its folder, which works only after the process has ended.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
    grant: Grant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of device memory that the tenant's work holds.
    held_bytes: u64,
    /// Bytes of scratch memory that loaded kernels need for each compute unit.
    scratch_bytes: u64,
    /// The limit that was written last.
    written: Option<GroupLimit>,
    /// Since when the process has been above its limit.
    over_since: Option<Instant>,
    /// Why the group can no longer be read.
    lost: Option<String>,
    /// The last counts. `usage.limit` is the limit that [`Group::observe`] enforces; the kernel's
    /// limit may still be higher.
    usage: GroupUse,
}

impl Group {
    /// Creates a group with a memory limit.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a folder of this name, and other errors if the kernel refuses
    /// the group or a limit.
    pub(super) fn create(path: PathBuf, grant: Grant) -> io::Result<Group> {
        make_folder(&path).map_err(|error| at(&path, &error))?;
        let group = Group { path, grant, state: Mutex::default() };
        group.apply(&mut group.state())?;
        group.write("memory.oom.group", 1)?;
        // Absent on kernels without swap. Swap would let a group exceed its limit.
        if group.path.join("memory.swap.max").exists() {
            group.write("memory.swap.max", 0)?;
        }
        Ok(group)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Puts a process with all its threads into the group.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", pid)
    }

    pub(super) fn write(&self, file: &str, value: impl fmt::Display) -> io::Result<()> {
        write_existing(&self.path.join(file), &value.to_string())
    }

    /// Notes how much device memory the tenant's work holds. If that is more than the quota, the
    /// limit is raised accordingly; it can be more, since buffers take whole pages.
    pub(crate) fn allow_device_bytes(&self, bytes: u64) {
        if bytes != u64::MAX {
            self.change(|state| state.held_bytes = bytes);
        }
    }

    /// Notes how much scratch memory, per compute unit, a kernel needs that is about to be loaded.
    pub(crate) fn allow_scratch_bytes(&self, bytes: u64) {
        self.change(|state| state.scratch_bytes = state.scratch_bytes.max(bytes.min(SCRATCH_BYTES_MAX)));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        if let Err(error) = self.apply(&mut state) {
            tracing::warn!(%error, "the memory limit of an executor cannot be raised; it may be killed");
        }
    }

    /// Applies the current limit. A higher limit is passed to the kernel at once. A lower one is
    /// only recorded, since writing it could block until the kernel has reclaimed memory;
    /// [`Group::observe`] writes it later.
    fn apply(&self, state: &mut State) -> io::Result<()> {
        if state.lost.is_some() {
            return Ok(());
        }
        let limit = self.grant.limit(state.held_bytes, state.scratch_bytes);
        state.usage.limit = limit;
        match limit {
            Some(limit) if state.written.is_none_or(|written| written.bytes() < limit.bytes()) => {
                self.write_limit(state, limit)
            }
            _ => Ok(()),
        }
    }

    fn write_limit(&self, state: &mut State, limit: GroupLimit) -> io::Result<()> {
        // `memory.max` first, so that raising the limits never kills.
        self.write("memory.max", limit.bytes().saturating_add(SLACK_BYTES))?;
        self.write("memory.high", limit.bytes())?;
        state.written = Some(limit);
        Ok(())
    }

    /// Reads the kernel's counts. Returns the limit if the process has stayed above it, so that the
    /// caller kills the process.
    pub(crate) fn observe(&self, now: Instant) -> Option<GroupLimit> {
        let current = self.number("memory.current");
        // Private memory of the process; device memory is shared memory.
        let private = self.keyed("memory.stat", "anon").unwrap_or_default();
        let peak = self.number("memory.peak").unwrap_or_default();
        let kills = self.kills();
        let throttled_us = self.keyed("cpu.stat", "throttled_usec").unwrap_or_default();
        let mut state = self.state();
        let current = match current {
            Ok(current) if state.lost.is_none() => current,
            Ok(_) => return None,
            Err(error) => {
                state.lose(&error);
                return None;
            }
        };
        let usage = &mut state.usage;
        usage.current_bytes = current;
        usage.peak_bytes = usage.peak_bytes.max(peak).max(current);
        usage.kills = usage.kills.max(kills);
        usage.throttled_ns = usage.throttled_ns.max(throttled_us.saturating_mul(1000));
        let limit = usage.limit?;
        if current <= limit.bytes() && private <= limit.overhead_bytes {
            state.over_since = None;
            if state.written != Some(limit) {
                // On error the kernel keeps the higher limit; this check enforces the lower one.
                let _ = self.write_limit(&mut state, limit);
            }
            return None;
        }
        let since = *state.over_since.get_or_insert(now);
        if now.saturating_duration_since(since) < OVER_FOR {
            return None;
        }
        // A kill by the daemon counts like one by the kernel.
        state.usage.kills = state.usage.kills.max(1);
        Some(limit)
    }

    /// Number of processes that the kernel killed because this group was at its limit. `oom_kill`
    /// also counts kills because the machine or a group above ran out of memory, but `oom` does
    /// not.
    fn kills(&self) -> u64 {
        let file = if self.path.join("memory.events.local").exists() { "memory.events.local" } else { "memory.events" };
        match self.keyed(file, "oom") {
            Some(1..) => self.keyed(file, "oom_kill").unwrap_or_default(),
            _ => 0,
        }
    }

    /// The kernel's counts as of the last observation.
    pub(crate) fn usage(&self) -> GroupUse {
        self.state().usage
    }

    /// Why the group no longer limits the process; `None` if it does.
    pub(crate) fn lost(&self) -> Option<String> {
        self.state().lost.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number in a file.
    fn number(&self, file: &str) -> io::Result<u64> {
        let file = self.path.join(file);
        let text = std::fs::read_to_string(&file).map_err(|error| at(&file, &error))?;
        text.trim().parse().map_err(|error| at(&file, &io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    /// The number of a key, in a file with a key and a number in each line.
    fn keyed(&self, file: &str, key: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

impl State {
    /// Records that the group can no longer be read.
    fn lose(&mut self, error: &io::Error) {
        if self.lost.is_none() {
            tracing::warn!(%error, "the control group of an executor is gone; it runs without a memory limit");
            self.lost = Some(format!("gone: {error}"));
        }
        self.usage.limit = None;
        self.usage.current_bytes = 0;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A folder that cannot be removed now is removed when the next daemon starts.
        let _ = std::fs::remove_dir(&self.path);
    }
}
