//! What the pass did to a kernel, and why it left one unchanged.

use crate::surplus_lanes;

/// What the pass did to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Virtualization {
    /// The pass did not run.
    NotAsked,
    /// Its indices are virtual.
    Virtual(VirtualLaunch),
    /// It is unchanged.
    Refused(NotVirtualized),
}

/// Requirements of a kernel with virtual indices on its launch. The real block has at least as many
/// threads as the virtual one, rounded up to whole warps, and the virtual grid has fewer than 2³²
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualLaunch {
    /// Byte offset of the appended [`atoll_kgraph::virtual_params`].
    pub offset: u32,
    /// The block shape that was compiled in; if `None`, it is passed as parameters.
    pub block: Option<[u32; 3]>,
    /// Whether the threads of a virtual block must be a multiple of 32: the kernel has barriers and
    /// its block shape was unknown.
    pub needs_full_warps: bool,
    /// Whether surplus lanes of the last warp stay and take part in barriers.
    pub surplus_lanes_stay: bool,
}

/// Why a kernel keeps its real indices. Lines are those of the source; 0 for statements built by a
/// pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotVirtualized {
    /// A property of the whole launch.
    #[error("line {line}: `{what}` belongs to the launch as a whole and has no virtual value")]
    LaunchWide {
        /// The instruction or special register.
        what: String,
        /// The line.
        line: u32,
    },
    /// The kernel is declared to run in clusters.
    #[error("the kernel is declared `.{directive}`: clusters belong to the launch as a whole")]
    ClusterDirective {
        /// The directive.
        directive: String,
    },
    /// A special register is read as a vector.
    #[error("line {line}: `{what}` is read as a vector; read its components instead")]
    WholeVector {
        /// The special register.
        what: String,
        /// The line.
        line: u32,
    },
    /// A callee whose body is unknown.
    #[error("line {line}: the callee `{callee}` has no body in this module")]
    UnknownCallee {
        /// The function, or the register that holds it.
        callee: String,
        /// The line.
        line: u32,
    },
    /// A device function that reads the indices but cannot get additional parameters.
    #[error(
        "the device function `{function}` reads thread or block indices, and indirect calls cannot pass virtual ones"
    )]
    FixedSignature {
        /// The function.
        function: String,
    },
    /// A barrier for a part of the threads whose count is unknown or not allowed.
    #[error("line {line}: the barrier's count is not a constant multiple of 32")]
    BarrierCount {
        /// The line.
        line: u32,
    },
    /// A barrier for more threads than a block has.
    #[error("line {line}: the barrier waits for {count} threads, and a block has {threads}")]
    BarrierBeyondBlock {
        /// Its thread count.
        count: u32,
        /// Threads of the block, rounded up to whole warps.
        threads: u32,
        /// The line.
        line: u32,
    },
    /// The last warp of a block is partial, and its surplus lanes cannot take part.
    #[error("blocks of {threads} threads leave surplus lanes in the last warp, and line {line}: {why}")]
    PartialWarp {
        /// Threads of a block.
        threads: u32,
        /// The obstacle.
        why: surplus_lanes::Obstacle,
        /// The line.
        line: u32,
    },
    /// The shape is not a valid block shape.
    #[error("{0:?} is not a valid block shape")]
    BlockShape([u32; 3]),
    /// The appended parameters exceed the limit.
    #[error("{bytes} bytes of parameters exceed the {limit} that `.version` and `.target` allow")]
    TooManyParameters {
        /// Size with the appended parameters.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}
