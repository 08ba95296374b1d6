//! Bounds of the parser and of the analyses, each with its reason. PTX may come from anybody.

/// Longest text taken, 64 MiB: the largest modules in the wild have a few megabytes, and the tree
/// costs up to some twenty bytes per byte.
pub const MAX_SOURCE_BYTES: usize = 64 << 20;

/// Deepest nesting of blocks, initializers, operands or constant expressions: each level is a few
/// stack frames, and compilers nest three or four deep.
pub const MAX_NESTING: u32 = 64;

/// Most errors reported for one text: nobody reads more, and a binary file taken for PTX would give
/// millions.
pub const MAX_SYNTAX_ERRORS: usize = 50;

/// Most faults the verifier reports for one module, for the same reason.
pub const MAX_FAULTS: usize = 200;

/// Largest product of basic blocks and registers that are live across them, 2³⁰: four such sets are
/// half a gigabyte, and the largest kernels in the wild need a few million bits.
pub const MAX_LIVENESS_BITS: usize = 1 << 30;

/// Most shared memory of a function, 227 KiB: what one block can have on the largest devices (sm_90
/// and sm_100).
pub const MAX_SHARED_BYTES: u64 = 227 << 10;

/// Most local memory of a thread, 512 KiB: the bound of every compute capability.
pub const MAX_LOCAL_BYTES: u64 = 512 << 10;

/// Most bytes of parameters, 32,764: the bound since PTX 8.1; before it was 4,352.
pub const MAX_PARAMETER_BYTES: u64 = 32_764;

/// Most constant memory, ten banks of 64 KiB.
pub const MAX_CONST_BYTES: u64 = 640 << 10;

/// Most bytes of one global variable, 1 TiB: more than any device has.
pub const MAX_GLOBAL_BYTES: u64 = 1 << 40;

/// Most digits of the number in `%r<100>`'s registers: a count has 32 bits. Without it a name of a
/// million digits would be cut in a million places.
pub const MAX_NUMBER_DIGITS: usize = 10;
