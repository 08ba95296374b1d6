//! What a launch is asked for.

use crate::program::Program;
use thiserror::Error;

/// Most threads of a block on every device.
const BLOCK_THREADS_MAX: u64 = 1024;

/// Shape and parameters of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The parameter block: each parameter at its natural alignment. Addresses are those that
    /// [`Memory::add`](crate::Memory::add) gave.
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
    /// Decides in which order threads, warps and blocks take turns, and what uninitialised shared
    /// and local memory holds; 0 is the plain order.
    pub seed: u64,
    /// Most instructions, each counted once for each thread.
    pub steps: u64,
    /// How many blocks are under way at a time. They begin in order, so a block may wait for
    /// earlier ones; a cooperative launch needs all of them.
    pub resident_blocks: u32,
    /// Most calls inside each other.
    pub call_depth: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, steps: 1 << 40, resident_blocks: 4, call_depth: 256 }
    }
}
