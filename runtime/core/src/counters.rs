//! Counts of scheduling events.

use crate::ids::CLASSES;
use std::ops::AddAssign;

/// Counts since the scheduler was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times a running task was evicted in favour of another task (or by perturbation).
    pub preemptions: u64,
    /// Launches submitted to the device, repeated ones included.
    pub issued_launches: u64,
    /// Launches with co-scheduled best-effort blocks.
    pub padded_launches: u64,
    /// Co-scheduled blocks.
    pub padding_blocks: u64,
    /// Forks that ran in two branches.
    pub forks: u64,
    /// Times the oldest best-effort task got the device while real-time tasks were present.
    pub best_effort_slices: u64,
    /// Launches that exited early.
    pub evicted_launches: u64,
    /// Restartable launches that may have exited early and run again.
    pub repeated_launches: u64,
    /// Launches that were ended by force after their task was over.
    pub aborted_launches: u64,
    /// Tasks that arrived: real-time, best-effort.
    pub arrived: [u64; 2],
    /// Tasks that finished: real-time, best-effort.
    pub finished: [u64; 2],
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters { preemptions, issued_launches, padded_launches, padding_blocks, best_effort_slices, .. } = other;
        let Counters { evicted_launches, repeated_launches, aborted_launches, forks, arrived, finished, .. } = other;
        self.forks += forks;
        self.preemptions += preemptions;
        self.issued_launches += issued_launches;
        self.padded_launches += padded_launches;
        self.padding_blocks += padding_blocks;
        self.best_effort_slices += best_effort_slices;
        self.evicted_launches += evicted_launches;
        self.repeated_launches += repeated_launches;
        self.aborted_launches += aborted_launches;
        for class in CLASSES.map(|class| class as usize) {
            self.arrived[class] += arrived[class];
            self.finished[class] += finished[class];
        }
    }
}
