//! Every bound of the format in one place. What exceeds one is refused when a bundle or a profile
//! is read, and when it is written.

/// Most nodes of a graph: thirty times the largest known (swin, 6,600 nodes).
pub const NODES_MAX: usize = 200_000;
/// Most buffers of a graph.
pub const BUFFERS_MAX: usize = 1_000_000;
/// Most symbols: models name a handful.
pub const SYMBOLS_MAX: usize = 256;
/// Most conditions on sizes: each node may have a few.
pub const CONDITIONS_MAX: usize = 1_000_000;
/// Most dimensions of a tensor.
pub const RANK_MAX: usize = 16;
/// Largest block of any device.
pub const BLOCK_THREADS_MAX: u64 = 1024;
/// Largest parameter block of a kernel in bytes, all that passes append included: what a launch can
/// carry, and what every PTX version allows.
pub const PARAMS_BYTES_MAX: u32 = 4096;
/// Most launches of one node to choose from: a handful of ranges for each of a few symbols.
pub const VARIANTS_MAX: usize = 64;
/// Deepest nesting of `if` and `loop` segments: exported models nest two or three.
pub const SEGMENT_DEPTH_MAX: usize = 16;
/// Most iterations of a loop segment.
pub const TRIPS_MAX: u64 = 1 << 32;
/// Most checks of a graph: a word of each is zeroed before an invocation and read behind it.
pub const CHECKS_MAX: usize = 65_536;
/// Longest text of a check in bytes, and most numbers in it.
pub const CHECK_TEXT_BYTES_MAX: usize = 1024;
/// Longest name of a proof or of a layout of packed constants, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Bytes in the name of a kernel: names of C++ templates are long.
pub const KERNEL_NAME_BYTES_MAX: usize = 16 << 10;

/// Largest `graph.json`, `target.json` or manifest that is read: the largest seen (DenseNet-201
/// with five targets) is below 8 MiB.
pub const JSON_BYTES_MAX: usize = 64 << 20;
/// Deepest nesting of arrays and objects in them: two levels for each step in which a size is
/// computed, of which there are a few dozen.
pub const JSON_DEPTH_MAX: usize = 512;
/// Most members of a bundle: four per target and three of the bundle's own, with room for a hundred
/// targets.
pub const MEMBERS_MAX: usize = 512;
/// Largest text of kernels from before the passes, uncompressed: the largest seen (DenseNet-201 for
/// NVIDIA) is 30 MiB.
pub const SOURCE_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a profile that are read: a model of some ten thousand launches takes a few MiB.
pub const PROFILE_BYTES_MAX: u64 = 64 << 20;
/// Most sets of shapes of a profile.
pub const PROFILE_SHAPES_MAX: usize = 64;
/// Most points of a profile: a few shapes, each with some shares of the device and some quotas.
pub const PROFILE_POINTS_MAX: usize = 4096;
/// Blocks on one compute unit at a time.
pub const WAVES_MAX: usize = 64;
/// A time of an hour or more is none.
pub const NS_MAX: u64 = 3_600_000_000_000;
