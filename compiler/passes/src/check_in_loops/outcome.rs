//! What the pass did with each loop, and why it skipped one.

use crate::preemptible::NotPreemptible;

/// The outcome for one loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopOutcome {
    /// First line of the loop; 0 if a pass has built it.
    pub line: u32,
    /// The decision.
    pub decision: LoopDecision,
}

/// The decision about one loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopDecision {
    /// It has a check.
    Checked {
        /// Iterations between two checks.
        every: u32,
        /// Whether the loop was strip-mined; otherwise it counts its iterations.
        strips: bool,
    },
    /// It is unchanged.
    Skipped(LoopSkipped),
}

/// Why a loop has no check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopSkipped {
    /// The caller did not state that the kernel's blocks may run again.
    #[error("it is not known that a block may run again after it stopped midway")]
    MayNotRunAgain,
    /// The kernel is not preemptible at all.
    #[error("the kernel is not preemptible: {0}")]
    NotPreemptible(NotPreemptible),
    /// The number of iterations may differ between threads of a block.
    #[error("threads of one block may run different numbers of iterations")]
    Divergent,
    /// Threads may exit before the loop, and on the target barriers still wait for them.
    #[error("threads may exit before the loop, which requires sm_70 and PTX 6.2")]
    EarlyExitOnOldTarget,
    /// A loop of the function has a second entry.
    #[error("the function has cycles with more than one entry")]
    Irreducible,
    /// Too few iterations for a check.
    #[error("it has only {rounds} iterations")]
    FewRounds {
        /// The number of iterations.
        rounds: u64,
    },
    /// A short loop that an assembler may unroll, and whose iterations cannot be counted in
    /// advance.
    #[error("it is short ({instructions} instructions), and its iterations cannot be counted in advance")]
    Short {
        /// Instructions per iteration.
        instructions: u64,
    },
    /// An asynchronous operation of the block could still run after the block left.
    #[error("line {line}: `{what}` may still be in progress when a block leaves")]
    InProgress {
        /// The instruction.
        what: String,
        /// The line.
        line: u32,
    },
}
