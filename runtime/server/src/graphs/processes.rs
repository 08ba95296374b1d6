//! The stage processes of tenants: one for each tenant that calls CPU stages.
//!
//! A process starts with the first call, runs one call at a time, and is killed after a minute
//! without calls. If a process is lost, only the call that it was running fails; the next call
//! starts another process.

use atoll_engine::{GroupUse, Tenant};
use atoll_stages::{CallError, Form, ProcessGroups, Program, StageConfig, StageProcess, Tensor};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// How long a process is kept without calls.
const IDLE: Duration = Duration::from_secs(60);

/// The processes by tenant.
#[derive(Default)]
pub(crate) struct StageProcesses {
    config: StageConfig,
    tenants: Mutex<BTreeMap<Tenant, Arc<Slot>>>,
}

/// What the stages of a tenant used since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageUse {
    /// CPU time as the kernel counts it, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Processes that were started.
    pub(crate) starts: u64,
    /// Processes that were killed at the time limit.
    pub(crate) time_limits: u64,
    /// Processes that were lost otherwise.
    pub(crate) losses: u64,
    /// What the kernel counts for the control groups of the processes, as of the end of the last
    /// call; `None` without groups.
    pub(crate) group: Option<GroupUse>,
}

/// The counts of the control groups of a tenant's processes.
#[derive(Clone, Copy, Debug, Default)]
struct GroupUses {
    /// Of processes that ended, all together.
    ended: Option<GroupUse>,
    running: Option<GroupUse>,
}

impl GroupUses {
    fn all(self) -> Option<GroupUse> {
        let Some(ended) = self.ended else { return self.running };
        Some(ended.plus(&self.running.unwrap_or(GroupUse { limit: ended.limit, ..GroupUse::default() })))
    }

    /// The process has ended, and its memory is free.
    fn end(&mut self) {
        self.ended = self.all().map(|all| GroupUse { current_bytes: 0, ..all });
        self.running = None;
    }
}

/// The process of a tenant, and counts.
#[derive(Default)]
pub(crate) struct Slot {
    tenant: Tenant,
    process: Arc<tokio::sync::Mutex<Running>>,
    cpu_ns: AtomicU64,
    starts: AtomicU64,
    time_limits: AtomicU64,
    losses: AtomicU64,
    groups: Mutex<GroupUses>,
    /// Whether a task waits to end the process.
    is_watched: AtomicBool,
}

/// The process, if there is one.
#[derive(Default)]
pub(crate) struct Running {
    process: Option<StageProcess>,
    used: Option<Instant>,
}

/// A program of a stage, with the number under which processes keep it.
pub(crate) struct Numbered<'a> {
    pub(crate) id: u64,
    pub(crate) program: &'a Program,
    pub(crate) file: &'a [u8],
}

/// A unique number for a program.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl StageProcesses {
    /// Processes in control groups that `groups` makes, if there is one.
    pub(crate) fn new(groups: Option<Weak<dyn ProcessGroups>>) -> StageProcesses {
        StageProcesses { config: StageConfig { groups, ..StageConfig::default() }, ..StageProcesses::default() }
    }

    /// The slot of a tenant.
    pub(crate) fn slot(&self, tenant: &Tenant) -> Arc<Slot> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Slot { tenant: tenant.clone(), ..Slot::default() });
        tenants.entry(tenant.clone()).or_insert_with(new).clone()
    }

    /// Checks a program in the process of its tenant. Blocks; to be called on a blocking thread.
    pub(crate) fn check(&self, tenant: &Tenant, program: &Numbered<'_>) -> Result<(), CallError> {
        let slot = self.slot(tenant);
        let mut running = slot.process.clone().blocking_lock_owned();
        let checked =
            slot.with(&self.config, &mut running, |process| process.prepare(program.id, program.program, program.file));
        drop(running);
        slot.watch();
        checked
    }

    /// Runs a program. The caller has the turn at the tenant's process, which is `running`. `admit`
    /// says whether there is memory for this many bytes of outputs. Blocks.
    pub(crate) fn run(
        &self,
        slot: &Slot,
        running: &mut Running,
        program: &Numbered<'_>,
        (forms, inputs): (Vec<Form>, &[&[u8]]),
        admit: impl FnOnce(usize) -> bool,
    ) -> Result<Vec<Tensor>, CallError> {
        slot.with(&self.config, running, |process| {
            process.prepare(program.id, program.program, program.file)?;
            process.run(program.id, forms, inputs, admit)
        })
    }

    /// Ends the processes that run no call, since the daemon stops.
    pub(crate) fn close(&self) {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in tenants.values() {
            if let Ok(mut running) = slot.process.try_lock() {
                slot.end(&mut running);
            }
        }
    }

    /// What the stages of all tenants used, with zeros for the daemon's own tenant.
    pub(crate) fn usage(&self) -> BTreeMap<Tenant, StageUse> {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut usage: BTreeMap<Tenant, StageUse> =
            tenants.iter().map(|(tenant, slot)| (tenant.clone(), slot.usage())).collect();
        usage.entry(Tenant::default()).or_default();
        usage
    }
}

impl Slot {
    /// Waits for the turn at the process.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<Running> {
        self.process.clone().lock_owned().await
    }

    /// Uses the process, which is started if there is none, and counts its CPU time. A lost process
    /// is removed.
    fn with<T>(
        &self,
        config: &StageConfig,
        running: &mut Running,
        work: impl FnOnce(&mut StageProcess) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if running.process.as_mut().is_some_and(|process| !process.is_alive()) {
            self.end(running);
        }
        let process = match &mut running.process {
            Some(process) => process,
            none => {
                self.starts.fetch_add(1, Ordering::Relaxed);
                let process =
                    StageProcess::start(config, self.tenant.as_str()).inspect_err(|error| self.note_loss(error))?;
                if !process.lacks().is_empty() {
                    tracing::warn!(
                        lacks = ?process.lacks(),
                        "this machine does not support parts of the jail of CPU stages"
                    );
                }
                none.insert(process)
            }
        };
        let before = process.cpu_time();
        let result = work(process);
        let cpu = process.cpu_time().saturating_sub(before);
        self.cpu_ns.fetch_add(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let group = process.group_use();
        self.groups().running = group.map(|(used, _)| used);
        running.used = Some(Instant::now());
        let mut is_over = group.is_some_and(|(_, is_over)| is_over);
        if let Err(error) = &result {
            self.note_loss(error);
            // After `NoRoom` the outputs are still on their way.
            is_over |= error.is_loss() || *error == CallError::NoRoom;
        }
        if is_over {
            self.end(running);
        }
        result
    }

    /// Ends the process.
    fn end(&self, running: &mut Running) {
        running.process = None;
        self.groups().end();
    }

    fn groups(&self) -> MutexGuard<'_, GroupUses> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_loss(&self, error: &CallError) {
        let count = match error {
            CallError::TimeLimit(_) => &self.time_limits,
            CallError::Lost(_) => &self.losses,
            CallError::Failed(_) | CallError::NoRoom => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn usage(&self) -> StageUse {
        StageUse {
            cpu_ns: self.cpu_ns.load(Ordering::Relaxed),
            starts: self.starts.load(Ordering::Relaxed),
            time_limits: self.time_limits.load(Ordering::Relaxed),
            losses: self.losses.load(Ordering::Relaxed),
            group: self.groups().all(),
        }
    }

    /// Ends the process once it had no calls for a minute. To be called in a tokio runtime.
    pub(crate) fn watch(self: &Arc<Slot>) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let slot = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE).await;
                let mut running = slot.turn().await;
                if running.used.is_none_or(|used| used.elapsed() >= IDLE) {
                    slot.end(&mut running);
                    slot.is_watched.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_process_that_ended_add_to_those_of_the_next() {
        let mut groups = GroupUses::default();
        groups.end();
        assert_eq!(groups.all(), None, "no process had a group");
        let used = |current_bytes, peak_bytes, kills| {
            Some(GroupUse { current_bytes, peak_bytes, kills, ..GroupUse::default() })
        };
        groups.running = used(5, 9, 1);
        groups.end();
        assert_eq!(groups.all(), used(0, 9, 1));
        groups.running = used(7, 8, 2);
        assert_eq!(groups.all(), used(7, 9, 3));
        groups.end();
        assert_eq!(groups.all(), used(0, 9, 3));
    }
}
