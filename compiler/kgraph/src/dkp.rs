//! Launches that several kernels share (dynamic kernel padding, REEF §5): the facts about a dkp
//! module, and the parameter layout of its launches.
//!
//! The parameter of a dkp kernel is a table of [`SLOTS`] slots, followed by the arguments of each
//! slot. A slot holds the end of its blocks, the candidate that runs in them, and the offset of
//! that candidate's arguments.

use crate::virtual_params;

/// Candidates that share one launch: a real-time kernel and up to three kernels that pad it.
pub const SLOTS: usize = 4;

/// Bytes of a slot: end, candidate, offset of the arguments, one unused word.
pub const SLOT_BYTES: usize = 16;

/// Alignment of the parameter and of each slot's arguments, sufficient for every type.
pub const ARGUMENTS_ALIGN: usize = 16;

/// A kernel that may share launches, after the passes: it uses virtual thread and block numbers,
/// and its body is a device function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateFacts {
    /// The device function that is its body.
    pub body: String,
    /// Bytes of its arguments, including appended ones.
    pub params_bytes: u32,
    /// Byte offset of [`virtual_params`] in the arguments; the kernel's own arguments precede it.
    pub virtual_offset: u32,
    /// Whether the virtual parameters include the block shape.
    pub takes_block: bool,
    /// Dynamic shared memory that replaces its static shared arrays, in bytes.
    pub shared_bytes: u32,
}

/// A dkp module: one entry that runs any of its candidates side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpFacts {
    /// The entry's name.
    pub entry: String,
    /// Threads per block that a launch may have: multiples of 32, ascending. A launch uses the
    /// smallest that is enough for its candidates.
    pub threads: Vec<u32>,
    /// Bytes of the parameter.
    pub params_bytes: u32,
    /// The candidates; slots refer to them by index.
    pub candidates: Vec<DkpCandidate>,
}

/// A candidate in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpCandidate {
    /// Its index in the set of candidates that the modules were made from.
    pub index: usize,
    /// The kernel's name in its own module.
    pub kernel: String,
    /// Its block shape.
    pub block: [u32; 3],
    /// Dynamic shared memory that a launch of it needs, in bytes: its converted static arrays, and
    /// the dynamic memory of its own launches.
    pub shared_bytes: u32,
    /// Blocks of it that fit a compute unit with the registers of the module's entry. Other
    /// resources may allow fewer. `u32::MAX` where registers do not limit the number.
    pub unit_blocks: u32,
    /// Facts from the passes.
    pub facts: CandidateFacts,
}

/// One kernel's part of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Index of the candidate in the module.
    pub candidate: usize,
    /// The kernel's arguments, laid out as for a launch of its own. [`lay_out`] fills in the
    /// virtual parameters.
    pub arguments: Vec<u8>,
    /// The kernel's grid.
    pub grid: [u32; 3],
    /// Linear index of the first block that runs in this launch.
    pub first: u32,
    /// Number of blocks that run in this launch.
    pub blocks: u32,
}

/// Why ranges cannot form a launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// More ranges than slots, or none.
    #[error("{0} kernels in one launch; a launch takes 1 to 4")]
    Ranges(usize),
    /// The candidate does not exist.
    #[error("the module has no candidate {0}")]
    Candidate(usize),
    /// Blocks outside of the grid, or more than a launch can have.
    #[error("blocks {first} to {end} of a kernel that has {blocks} blocks")]
    Blocks {
        /// First block.
        first: u32,
        /// One past the last.
        end: u64,
        /// Blocks of its grid.
        blocks: u64,
    },
    /// The arguments are not as long as the kernel's parameters.
    #[error("{given} bytes of arguments for candidate {candidate}, which takes {wanted} bytes")]
    Arguments {
        /// Index of the candidate.
        candidate: usize,
        /// Bytes that it takes.
        wanted: u32,
        /// Bytes that were given.
        given: usize,
    },
    /// A candidate's block has more threads than the largest block size of the module.
    #[error("a block of {0} threads exceeds every block size of the module")]
    Threads(u32),
    /// The arguments together exceed the parameter.
    #[error("the kernels' arguments take {wanted} bytes, the launch parameter has {room}")]
    Room {
        /// Bytes of the slots and all arguments.
        wanted: usize,
        /// Bytes of the parameter.
        room: u32,
    },
}

/// A launch of a dkp kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpLaunch {
    /// The parameter block.
    pub params: Vec<u8>,
    /// Byte offset of each range's arguments in the block, to fill in addresses.
    pub arguments_at: Vec<usize>,
    /// Blocks of the launch in x; y and z are 1.
    pub blocks: u32,
    /// Index of the block size in [`DkpFacts::threads`].
    pub size: usize,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

/// Lays out a launch of some ranges, one after another. The first range has the lowest block
/// numbers, which devices start first.
pub fn lay_out(module: &DkpFacts, ranges: &[Range]) -> Result<DkpLaunch, LaunchError> {
    if ranges.is_empty() || ranges.len() > SLOTS {
        return Err(LaunchError::Ranges(ranges.len()));
    }
    let mut params = vec![0; SLOTS * SLOT_BYTES];
    let mut arguments_at = Vec::new();
    let mut begin = 0u32;
    for (slot, range) in ranges.iter().enumerate() {
        let end = check(module, range, begin)?;
        params.resize(params.len().next_multiple_of(ARGUMENTS_ALIGN), 0);
        let at = params.len();
        // Wraps if the range's first block exceeds its first block in the launch; the kernel
        // subtracts with the same wrap.
        params.extend(arguments(module, range, begin.wrapping_sub(range.first)));
        for (word, value) in [end, range.candidate as u32, at as u32].into_iter().enumerate() {
            put(&mut params, slot * SLOT_BYTES + 4 * word, value);
        }
        arguments_at.push(at);
        begin = end;
    }
    // Blocks never reach unused slots: their predecessors end where the launch ends.
    for slot in ranges.len()..SLOTS {
        put(&mut params, slot * SLOT_BYTES, begin);
    }
    if params.len() > module.params_bytes as usize {
        return Err(LaunchError::Room { wanted: params.len(), room: module.params_bytes });
    }
    params.resize(module.params_bytes as usize, 0);
    let candidates = || ranges.iter().map(|range| &module.candidates[range.candidate]);
    let threads = candidates().map(|candidate| candidate.block.iter().product()).fold(0, u32::max);
    let shared_bytes = candidates().map(|candidate| candidate.shared_bytes).fold(0, u32::max);
    let size = module.threads.iter().position(|size| *size >= threads).ok_or(LaunchError::Threads(threads))?;
    Ok(DkpLaunch { params, arguments_at, blocks: begin, size, shared_bytes })
}

/// Checks a range that begins at block `begin` of the launch; returns one past its last block.
fn check(module: &DkpFacts, range: &Range, begin: u32) -> Result<u32, LaunchError> {
    let candidate = module.candidates.get(range.candidate).ok_or(LaunchError::Candidate(range.candidate))?;
    if range.arguments.len() != candidate.facts.params_bytes as usize {
        let (wanted, given) = (candidate.facts.params_bytes, range.arguments.len());
        return Err(LaunchError::Arguments { candidate: range.candidate, wanted, given });
    }
    let blocks: u64 = range.grid.iter().map(|g| u64::from(*g)).product();
    let last = u64::from(range.first) + u64::from(range.blocks);
    let end = begin.checked_add(range.blocks).filter(|_| last <= blocks && range.blocks > 0);
    end.ok_or(LaunchError::Blocks { first: range.first, end: last, blocks })
}

/// The arguments of a range, with its virtual parameters filled in.
fn arguments(module: &DkpFacts, range: &Range, base: u32) -> Vec<u8> {
    let candidate = &module.candidates[range.candidate];
    let mut bytes = range.arguments.clone();
    let at = |param: u32| (candidate.facts.virtual_offset + param) as usize;
    put(&mut bytes, at(virtual_params::BLOCK_BASE), base);
    for axis in 0..3 {
        put(&mut bytes, at(virtual_params::GRID) + 4 * axis, range.grid[axis]);
        if candidate.facts.takes_block {
            put(&mut bytes, at(virtual_params::BLOCK) + 4 * axis, candidate.block[axis]);
        }
    }
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
