//! Minimum residency: a cold best-effort invocation leaves constants alone for a while that were in
//! use a moment ago.
//!
//! Where more is asked for than fits on the device, somebody always waits for memory. If the next
//! in turn took what a request gave back the moment it was over, a client that comes again at once
//! would never find its constants in place, and nearly every request would load some. So a set
//! stays for as long as writing it to the device again would take, while others have what they
//! need, and with it the memory kept from past invocations: an invocation that took that would have
//! the next one take a set for its memory. The first in turn waits for [`LOADS_WAITED`] times as
//! long as its own loading takes, or until sixteen have overtaken it; those behind it until they
//! are first; real-time invocations do not wait.
//!
//! On a full device the first of a tenant that is at its quota waits for as long for what the
//! tenant's other invocations had in use, and lets those pass that find their constants in place,
//! however many. It has then waited for the device as well. An invocation that lacks memory of its
//! own does not wait.

use super::event::{Turn, earlier};
use super::limits::LOADS_WAITED;
use super::{Memory, SetState};
use crate::ids::{Class, Nanos, TaskId};

/// Which constants may go to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// All that nobody pins.
    All,
    /// Those of them whose minimum residency is over; and no memory kept from past invocations.
    Cool,
}

impl Memory {
    /// An invocation is the first in turn for memory: its wait begins, if it has not before.
    pub(super) fn note_first(&mut self, (_, task): Turn) {
        if self.invocations[&task].waits_until.is_none() {
            let until = self.now.0.saturating_add(self.load_ns(task).saturating_mul(LOADS_WAITED));
            self.invocation_mut(task).waits_until = Some(Nanos(until));
        }
    }

    /// Whether a cold invocation has to leave others their minimum residency.
    pub(super) fn respects_residency(&self, turn: Turn) -> bool {
        let anybody_runs = self.invocations.len() > self.cold.len();
        anybody_runs && self.is_patient(turn)
    }

    /// Whether it has to do so with what its tenant has. While the device has room for what it
    /// lacks, what goes for it is a leftover that nothing is written over.
    pub(super) fn respects_own_residency(&self, turn: Turn) -> bool {
        let is_full = self.lacking_bytes(turn.1) > self.ledger.free_bytes();
        let tenant = &self.tenants[&self.invocations[&turn.1].tenant];
        let anybody_runs = tenant.invocations > tenant.cold;
        is_full && anybody_runs && self.is_patient(turn)
    }

    /// Whether an invocation has not yet waited for long enough.
    fn is_patient(&self, (class, task): Turn) -> bool {
        class == Class::BestEffort && self.invocations[&task].waits_until.is_none_or(|until| self.now < until)
    }

    /// Whether there is room for the constants that an invocation lacks beside those in their
    /// minimum residency. If not, it is looked at again when that may have changed.
    pub(super) fn fits_beside_warm(&mut self, task: TaskId) -> bool {
        let warm = self.residency.warm(self.now);
        let fits = self.lacking_bytes(task) + warm.bytes + self.slots.idle_bytes() <= self.obtainable_bytes();
        if !fits {
            self.look_again(task, warm.until);
        }
        fits
    }

    /// Bytes of the constants that an invocation lacks, without leftovers.
    fn lacking_bytes(&self, task: TaskId) -> u64 {
        let away = self.invocations[&task].sets.iter().filter(|&&set| self.constants.state(set) == SetState::Away);
        away.flat_map(|&set| self.constants.unplaced(set)).map(|(_, bytes)| bytes).sum()
    }

    /// Looks at an invocation again once the first minimum residency is over, or it has waited for
    /// long enough.
    pub(super) fn look_again(&mut self, task: TaskId, warm_until: Option<Nanos>) {
        let waits_until = self.invocations[&task].waits_until;
        self.look_at = earlier(self.look_at, earlier(warm_until, waits_until));
    }

    /// Invocations that left others their minimum residency may have waited for long enough.
    pub(super) fn tick(&mut self) {
        if self.look_at.is_some_and(|at| at <= self.now) {
            self.look_at = None;
            self.serve_cold();
        }
    }

    /// How long it takes to load what an invocation needs.
    fn load_ns(&self, task: TaskId) -> u64 {
        let missing = self.invocations[&task].sets.iter().filter(|&&set| !self.constants.is_resident(set));
        self.reload_ns(missing.map(|&set| self.constants.set_bytes(set)).sum())
    }
}
