//! Minimum residency: a cold best-effort invocation does not reclaim constants that were used
//! recently.
//!
//! If demand exceeds the device, some invocation always waits for memory. If it reclaimed every set
//! the moment its last invocation ended, a client that calls again at once would never find its
//! constants on the device, and nearly every request would load some. So a set stays for as long as
//! loading it again would take, and so does the memory kept from past invocations: an invocation
//! that took that memory would make the next one reclaim a set. The first invocation in turn waits
//! for [`LOADS_WAITED`] times its own loading time, or until sixteen invocations have overtaken it;
//! those behind it wait until they are first; real-time invocations do not wait.
//!
//! On a full device the first invocation of a tenant at its quota waits as long for constants that
//! the tenant's other invocations used recently. Meanwhile any number of the tenant's invocations
//! that find their constants on the device may overtake it. This wait also counts as its wait for
//! the device. An invocation that only lacks memory of its own does not wait.

use super::limits::LOADS_WAITED;
use super::spec::{Turn, earlier};
use super::{Memory, SetState};
use crate::ids::{Class, Nanos, TaskId};

/// Which constant sets may be reclaimed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// All unpinned sets.
    All,
    /// Only unpinned sets whose minimum residency is over, and no memory kept from past
    /// invocations.
    Cool,
}

impl Memory {
    /// Starts the wait of an invocation that is first in turn for memory, unless it has started
    /// before.
    pub(super) fn note_first(&mut self, (_, task): Turn) {
        if self.invocations[&task].waits_until.is_none() {
            let until = self.now.0.saturating_add(self.load_ns(task).saturating_mul(LOADS_WAITED));
            self.invocation_mut(task).waits_until = Some(Nanos(until));
        }
    }

    /// Whether a cold invocation has to respect the minimum residency of other constants.
    pub(super) fn respects_residency(&self, turn: Turn) -> bool {
        let anybody_runs = self.invocations.len() > self.cold.len();
        anybody_runs && self.is_patient(turn)
    }

    /// Whether it has to respect the minimum residency of its tenant's other constants. While the
    /// device has room for the bytes that it lacks, reclaiming for the quota only makes constants
    /// cached, which costs nothing.
    pub(super) fn respects_own_residency(&self, turn: Turn) -> bool {
        let is_full = self.lacking_bytes(turn.1) > self.ledger.free_bytes();
        let tenant = &self.tenants[&self.invocations[&turn.1].tenant];
        let anybody_runs = tenant.invocations > tenant.cold;
        is_full && anybody_runs && self.is_patient(turn)
    }

    /// Whether an invocation can still wait for the minimum residency of other constants.
    fn is_patient(&self, (class, task): Turn) -> bool {
        class == Class::BestEffort && self.invocations[&task].waits_until.is_none_or(|until| self.now < until)
    }

    /// Whether the constants that an invocation lacks fit beside the warm ones. If not, the
    /// invocation is retried when that may have changed.
    pub(super) fn fits_beside_warm(&mut self, task: TaskId) -> bool {
        let warm = self.residency.warm(self.now);
        let fits = self.lacking_bytes(task) + warm.bytes + self.slots.idle_bytes() <= self.obtainable_bytes();
        if !fits {
            self.look_again(task, warm.until);
        }
        fits
    }

    /// Bytes of the constants that an invocation lacks, without cached ones.
    fn lacking_bytes(&self, task: TaskId) -> u64 {
        let away = self.invocations[&task].sets.iter().filter(|&&set| self.constants.state(set) == SetState::Absent);
        away.flat_map(|&set| self.constants.unplaced(set)).map(|(_, bytes)| bytes).sum()
    }

    /// Schedules a retry of an invocation for when the first minimum residency ends, or its own
    /// wait does.
    pub(super) fn look_again(&mut self, task: TaskId, warm_until: Option<Nanos>) {
        let waits_until = self.invocations[&task].waits_until;
        self.look_at = earlier(self.look_at, earlier(warm_until, waits_until));
    }

    /// Retries invocations whose wait, or that of the constants in their way, may be over.
    pub(super) fn tick(&mut self) {
        if self.look_at.is_some_and(|at| at <= self.now) {
            self.look_at = None;
            self.serve_cold();
        }
    }

    /// Estimated time to load the constants that an invocation lacks, in nanoseconds.
    fn load_ns(&self, task: TaskId) -> u64 {
        let missing = self.invocations[&task].sets.iter().filter(|&&set| !self.constants.is_resident(set));
        self.reload_ns(missing.map(|&set| self.constants.set_bytes(set)).sum())
    }
}
