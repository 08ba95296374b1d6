//! Limits of the analyses. PTX is untrusted input, and some analyses take more than linear time.

use atoll_ptx::flow::TooManyLive;

/// Limit on the steps that the analyses of one kernel take together. A step visits an instruction
/// or a block once; all steps take a few seconds. Large kernels take about a million.
pub(crate) const MAX_STEPS: usize = 1 << 26;

/// A kernel exceeds a limit of the analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Too many registers are live across too many blocks.
    #[error(transparent)]
    Live(#[from] TooManyLive),
    /// Loops or divergent branches are nested or chained so deeply that their analysis takes too
    /// long.
    #[error("control flow whose analysis takes more than {MAX_STEPS} steps")]
    Steps,
}

/// The steps that the analyses of a kernel may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(steps: usize) -> Budget {
        Budget { left: steps }
    }

    /// Takes steps from the budget.
    ///
    /// # Errors
    /// Returns [`TooLarge::Steps`] if fewer steps are left.
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), TooLarge> {
        self.left = self.left.checked_sub(steps).ok_or(TooLarge::Steps)?;
        Ok(())
    }

    /// The steps that are left.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.left
    }
}
