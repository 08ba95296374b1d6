//! All limits of the format. Data beyond a limit is rejected when a bundle or profile is read, and
//! when a bundle is written.

/// Maximum number of nodes of a graph: thirty times the largest known (swin, 6,600 nodes).
pub const NODES_MAX: usize = 200_000;
/// Maximum number of buffers of a graph.
pub const BUFFERS_MAX: usize = 1_000_000;
/// Maximum number of symbols: models name a handful.
pub const SYMBOLS_MAX: usize = 256;
/// Maximum number of conditions on sizes: each node may have a few.
pub const CONDITIONS_MAX: usize = 1_000_000;
/// Maximum number of dimensions of a tensor.
pub const RANK_MAX: usize = 16;
/// Largest block of any device.
pub const BLOCK_THREADS_MAX: u64 = 1024;
/// Largest parameter block of a kernel in bytes, including everything that passes append: the limit
/// of a launch, and allowed in every PTX version.
pub const PARAMS_BYTES_MAX: u32 = 4096;
/// Maximum number of variants of one launch: a few ranges for each of a few symbols.
pub const VARIANTS_MAX: usize = 64;
/// Deepest nesting of `if` and `loop` segments: exported models nest two or three.
pub const SEGMENT_DEPTH_MAX: usize = 16;
/// Maximum number of iterations of a loop segment.
pub const TRIPS_MAX: u64 = 1 << 32;
/// Maximum number of checks of a graph. Each has a word that is zeroed before an invocation and
/// read after it.
pub const CHECKS_MAX: usize = 65_536;
/// Longest text of a check, in bytes.
pub const CHECK_TEXT_BYTES_MAX: usize = 1024;
/// Longest name of a proof or of a packed layout, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum number of strings that a model names: vocabularies have some hundred thousand.
pub const STRING_TABLE_MAX: usize = 1 << 20;
/// Bytes of all strings that a model names. They are part of `graph.json`, which is limited, too.
pub const STRING_TABLE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of operators on strings that the host computes: models have a few. Each may have
/// regular expressions, which take up to 256 KiB each.
pub const STRING_STEPS_MAX: usize = 64;
/// Bytes of strings that the operators of one invocation may read and write, counted each time, with
/// [`STRING_ELEMENT_WORK`] more for each element: about a second of a thread.
pub const INVOCATION_STRING_WORK_MAX: usize = 256 << 20;
/// Bytes that an element counts for in addition to those of its string: finding the string or its
/// code takes longer than copying a byte.
pub const STRING_ELEMENT_WORK: usize = 16;
/// Bytes of strings that regular expressions may read in one invocation, counted each time. A
/// hostile expression takes some microseconds for a byte.
pub const INVOCATION_MATCHED_BYTES_MAX: usize = 1 << 20;
/// Longest string that expressions cut into tokens, in bytes: an expression may read the rest of the
/// string again for each token.
pub const TOKENIZED_BYTES_MAX: usize = 16 << 10;
/// Maximum number of expressions that separate tokens of one operator.
pub const STRING_SEPARATORS_MAX: usize = 8;
/// Maximum number of elements of a result on strings, and of different strings of an invocation:
/// their codes take 64 MiB.
pub const INVOCATION_STRINGS_MAX: usize = 1 << 24;
/// Bytes of all different strings of an invocation, and of the strings of one output: four times
/// the input of a large text model. The thread that answers copies them.
pub const INVOCATION_STRING_BYTES_MAX: usize = 64 << 20;

/// Longest name of a kernel, in bytes: mangled names of C++ templates are long.
pub const KERNEL_NAME_BYTES_MAX: usize = 16 << 10;

/// Largest `graph.json`, `target.json` or manifest. The largest seen (DenseNet-201 with five
/// targets) is below 8 MiB.
pub const JSON_BYTES_MAX: usize = 64 << 20;
/// Deepest nesting of arrays and objects in JSON members: a size expression takes two levels per
/// operation, and has a few dozen operations.
pub const JSON_DEPTH_MAX: usize = 512;
/// Maximum number of members of a bundle: three for the graph and four per target, for about a
/// hundred targets.
pub const MEMBERS_MAX: usize = 512;
/// Largest directory of a bundle in bytes: 2 KiB for the names and offsets of each member. Atoll's own
/// take a tenth of it.
pub const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// Largest header of the weights in bytes. It names one tensor.
pub const WEIGHTS_HEADER_BYTES_MAX: u64 = 64 << 10;
/// Largest PTX text before the passes, uncompressed. The largest seen (DenseNet-201 for NVIDIA) is
/// 30 MiB.
pub const SOURCE_BYTES_MAX: u64 = 256 << 20;
/// Maximum size in bytes of code and facts of all targets that are recompiled for a bundle. Native
/// code of the largest model seen (DenseNet-201) is below 16 MiB.
pub const CODE_BYTES_MAX: u64 = 256 << 20;

/// Largest profile in bytes: a model of ten thousand launches takes a few MiB.
pub const PROFILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of sets of shapes of a profile.
pub const PROFILE_SHAPES_MAX: usize = 64;
/// Maximum number of load points of a profile: a few shapes, each with several lane sizes and
/// quotas.
pub const PROFILE_POINTS_MAX: usize = 4096;
/// Maximum number of blocks of a launch on one compute unit at a time.
pub const WAVES_MAX: usize = 64;
/// Times from one hour on are rejected as measuring errors.
pub const NS_MAX: u64 = 3_600_000_000_000;
