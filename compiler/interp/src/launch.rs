//! Launch shape, parameters and options.

use crate::program::Program;
use thiserror::Error;

/// Maximum number of threads of a block, the same on every device.
const BLOCK_THREADS_MAX: u64 = 1024;

/// Shape and parameters of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// The parameter block: each parameter at its natural alignment. Addresses are those returned
    /// by [`Memory::add`](crate::Memory::add).
    pub params: Vec<u8>,
}

/// Why a launch cannot start.
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
    /// The parameters have the wrong size.
    #[error("the kernel has {wanted} bytes of parameters, {given} are given")]
    Params {
        /// Bytes that the kernel takes.
        wanted: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// Shared memory exceeds the limit.
    #[error("{bytes} bytes of shared memory exceed the limit of {most}")]
    Shared {
        /// The requested bytes.
        bytes: u64,
        /// The limit in bytes.
        most: u64,
    },
}

impl Launch {
    /// Checks that a program can be launched with this shape and these parameters.
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

/// Options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Determines the order in which threads, warps and blocks run, and the content of
    /// uninitialized shared and local memory. 0 is the default order.
    pub seed: u64,
    /// Maximum number of instructions, counted per thread.
    pub steps: u64,
    /// Number of concurrent blocks. Blocks start in order, so a block may wait for earlier blocks;
    /// a cooperative launch needs all its blocks to be concurrent.
    pub resident_blocks: u32,
    /// Deepest nesting of calls.
    pub call_depth: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, steps: 1 << 40, resident_blocks: 4, call_depth: 256 }
    }
}
