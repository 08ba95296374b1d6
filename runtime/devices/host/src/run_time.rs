//! The time that a launch has run, and the time it lost to interruptions.
//!
//! A launch runs while at least one compute unit runs its blocks. Each such stretch of time either
//! finishes a block or is lost. A lost stretch counts towards the time limit only until the launch
//! finishes its next block. So repeated work counts once, and a block that never ends exceeds the
//! limit however often it is interrupted.

/// Interruptions in a row without a finished block, after which the launch may run uninterrupted
/// for a while. Best-effort work thus makes progress even if real-time work arrives more often than
/// its blocks end. At most one in 128 real-time launches waits for it, which does not show in the
/// 99th percentile.
pub(super) const FRUITLESS_INTERRUPTIONS_MAX: u32 = 128;

/// How long such a launch may run uninterrupted, in nanoseconds. Blocks that take longer may have
/// to wait until there is less real-time work.
pub(super) const UNINTERRUPTED_NS: u64 = 10_000_000;

/// The time of one launch.
#[derive(Debug, Default)]
pub(super) struct RunTime {
    /// Chunks that are running.
    running: u32,
    /// When the first of them began, and whether any has finished a block since.
    since_ns: u64,
    has_progress: bool,
    /// Total time of earlier stretches that finished blocks, and of lost stretches since the last
    /// of them, in nanoseconds.
    ran_ns: u64,
    lost_ns: u64,
    /// Interruptions since the last finished block.
    interruptions: u32,
}

impl RunTime {
    /// Chunks that are running.
    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// Records that a chunk begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if self.running == 0 {
            (self.since_ns, self.has_progress) = (now_ns, false);
        }
        self.running += 1;
    }

    /// Records that a chunk ends.
    pub(super) fn end(&mut self, now_ns: u64, finished_blocks: bool, was_interrupted: bool) {
        self.running -= 1;
        self.has_progress |= finished_blocks;
        self.interruptions = if finished_blocks { 0 } else { self.interruptions + u32::from(was_interrupted) };
        if self.running > 0 {
            return;
        }
        let stretch_ns = now_ns.saturating_sub(self.since_ns);
        if self.has_progress {
            self.ran_ns += stretch_ns;
            self.lost_ns = 0;
        } else {
            self.lost_ns += stretch_ns;
        }
    }

    /// How much of `limit_ns` is left, in nanoseconds.
    pub(super) fn left_ns(&self, limit_ns: u64, now_ns: u64) -> u64 {
        let runs_ns = if self.running > 0 { now_ns.saturating_sub(self.since_ns) } else { 0 };
        limit_ns.saturating_sub(self.ran_ns.saturating_add(self.lost_ns).saturating_add(runs_ns))
    }

    /// How long the next chunk must not be interrupted, in nanoseconds.
    pub(super) fn uninterrupted_ns(&mut self) -> u64 {
        if self.interruptions < FRUITLESS_INTERRUPTIONS_MAX {
            return 0;
        }
        self.interruptions = 0;
        UNINTERRUPTED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a chunk from one time to another; `finishes` tells whether it finishes a block.
    fn run(time: &mut RunTime, from_ns: u64, to_ns: u64, finishes: bool) {
        time.begin(from_ns);
        time.end(to_ns, finishes, !finishes);
    }

    #[test]
    fn repeated_work_counts_once() {
        let mut time = RunTime::default();
        for round in 0..50 {
            run(&mut time, round * 100, round * 100 + 10, false);
            run(&mut time, round * 100 + 50, round * 100 + 60, true);
        }
        assert_eq!(time.left_ns(1000, 10_000), 500);
    }

    #[test]
    fn a_block_that_never_ends_exceeds_the_limit_however_often_it_is_interrupted() {
        let mut time = RunTime::default();
        run(&mut time, 0, 10, true);
        (0..99).for_each(|round| run(&mut time, round * 100, round * 100 + 10, false));
        assert_eq!(time.left_ns(1000, 10_000), 0);
    }

    #[test]
    fn overlapping_chunks_count_once() {
        let mut time = RunTime::default();
        time.begin(0);
        run(&mut time, 10, 20, true);
        assert_eq!((time.running(), time.left_ns(1000, 100)), (1, 900));
        time.end(100, false, true);
        assert_eq!(time.left_ns(1000, 500), 900);
    }

    #[test]
    fn a_launch_without_progress_runs_uninterrupted_once_in_a_while() {
        let mut time = RunTime::default();
        for _ in 0..3 {
            for _ in 0..FRUITLESS_INTERRUPTIONS_MAX {
                assert_eq!(time.uninterrupted_ns(), 0);
                run(&mut time, 0, 1, false);
            }
            assert_eq!(time.uninterrupted_ns(), UNINTERRUPTED_NS);
        }
        (0..FRUITLESS_INTERRUPTIONS_MAX).for_each(|_| run(&mut time, 0, 1, false));
        run(&mut time, 0, 1, true);
        assert_eq!(time.uninterrupted_ns(), 0, "a block was finished");
    }
}
