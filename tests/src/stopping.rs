//! Stops blocks at arbitrary points and runs them again, to test claims of idempotence.
//!
//! The interpreter runs a block up to some instruction of some thread, then abandons it: its stores
//! to global memory stay; its registers, shared and local memory are lost. When the block runs
//! again from its start, memory must become the same as after an undisturbed run.

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
    /// Threads per block.
    pub block: [u32; 3],
    /// The launch.
    pub launch: Launch,
    /// Buffers of the launch.
    pub buffers: Vec<Buffer>,
}

/// How blocks are stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    /// Number of rounds.
    pub rounds: u64,
    /// Maximum number of blocks to run, picked from the whole grid.
    pub blocks: u64,
    /// Instruction limit of a block, counted per thread.
    pub steps: u64,
    /// Determines where blocks are stopped, and the order of threads until then.
    pub seed: u64,
}

/// Stops every block at a random instruction and runs it again. Returns the number of rounds after
/// which memory differs from that of an undisturbed run.
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
            // Alternates: each block runs again at once, or after all have been stopped.
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

/// Up to `most` blocks of a grid, in launch order.
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

    /// Runs a block to its end. Returns the number of instructions.
    fn to_its_end(&self, block: [u32; 3], memory: &mut Memory) -> Result<u64> {
        let mut run = self.start(block, 0)?;
        let progress = run.run(memory, self.steps)?;
        ensure!(progress == Progress::Finished, "block {block:?} has not ended after {} instructions", self.steps);
        Ok(run.steps())
    }

    /// Runs a block up to a random point, with threads in random order. The seed also determines
    /// the contents of uninitialized memory.
    fn abandoned(&self, block: [u32; 3], memory: &mut Memory, random: &mut Rng, used: u64) -> Result<()> {
        let seed = 1 + random.below(u64::from(u32::MAX));
        self.start(block, seed)?.run(memory, random.below(used + 1)).context("in the run that is stopped")?;
        Ok(())
    }
}
