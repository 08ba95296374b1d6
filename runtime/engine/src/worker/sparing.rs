//! A cold best-effort invocation leaves constants alone for a while that were in use a moment ago.
//!
//! Where more is asked for than fits on the device, somebody always waits for memory. If the next in turn took what a request gave back the moment it was over, a client that comes again at once
//! would never find its constants in place, and nearly every request would load some. So a set is spared for as long as writing it to the device again would take, while others have what they
//! need, and with it what is kept of past invocations: whoever took that would have the next one take a set for its memory. The first in turn spares others for [`LOADS_WAITED`] times as long as
//! its own loading takes, or until sixteen have overtaken it; those behind it until they are first; real-time invocations nobody.
//!
//! On a full device the first of a tenant that is at its quota spares for as long what the tenant's other invocations had in use, and lets those pass that find their constants in place, however
//! many. It has then waited for the device as well. Who lacks memory for the invocation itself spares nothing.

use super::Worker;
use super::residency::Turn;
use crate::clock;
use crate::constants::SetState;
use crate::limits::LOADS_WAITED;
use atoll_core::{Class, Nanos, TaskId};

/// Which constants may go to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victims {
    /// All that nobody claims.
    All,
    /// Those of them that were not in use a moment ago; and nothing that is kept of past invocations.
    Cool,
}

/// Somebody waits because others are spared.
#[derive(Default)]
pub(super) struct Sparing {
    /// When that will have changed.
    look_at: Option<Nanos>,
}

impl Worker {
    /// An invocation is the first in turn for memory: its wait begins, if it has not before.
    pub(super) fn note_first(&mut self, (_, task): Turn) {
        if self.invocation(task).spares_until.is_none() {
            let until = clock::now().0.saturating_add(self.load_ns(task).saturating_mul(LOADS_WAITED));
            self.invocation(task).spares_until = Some(Nanos(until));
        }
    }

    /// Whether a cold invocation has to leave alone what was in use a moment ago.
    pub(super) fn spares(&self, turn: Turn) -> bool {
        let anybody_runs = self.invocations.len() > self.cold_count();
        anybody_runs && self.is_patient(turn)
    }

    /// Whether it has to do so with what its tenant has. While the device has room for what it lacks, what goes for it is a leftover that nothing is written over.
    pub(super) fn spares_own(&self, turn: Turn) -> bool {
        let is_full = self.homeless_bytes(turn.1) > self.memory.free_bytes();
        let tenant = self.invocations[&turn.1].submission.chain.tenant();
        let mut own = self.invocations.iter().filter(|(_, invocation)| invocation.submission.chain.tenant() == tenant);
        let anybody_runs = own.any(|(&task, invocation)| !self.is_cold((invocation.submission.class, task)));
        is_full && anybody_runs && self.is_patient(turn)
    }

    /// Whether an invocation has not yet waited for long enough.
    fn is_patient(&self, (class, task): Turn) -> bool {
        class == Class::BestEffort && self.invocations[&task].spares_until.is_none_or(|until| clock::now() < until)
    }

    /// Whether there is room for the constants that an invocation lacks without those that were in use a moment ago. If not, it is looked at again when that may have changed.
    pub(super) fn fits_beside_warm(&mut self, task: TaskId) -> bool {
        let warm = self.resident.residency.warm(clock::now());
        let fits = self.homeless_bytes(task) + warm.bytes + self.idle_bytes() <= self.obtainable_bytes();
        if !fits {
            self.look_again(task, warm.until);
        }
        fits
    }

    /// What the constants that an invocation lacks take, but for those that are leftovers.
    fn homeless_bytes(&self, task: TaskId) -> u64 {
        let away = self.invocations[&task].sets.iter().filter(|&&set| self.constants.state(set) == SetState::Away);
        away.flat_map(|&set| self.constants.homeless(set)).map(|(_, bytes)| bytes).sum()
    }

    /// Looks at an invocation again once the first of what it spares has cooled, or it has waited for long enough.
    pub(super) fn look_again(&mut self, task: TaskId, warm_until: Option<Nanos>) {
        let look_at = [self.resident.sparing.look_at, warm_until, self.invocations[&task].spares_until];
        self.resident.sparing.look_at = look_at.into_iter().flatten().min();
    }

    /// When to call [`Worker::see_what_cooled`], if nothing happens before.
    pub(super) fn sparing_deadline(&self) -> Option<Nanos> {
        self.resident.sparing.look_at
    }

    /// Those who wait because others are spared may have waited for long enough.
    pub(super) fn see_what_cooled(&mut self, now: Nanos) {
        if self.resident.sparing.look_at.is_some_and(|at| at <= now) {
            self.resident.sparing.look_at = None;
            self.serve_cold();
            self.act();
        }
    }

    /// How long it takes to load what an invocation needs.
    fn load_ns(&self, task: TaskId) -> u64 {
        let missing = self.invocations[&task].sets.iter().filter(|&&set| !self.constants.is_resident(set));
        self.reload_ns(missing.map(|&set| self.constants.set_bytes(set)).sum())
    }
}
