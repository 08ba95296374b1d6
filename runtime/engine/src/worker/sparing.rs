//! A cold best-effort invocation leaves alone for a while what was in use a moment ago.
//!
//! Where more is asked for than fits on the device, somebody always waits for memory. If the next in turn took what a request gave back the moment it was over, a client that comes again at once
//! would never find its constants in place, and nearly every request would load some. So a set is spared for as long as it would take to bring it back, while others have what they need. The
//! first in turn waits for as long as its own loading takes, the others until they are first, and real-time invocations not at all.

use super::Worker;
use super::residency::Turn;
use crate::clock;
use atoll_core::{Class, Nanos};

/// Who waits because others are spared.
#[derive(Default)]
pub(super) struct Sparing {
    /// The first in turn, and until when it does.
    first: Option<(Turn, Nanos)>,
    /// When to see whether it gets its memory then.
    look_again: Option<Nanos>,
}

impl Worker {
    /// Whether an invocation may not have what was in use a moment ago; `first` is the first in turn.
    pub(super) fn spares(&mut self, turn: Turn, first: Turn) -> bool {
        let anybody_runs = self.invocations.len() > self.cold_count();
        turn.0 == Class::BestEffort && anybody_runs && (turn != first || clock::now() < self.spares_until(first))
    }

    /// The first in turn got nothing because others are spared.
    pub(super) fn look_again(&mut self, first: Turn) {
        self.resident.sparing.look_again = Some(self.spares_until(first));
    }

    /// When to call [`Worker::see_again`], if nothing happens before.
    pub(super) fn sparing_deadline(&self) -> Option<Nanos> {
        self.resident.sparing.look_again
    }

    /// The first in turn may have waited for long enough.
    pub(super) fn see_again(&mut self, now: Nanos) {
        if self.resident.sparing.look_again.is_some_and(|at| at <= now) {
            self.resident.sparing.look_again = None;
            self.serve_cold();
            self.act();
        }
    }

    fn spares_until(&mut self, first: Turn) -> Nanos {
        match self.resident.sparing.first {
            Some((turn, until)) if turn == first => until,
            _ => {
                let until = Nanos(clock::now().0.saturating_add(self.load_ns(first)));
                self.resident.sparing.first = Some((first, until));
                until
            }
        }
    }

    /// How long it takes to load what an invocation needs.
    fn load_ns(&self, (_, task): Turn) -> u64 {
        let sets = self.invocations.get(&task).map_or(&[][..], |invocation| &invocation.sets);
        let bytes = sets.iter().filter(|&&set| !self.constants.is_resident(set)).map(|&set| self.constants.set_bytes(set)).sum();
        self.reload_ns(bytes)
    }
}
