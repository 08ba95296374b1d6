//! A whole launch: its blocks, a few at a time.

use crate::block::{BlockRun, Progress, Random};
use crate::fault::{Fault, FaultKind};
use crate::memory::Memory;
use crate::program::Program;
use thiserror::Error;

/// Most threads of a block on every device.
const BLOCK_THREADS_MAX: u64 = 1024;

/// Most bytes that are kept of what a kernel prints, 16 MiB: a loop that prints must not fill the memory.
const PRINTED_BYTES_MAX: usize = 16 << 20;

/// Instructions that one resident block does before the next one.
const BLOCK_STEPS: u64 = 4096;

/// Shape and parameters of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The parameter block: each parameter at its natural alignment. Addresses are those that [`Memory::add`] gave.
    pub params: Vec<u8>,
}

/// A launch that cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The grid or a block is empty or too large.
    #[error("a grid of {grid:?} blocks of {block:?} threads cannot be launched")]
    Shape {
        /// Blocks.
        grid: [u32; 3],
        /// Threads.
        block: [u32; 3],
    },
    /// Parameters of another size.
    #[error("the kernel has {wanted} bytes of parameters, {given} are given")]
    Params {
        /// What the kernel has.
        wanted: usize,
        /// What is given.
        given: usize,
    },
    /// More shared memory than can be had.
    #[error("{bytes} bytes of shared memory; there are {most}")]
    Shared {
        /// What is asked for.
        bytes: u64,
        /// The bound.
        most: u64,
    },
}

impl Launch {
    /// Whether a program can be launched so.
    pub(crate) fn check(&self, program: &Program) -> Result<(), LaunchError> {
        let product = |shape: [u32; 3]| shape.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
        let threads = product(self.block).filter(|n| (1..=BLOCK_THREADS_MAX).contains(n));
        let blocks = product(self.grid).filter(|n| *n > 0);
        if threads.is_none() || blocks.is_none() {
            return Err(LaunchError::Shape { grid: self.grid, block: self.block });
        }
        if self.params.len() != program.params_bytes() {
            return Err(LaunchError::Params { wanted: program.params_bytes(), given: self.params.len() });
        }
        Ok(())
    }
}

/// How a launch is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Decides in which order threads, warps and blocks take turns, and what uninitialised shared and local memory holds; 0 is the plain order.
    pub seed: u64,
    /// Most instructions, each counted once for each thread.
    pub steps: u64,
    /// How many blocks are under way at a time. They begin in order, so a block may wait for earlier ones; a cooperative launch needs all of them.
    pub resident_blocks: u32,
    /// Most calls inside each other.
    pub call_depth: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, steps: 1 << 40, resident_blocks: 4, call_depth: 256 }
    }
}

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
