//! Launches that several kernels share (design D6): what a compiler tells of a dkp module, and how
//! a launch of one is laid out.
//!
//! The parameter of a dkp kernel is a table of [`SLOTS`] slots, then the arguments of each. A slot
//! says where its blocks end, which candidate runs in them and where that one's arguments lie.

use crate::virtual_params;

/// Candidates that run side by side in one launch: a real-time kernel and up to three that pad it.
pub const SLOTS: usize = 4;

/// Bytes of a slot: end, candidate, offset of the arguments, nothing.
pub const SLOT_BYTES: usize = 16;

/// Alignment of the parameter and of each slot's arguments, enough for every type.
pub const ARGUMENTS_ALIGN: usize = 16;

/// A kernel that may share launches, as passes left it: with virtual thread and block numbers, its
/// body a device function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateFacts {
    /// The device function that is its body.
    pub body: String,
    /// Bytes of its arguments, appended ones included.
    pub params_bytes: u32,
    /// Byte offset of [`virtual_params`] in them; what is in front are the kernel's own.
    pub virtual_offset: u32,
    /// Whether the block shape is among them.
    pub takes_block: bool,
    /// Dynamic shared memory that its own arrays became, in bytes.
    pub shared_bytes: u32,
}

/// A dkp module: one entry that runs any of its candidates side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpFacts {
    /// The entry's name.
    pub entry: String,
    /// Threads that a block of a launch can have, multiples of 32, ascending. A launch has the
    /// fewest that its candidates can do with.
    pub threads: Vec<u32>,
    /// Bytes of the parameter.
    pub params_bytes: u32,
    /// The candidates, as slots name them.
    pub candidates: Vec<DkpCandidate>,
}

/// A candidate in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpCandidate {
    /// Its index in the set the module was made from.
    pub index: usize,
    /// The kernel's name in its own module.
    pub kernel: String,
    /// Its block shape.
    pub block: [u32; 3],
    /// Dynamic shared memory that a launch with it must give, in bytes: what passes made dynamic,
    /// and what its launches give beyond that.
    pub shared_bytes: u32,
    /// What passes left of it.
    pub facts: CandidateFacts,
}

/// One kernel's part of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Which candidate of the module.
    pub candidate: usize,
    /// The kernel's own arguments, laid out as a launch of it alone has them; what passes appended
    /// for virtual numbers is filled in here.
    pub arguments: Vec<u8>,
    /// The kernel's grid.
    pub grid: [u32; 3],
    /// The first of its blocks that runs in this launch, linear.
    pub first: u32,
    /// How many of its blocks run.
    pub blocks: u32,
}

/// Why ranges make no launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// More ranges than slots, or none.
    #[error("{0} kernels in one launch; it takes 1 to 4")]
    Ranges(usize),
    /// A candidate that is not there.
    #[error("the module has no candidate {0}")]
    Candidate(usize),
    /// Blocks that the kernel does not have, or more than a launch can have.
    #[error("blocks {first} to {end} of a kernel with {blocks}")]
    Blocks {
        /// First block.
        first: u32,
        /// One past the last.
        end: u64,
        /// Blocks of its grid.
        blocks: u64,
    },
    /// The arguments are not as long as the kernel's parameters.
    #[error("{given} bytes of arguments for candidate {candidate}, which takes {wanted}")]
    Arguments {
        /// Which candidate.
        candidate: usize,
        /// What it takes.
        wanted: u32,
        /// What there is.
        given: usize,
    },
    /// A block that no launch of the module has room for.
    #[error("blocks of {0} threads are more than launches of the module have")]
    Threads(u32),
    /// The arguments together do not fit.
    #[error("the kernels' arguments take {wanted} bytes, a launch has room for {room}")]
    Room {
        /// What they take with their slots.
        wanted: usize,
        /// Bytes of the parameter.
        room: u32,
    },
}

/// A launch: bytes of its parameter block, and its blocks in x.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkpLaunch {
    /// The parameter block.
    pub params: Vec<u8>,
    /// Byte offset of each range's arguments in the block, where addresses can be filled in.
    pub arguments_at: Vec<usize>,
    /// Blocks of the launch, in x alone.
    pub blocks: u32,
    /// Index of the size of a block in [`DkpFacts::threads`].
    pub size: usize,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

/// Lays out a launch of some ranges, one after the other. The first range has the lowest block
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
        // Wraps where the range starts behind the launch's own blocks; the kernel subtracts it just so.
        params.extend(arguments(module, range, begin.wrapping_sub(range.first)));
        for (word, value) in [end, range.candidate as u32, at as u32].into_iter().enumerate() {
            put(&mut params, slot * SLOT_BYTES + 4 * word, value);
        }
        arguments_at.push(at);
        begin = end;
    }
    // Slots behind the last one are never reached: their predecessors end where the launch does.
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

/// One past the last block of the launch that belongs to a range.
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

/// The arguments of a range with its virtual launch filled in.
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
