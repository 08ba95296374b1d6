//! Constants are read into memory before they are copied, so that the engine's thread never waits
//! for a disk.
//!
//! They lie in mapped files whose pages the system drops when it needs the memory. A thread of its
//! own has the pages read that a load is about to copy, a piece at a time and urgent loads first,
//! and says how far it came. The engine's thread copies behind it.

use crate::shared::Shared;
use atoll_kgraph::Bundle;
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that are read ahead at a time: enough for a disk to be busy, little enough that an urgent
/// load waits a few milliseconds for it.
const PIECE_BYTES: usize = 4 << 20;

/// Bytes that the disk is asked for in front of those that are waited for: with four pieces in its
/// queue it took half as long again as with all of them (`atoll bench coldstart`). An urgent load
/// may find as much in front of its own, which is some 50 ms of a fast disk.
const AHEAD_BYTES: usize = 32 * PIECE_BYTES;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Stager(Sender<Job>);

/// How far the reading of a bundle's constants came.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// What lies in front of this offset in the weights, and was asked for, is in memory.
    end: AtomicUsize,
    /// Some of it had to be read from disk.
    from_disk: AtomicBool,
}

#[derive(Debug)]
struct Job {
    bundle: Arc<Bundle>,
    /// Ascending, in the weights.
    ranges: Vec<Range<usize>>,
    /// What lies in front of this offset the disk has been asked for.
    asked: usize,
    urgent: bool,
    staged: Arc<Staged>,
}

impl Staged {
    pub(crate) fn end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn was_on_disk(&self) -> bool {
        self.from_disk.load(Ordering::Relaxed)
    }
}

impl Stager {
    pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Stager> {
        let (send, jobs) = unbounded();
        std::thread::Builder::new().name("atoll-stager".into()).spawn(move || run(&jobs, &shared))?;
        Ok(Stager(send))
    }

    /// Begins to read ranges of a bundle's weights, ascending. Dropping the answer ends that.
    pub(crate) fn stage(&self, bundle: Arc<Bundle>, ranges: Vec<Range<usize>>, urgent: bool) -> Arc<Staged> {
        let staged = Arc::new(Staged::default());
        let job = Job { bundle, ranges, asked: 0, urgent, staged: Arc::clone(&staged) };
        if self.0.send(job).is_err() {
            // Without the thread the copy itself waits for the disk.
            staged.end.store(usize::MAX, Ordering::Release);
        }
        staged
    }
}

fn run(inbox: &Receiver<Job>, shared: &Shared) {
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        if jobs.is_empty() {
            match inbox.recv() {
                Ok(job) => jobs.push(job),
                Err(_) => return,
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(job) => jobs.push(job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        // What nobody waits for any more.
        jobs.retain(|job| Arc::strong_count(&job.staged) > 1);
        let Some(at) = jobs.iter().position(|job| job.urgent).or(if jobs.is_empty() { None } else { Some(0) }) else {
            continue;
        };
        if !jobs[at].read_piece() {
            jobs.remove(at);
        }
        shared.doorbell.ring();
    }
}

impl Job {
    /// Asks the disk for what comes next.
    fn ask_ahead(&mut self) {
        let mut left = AHEAD_BYTES;
        for range in &self.ranges {
            let end = range.end.min(range.start.saturating_add(left));
            if end > self.asked {
                self.bundle.read_ahead(range.start.max(self.asked)..end);
                self.asked = end;
            }
            left -= end - range.start;
            if left == 0 {
                break;
            }
        }
    }

    /// Reads the next piece. Returns whether there is more.
    fn read_piece(&mut self) -> bool {
        self.ask_ahead();
        let mut left = PIECE_BYTES;
        let faults = major_faults();
        while let Some(range) = self.ranges.first_mut() {
            let piece = range.start..range.end.min(range.start.saturating_add(left));
            self.bundle.read_in(piece.clone());
            left -= piece.len();
            range.start = piece.end;
            if range.start >= range.end {
                self.ranges.remove(0);
            }
            if left == 0 {
                break;
            }
        }
        if faults.zip(major_faults()).is_some_and(|(before, after)| after > before) {
            self.staged.from_disk.store(true, Ordering::Relaxed);
        }
        let end = self.ranges.first().map_or(usize::MAX, |range| range.start);
        self.staged.end.store(end, Ordering::Release);
        !self.ranges.is_empty()
    }
}

/// Page faults of this thread that waited for a disk; `None` where the system does not say.
fn major_faults() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    // The second field is a name in parentheses, which may hold anything; the major faults are the
    // tenth behind it.
    text.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_counts_our_faults() {
        assert!(cfg!(not(target_os = "linux")) || major_faults().is_some());
    }
}
