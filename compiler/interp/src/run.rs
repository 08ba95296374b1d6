//! A whole launch: its blocks, a few at a time.

use crate::block::{BlockRun, Progress, Random};
use crate::fault::{Fault, FaultKind};
use crate::launch::{Launch, LaunchError, Options};
use crate::memory::Memory;
use crate::program::Program;
use thiserror::Error;

/// Most bytes that are kept of what a kernel prints, 16 MiB: a loop that prints must not fill the
/// memory.
const PRINTED_BYTES_MAX: usize = 16 << 20;

/// Instructions that one resident block does before the next one.
const BLOCK_STEPS: u64 = 4096;

/// What a launch did besides writing memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Instructions, each counted once for each thread.
    pub steps: u64,
    /// What the kernel printed.
    pub printed: String,
    /// Bytes it printed beyond what is kept.
    pub printed_lost_bytes: u64,
}

/// A launch that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// It cannot begin.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A thread did what it must not.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// Runs a launch to its end.
pub fn run(program: &Program, launch: &Launch, memory: &mut Memory, options: &Options) -> Result<Report, RunError> {
    launch.check(program)?;
    let [x, y, z] = launch.grid;
    let mut waiting = (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z])));
    let mut resident: Vec<BlockRun<'_>> = Vec::new();
    let mut report = Report::default();
    let mut random = Random::new(options.seed);
    let mut printed = Vec::new();
    let mut next = 0;
    loop {
        while resident.len() < options.resident_blocks.max(1) as usize
            && let Some(block) = waiting.next()
        {
            resident.push(BlockRun::new(program, launch, block, options)?);
        }
        if resident.is_empty() {
            break;
        }
        next = random.below(resident.len() as u64).map_or((next + 1) % resident.len(), |n| n as usize);
        let run = &mut resident[next];
        let before = run.steps();
        let left = options.steps.saturating_sub(report.steps);
        if left == 0 {
            return Err(Box::new(run.fault(0, FaultKind::StepLimit(options.steps))).into());
        }
        let progress = run.run(memory, left.min(BLOCK_STEPS)).map_err(Box::new)?;
        report.steps += run.steps() - before;
        keep(&mut printed, &run.take_printed(), &mut report);
        if progress == Progress::Finished {
            resident.remove(next);
        }
    }
    report.printed = String::from_utf8_lossy(&printed).into_owned();
    Ok(report)
}

fn keep(printed: &mut Vec<u8>, text: &[u8], report: &mut Report) {
    let room = PRINTED_BYTES_MAX - printed.len();
    let kept = text.len().min(room);
    printed.extend_from_slice(&text[..kept]);
    report.printed_lost_bytes += (text.len() - kept) as u64;
}
