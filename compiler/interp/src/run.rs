//! Runs a launch, a few blocks at a time.

use crate::block::{BlockRun, Progress, Random};
use crate::fault::{Fault, FaultKind};
use crate::launch::{Launch, LaunchError, Options};
use crate::memory::Memory;
use crate::program::Program;
use thiserror::Error;

/// Maximum size of the kept output in bytes (16 MiB). A kernel that prints in a loop would
/// otherwise exhaust memory.
const PRINTED_BYTES_MAX: usize = 16 << 20;

/// Number of instructions that a resident block runs before the next block's turn.
const BLOCK_STEPS: u64 = 4096;

/// The results of a launch, except the contents of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of executed instructions, counted per thread.
    pub steps: u64,
    /// The output of the kernel.
    pub printed: String,
    /// Bytes of output that were not kept.
    pub printed_lost_bytes: u64,
}

/// Why a launch did not finish.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// It cannot start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A thread caused a fault.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// Runs a launch to completion.
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
