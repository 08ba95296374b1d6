//! Limits of the parser and of the analyses, each with its reason. PTX is untrusted input.

/// Largest module, 64 MiB. The largest modules in practice have a few megabytes, and the tree takes
/// up to about twenty bytes per byte of text.
pub const MAX_SOURCE_BYTES: usize = 64 << 20;

/// Deepest nesting of blocks, initializers, operands or constant expressions. Each level takes a
/// few stack frames; compilers nest three or four levels.
pub const MAX_NESTING: u32 = 64;

/// Maximum number of syntax errors reported for one text: a binary file mistaken for PTX would give
/// millions.
pub const MAX_SYNTAX_ERRORS: usize = 50;

/// Maximum number of faults that the verifier reports for one module.
pub const MAX_FAULTS: usize = 200;

/// Maximum number of pairs of a basic block and a register that is live at its start. At 4 bytes
/// each they take 256 MiB; large kernels have a few hundred thousand.
pub const MAX_LIVE_PAIRS: usize = 1 << 26;

/// Maximum shared memory of a function, 227 KiB: the maximum per block on sm_90 and sm_100.
pub const MAX_SHARED_BYTES: u64 = 227 << 10;

/// Maximum local memory of a thread, 512 KiB: the limit of every compute capability.
pub const MAX_LOCAL_BYTES: u64 = 512 << 10;

/// Maximum size of parameters in bytes: 32,764, the limit since PTX 8.1 (4,352 before).
pub const MAX_PARAMETER_BYTES: u64 = 32_764;

/// Maximum constant memory, ten banks of 64 KiB.
pub const MAX_CONST_BYTES: u64 = 640 << 10;

/// Largest global variable, 1 TiB: more than the memory of any device.
pub const MAX_GLOBAL_BYTES: u64 = 1 << 40;

/// Maximum number of digits of a register number in a range such as `%r<100>`: a count has 32 bits.
/// Without this limit, a name of a million digits would be split in a million places.
pub const MAX_NUMBER_DIGITS: usize = 10;
