//! Stopping blocks in the middle, anywhere, and running them again: what holds claims of
//! idempotence against what really happens.
//!
//! The interpreter runs a block up to some instruction of some thread. Then the block is abandoned:
//! what it stored to memory outside of it stays, its registers, its shared and its local memory are
//! lost. Run again from its start, it must leave memory as if it had not been disturbed.

use anyhow::{Context, Result, ensure};
use atoll_core::rng::Rng;
use atoll_interp::{BlockRun, Memory, Options, Progress};
use atoll_ptx::Module;
use atoll_workbench::{Buffer, InterpBench, InterpKernel, InterpLaunch, Kernel, KernelDevice, Launch};

/// A kernel and a launch of it.
#[derive(Debug)]
pub struct Trial<'a> {
    /// The module.
    pub module: &'a Module,
    /// The kernel.
    pub entry: &'a str,
    /// Threads of a block.
    pub block: [u32; 3],
    /// The launch.
    pub launch: Launch,
    /// What it is launched on.
    pub buffers: Vec<Buffer>,
}

/// How blocks are stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    /// How often each of them is.
    pub rounds: u64,
    /// Most blocks of a launch that are run at all, picked from everywhere in the grid.
    pub blocks: u64,
    /// Most instructions of a block, each counted once for each thread.
    pub steps: u64,
    /// Decides where blocks are stopped, and in which order their threads took turns until then.
    pub seed: u64,
}

/// Stops every block at a random instruction and runs it again; gives the number of rounds after
/// which memory was not what one undisturbed run leaves.
pub fn differences(trial: &Trial<'_>, stopping: &Stopping) -> Result<u64> {
    let kernel = Kernel { module: trial.module, entry: trial.entry, report: None, block: trial.block };
    let kernel = InterpBench::default().load(&kernel)?;
    let bound = kernel.bind(&trial.launch, &trial.buffers)?;
    let mut random = Rng::new(stopping.seed);
    let blocks = pick(bound.launch.grid, stopping.blocks, &mut random);
    let run = Runs { kernel: &kernel, bound: &bound, steps: stopping.steps };

    let mut expected = bound.memory.clone();
    let mut used = Vec::new();
    for &block in &blocks {
        used.push(run.to_its_end(block, &mut expected)?);
    }
    let mut different = 0;
    for round in 0..stopping.rounds {
        let mut memory = bound.memory.clone();
        let mut again = Vec::new();
        for (&block, used) in blocks.iter().zip(&used) {
            run.abandoned(block, &mut memory, &mut random, *used)?;
            // In turn: each block is run again at once, or when all have been stopped.
            if round % 2 == 0 {
                run.to_its_end(block, &mut memory)?;
            } else {
                again.push(block);
            }
        }
        for block in again {
            run.to_its_end(block, &mut memory)?;
        }
        let content = |memory, index: usize| bound.content(memory, index, trial.buffers[index].bytes.len());
        different +=
            u64::from((0..trial.buffers.len()).any(|index| content(&memory, index) != content(&expected, index)));
    }
    Ok(different)
}

/// Up to `most` blocks of a grid in the order in which they begin.
fn pick(grid: [u32; 3], most: u64, random: &mut Rng) -> Vec<[u32; 3]> {
    let [x, y, z] = grid.map(u64::from);
    let count = x * y * z;
    let block = |index: u64| [index % x, index / x % y, index / x / y].map(|i| i as u32);
    if count <= most {
        return (0..count).map(block).collect();
    }
    // One from each of as many equal parts of the grid.
    (0..most)
        .map(|part| (part * count / most, (part + 1) * count / most))
        .map(|(begin, end)| block(begin + random.below(end - begin)))
        .collect()
}

/// Runs blocks of one launch.
struct Runs<'a> {
    kernel: &'a InterpKernel,
    bound: &'a InterpLaunch,
    steps: u64,
}

impl Runs<'_> {
    fn start(&self, block: [u32; 3], seed: u64) -> Result<BlockRun<'_>> {
        Ok(BlockRun::new(self.kernel.program(), &self.bound.launch, block, &Options { seed, ..Options::default() })?)
    }

    /// Gives the number of instructions.
    fn to_its_end(&self, block: [u32; 3], memory: &mut Memory) -> Result<u64> {
        let mut run = self.start(block, 0)?;
        let progress = run.run(memory, self.steps)?;
        ensure!(progress == Progress::Finished, "block {block:?} has not ended after {} instructions", self.steps);
        Ok(run.steps())
    }

    /// Up to any place, threads in any order; with another seed, memory that nobody wrote holds
    /// something else.
    fn abandoned(&self, block: [u32; 3], memory: &mut Memory, random: &mut Rng, used: u64) -> Result<()> {
        let seed = 1 + random.below(u64::from(u32::MAX));
        self.start(block, seed)?.run(memory, random.below(used + 1)).context("in the run that is stopped")?;
        Ok(())
    }
}
