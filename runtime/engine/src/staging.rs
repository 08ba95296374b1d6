//! Stages constants: reads them into host memory before they are copied to the device, so that the
//! engine's thread does not wait for a disk.
//!
//! Constants are in mapped files, whose pages the system drops when it needs memory. The staging
//! thread reads the pages of a load in pieces, urgent loads first, and publishes its progress. The
//! engine's thread copies the pages that are in memory.

use crate::shared::Shared;
use atoll_kgraph::Bundle;
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes read at a time: enough to keep a disk busy, few enough that an urgent load waits only a
/// few milliseconds.
const PIECE_BYTES: usize = 4 << 20;

/// Bytes requested from the disk ahead of the current piece. With four pieces requested ahead a
/// load took half as long again as with all of them (`atoll bench coldstart`). An urgent load may
/// have to wait for that many bytes, some 50 ms of a fast disk.
const AHEAD_BYTES: usize = 32 * PIECE_BYTES;

/// The handle of the staging thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Stager(Sender<Job>);

/// Progress of staging a bundle's constants.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// All requested bytes before this offset in the weights are in memory.
    end: AtomicUsize,
    /// Whether some bytes had to be read from disk.
    from_disk: AtomicBool,
}

#[derive(Debug)]
struct Job {
    bundle: Arc<Bundle>,
    /// Ascending ranges of the weights.
    ranges: Vec<Range<usize>>,
    /// Everything before this offset was requested from the disk.
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

    /// Starts reading ascending ranges of a bundle's weights. Dropping the returned progress
    /// cancels it.
    pub(crate) fn stage(&self, bundle: Arc<Bundle>, ranges: Vec<Range<usize>>, urgent: bool) -> Arc<Staged> {
        let staged = Arc::new(Staged::default());
        let job = Job { bundle, ranges, asked: 0, urgent, staged: Arc::clone(&staged) };
        if self.0.send(job).is_err() {
            // If the staging thread has ended, the engine's thread waits for the disk when it
            // copies.
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
        // Drop cancelled jobs.
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
    /// Requests the next bytes from the disk.
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

    /// Reads the next piece. Returns whether there are more.
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

/// Page faults of this thread that waited for a disk; `None` if the system does not report them.
fn major_faults() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    // The second field is a name in parentheses, which may contain anything; the major faults are
    // the tenth field after it.
    text.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_counts_major_faults() {
        assert!(cfg!(not(target_os = "linux")) || major_faults().is_some());
    }
}
