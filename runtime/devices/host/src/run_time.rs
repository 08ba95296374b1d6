//! How long a launch has run, and what interruptions cost it.
//!
//! A launch runs while at least one compute unit runs blocks of it; each such stretch either
//! finishes blocks or was for nothing. Its time limit counts what was for nothing only until blocks
//! are finished again, so that work which is done twice counts once, and a block that never ends is
//! found all the same, however often it is interrupted.

/// Interruptions in a row, without a block finished between them, after which blocks are left alone
/// for a while: so best-effort work gets somewhere beside real-time work that comes more often than
/// its blocks end, and one real-time launch in so many waits for it, which is below what a 99th
/// percentile sees.
pub(super) const FRUITLESS_INTERRUPTIONS_MAX: u32 = 128;

/// How long they are. Blocks that take longer may have to wait until there is less real-time work.
pub(super) const LEFT_ALONE_NS: u64 = 10_000_000;

/// The time of one launch.
#[derive(Debug, Default)]
pub(super) struct RunTime {
    /// Chunks that are being run.
    running: u32,
    /// When the first of them began, and whether a block was finished since.
    since_ns: u64,
    is_fruitful: bool,
    /// How long it ran before, in stretches that finished blocks, and in others since the last of
    /// these.
    ran_ns: u64,
    lost_ns: u64,
    /// Interruptions since a block was finished.
    interruptions: u32,
}

impl RunTime {
    /// Chunks that are being run.
    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// A chunk begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if self.running == 0 {
            (self.since_ns, self.is_fruitful) = (now_ns, false);
        }
        self.running += 1;
    }

    /// A chunk ends.
    pub(super) fn end(&mut self, now_ns: u64, finished_blocks: bool, was_interrupted: bool) {
        self.running -= 1;
        self.is_fruitful |= finished_blocks;
        self.interruptions = if finished_blocks { 0 } else { self.interruptions + u32::from(was_interrupted) };
        if self.running > 0 {
            return;
        }
        let stretch_ns = now_ns.saturating_sub(self.since_ns);
        if self.is_fruitful {
            self.ran_ns += stretch_ns;
            self.lost_ns = 0;
        } else {
            self.lost_ns += stretch_ns;
        }
    }

    /// How much of `limit_ns` is left.
    pub(super) fn left_ns(&self, limit_ns: u64, now_ns: u64) -> u64 {
        let runs_ns = if self.running > 0 { now_ns.saturating_sub(self.since_ns) } else { 0 };
        limit_ns.saturating_sub(self.ran_ns.saturating_add(self.lost_ns).saturating_add(runs_ns))
    }

    /// How long the next chunk is to be left alone.
    pub(super) fn left_alone_ns(&mut self) -> u64 {
        if self.interruptions < FRUITLESS_INTERRUPTIONS_MAX {
            return 0;
        }
        self.interruptions = 0;
        LEFT_ALONE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk from one time to another; whether it finishes a block.
    fn run(time: &mut RunTime, from_ns: u64, to_ns: u64, finishes: bool) {
        time.begin(from_ns);
        time.end(to_ns, finishes, !finishes);
    }

    #[test]
    fn work_that_is_done_twice_counts_once() {
        let mut time = RunTime::default();
        for round in 0..50 {
            run(&mut time, round * 100, round * 100 + 10, false);
            run(&mut time, round * 100 + 50, round * 100 + 60, true);
        }
        assert_eq!(time.left_ns(1000, 10_000), 500);
    }

    #[test]
    fn a_block_that_never_ends_runs_out_of_time_however_often_it_is_interrupted() {
        let mut time = RunTime::default();
        run(&mut time, 0, 10, true);
        (0..99).for_each(|round| run(&mut time, round * 100, round * 100 + 10, false));
        assert_eq!(time.left_ns(1000, 10_000), 0);
    }

    #[test]
    fn time_that_others_get_blocks_done_in_counts_once() {
        let mut time = RunTime::default();
        time.begin(0);
        run(&mut time, 10, 20, true);
        assert_eq!((time.running(), time.left_ns(1000, 100)), (1, 900));
        time.end(100, false, true);
        assert_eq!(time.left_ns(1000, 500), 900);
    }

    #[test]
    fn who_never_gets_anything_done_is_left_alone_once_in_a_while() {
        let mut time = RunTime::default();
        for _ in 0..3 {
            for _ in 0..FRUITLESS_INTERRUPTIONS_MAX {
                assert_eq!(time.left_alone_ns(), 0);
                run(&mut time, 0, 1, false);
            }
            assert_eq!(time.left_alone_ns(), LEFT_ALONE_NS);
        }
        (0..FRUITLESS_INTERRUPTIONS_MAX).for_each(|_| run(&mut time, 0, 1, false));
        run(&mut time, 0, 1, true);
        assert_eq!(time.left_alone_ns(), 0, "a block was finished");
    }
}
