//! Bounds of the parser and of the analyses, each with its reason. PTX may come from anybody.

/// Longest text taken, 64 MiB: the largest modules in the wild have a few megabytes, and the tree costs up to some twenty bytes per byte.
pub const MAX_SOURCE_BYTES: usize = 64 << 20;

/// Deepest nesting of blocks, initializers, operands or constant expressions: each level is a few stack frames, and compilers nest three or four deep.
pub const MAX_NESTING: u32 = 64;

/// Most errors reported for one text: nobody reads more, and a binary file taken for PTX would give millions.
pub const MAX_SYNTAX_ERRORS: usize = 50;

/// Most faults the verifier reports for one module, for the same reason.
pub const MAX_FAULTS: usize = 200;
