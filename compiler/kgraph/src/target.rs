//! What one target adds to the graph: code, launch shapes, arguments, facts.

use crate::expr::Expr;
use crate::graph::{BufferId, DType};
use serde::{Deserialize, Serialize};

/// The preemption parameters that the compiler appends to a kernel (design D5), in this order and with natural alignment:
/// epoch word (u64 address), evicted word (u64 address), progress bytes of this launch (u64 address), issued epoch (u32). The value is what stands in
/// the kernel's parameter list; offsets are from the start of the appended block.
pub mod preempt_params {
    /// Byte offset of the address of the task's epoch word (u32 in memory).
    pub const EPOCH_WORD: u32 = 0;
    /// Byte offset of the address of the launch's evicted word (u32 in memory, set to 1 by a block that left).
    pub const EVICTED_WORD: u32 = 8;
    /// Byte offset of the address of the launch's progress bytes: one per block, linear index, 1 once the block has finished.
    pub const PROGRESS: u32 = 16;
    /// Byte offset of the epoch this launch was issued under (u32 value).
    pub const ISSUED_EPOCH: u32 = 24;
    /// Bytes from the start of the block to the end of its last parameter.
    pub const BYTES: u32 = 28;
}

/// The parameters that the compiler appends to a kernel with virtual thread and block numbers (design D6), in this order, all u32 values: the block of the real
/// launch that is the kernel's block 0, the kernel's own grid, and its own block shape unless that was compiled in. Offsets are from the start of the appended block.
pub mod virtual_params {
    /// Byte offset of the linear number of the first real block that belongs to the kernel.
    pub const BLOCK_BASE: u32 = 0;
    /// Byte offset of the kernel's grid in x; y and z follow.
    pub const GRID: u32 = 4;
    /// Byte offset of the kernel's block shape in x; y and z follow.
    pub const BLOCK: u32 = 16;
    /// Bytes of the whole where the block shape was compiled in.
    pub const BYTES_WITHOUT_BLOCK: u32 = BLOCK;
    /// Bytes of the whole with the block shape.
    pub const BYTES: u32 = 28;
}

/// The fence parameters that the compiler appends to a kernel of a tenant that is not trusted (design D9), with natural alignment: start and mask of the tenant's region,
/// start and mask of the shared constants (a region's size is a power of two, its mask that size less one, its start a multiple of the size), and the
/// dynamic shared memory that the kernel itself asked for. Offsets are from the start of the appended block.
pub mod fence_params {
    /// Byte offset of the region's start (u64 address).
    pub const BASE: u32 = 0;
    /// Byte offset of the region's mask (u64).
    pub const MASK: u32 = 8;
    /// Byte offset of the constants' start (u64 address).
    pub const CONSTANTS_BASE: u32 = 16;
    /// Byte offset of the constants' mask (u64).
    pub const CONSTANTS_MASK: u32 = 24;
    /// Byte offset of the bytes of the kernel's own dynamic shared array (u32).
    pub const DYNAMIC_SHARED: u32 = 32;
    /// Bytes from the start of the block to the end of its last parameter.
    pub const BYTES: u32 = 36;
}

/// Code and launch facts of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetImage {
    /// `host-x86-64-v3`, `host-x86-64-v4`, `nvidia-sm_75`, `amd-gfx90a`.
    pub name: String,
    /// Kernels; [`KernelId`] indexes them.
    pub kernels: Vec<KernelFacts>,
    /// One entry per graph node; `None` where the node is no kernel.
    pub launches: Vec<Option<LaunchSpec>>,
}

/// Compute capabilities of NVIDIA GPUs with the names of their target images, ascending: from Turing on; older ones no current assembler knows.
pub const NVIDIA_TARGETS: [(u32, &str); 12] = [
    (75, "nvidia-sm_75"),
    (80, "nvidia-sm_80"),
    (86, "nvidia-sm_86"),
    (87, "nvidia-sm_87"),
    (88, "nvidia-sm_88"),
    (89, "nvidia-sm_89"),
    (90, "nvidia-sm_90"),
    (100, "nvidia-sm_100"),
    (103, "nvidia-sm_103"),
    (110, "nvidia-sm_110"),
    (120, "nvidia-sm_120"),
    (121, "nvidia-sm_121"),
];

/// The target images that a GPU of a compute capability runs, best first: its own, and those of older ones by their PTX.
pub fn nvidia_targets(capability: u32) -> Vec<String> {
    NVIDIA_TARGETS.iter().rev().filter(|(of, _)| *of <= capability).map(|(_, name)| (*name).to_owned()).collect()
}

/// Index of a kernel in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(pub u32);

/// What is known about one compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Entry point in PTX, and symbol in native code.
    pub name: String,
    /// Block shape the kernel was compiled for.
    pub block: [u32; 3],
    /// Size of the parameter block in bytes, appended parameters included.
    pub params_bytes: u32,
    /// Byte offset of the appended [`preempt_params`] in the parameter block; `None` for a kernel that must not be cut.
    pub preempt_offset: Option<u32>,
    /// Blocks that leave write neither the evicted word nor do others write progress bytes, as in kernels that were made preemptible elsewhere (REEF's): what ran of a launch that was told to leave
    /// nobody knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_silently: bool,
    /// Dynamic shared memory that the launch must give, in bytes.
    pub shared_bytes: u32,
    /// Bytes of scratch memory one compute unit needs to run a block (host targets: values that live across barriers, local memory).
    #[serde(default)]
    pub scratch_bytes: u32,
    /// Registers per thread, on targets where they are shared out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Whether the registers are estimated from what lives in the PTX; otherwise an assembler counted them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registers_estimated: bool,
    /// Bytes spilled, where an assembler reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_bytes: Option<u32>,
    /// Whether a block may be run again after it was stopped midway; absent where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<crate::rerun::RerunFact>,
    /// Loops in which a running block looks at the epoch word.
    #[serde(default)]
    pub loop_checks: u32,
    /// Why the kernel cannot share a launch with others (design D6); `None` where it can, or where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_padded: Option<String>,
}

impl KernelFacts {
    /// Whether its launches say what of them ran, by an evicted word and a progress map.
    pub fn keeps_progress(&self) -> bool {
        self.preempt_offset.is_some() && !self.leaves_silently
    }
}

/// How a node is launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Which kernel.
    pub kernel: KernelId,
    /// Blocks in x, y, z. A zero in any dimension means that nothing is launched.
    pub grid: [Expr; 3],
    /// Arguments in the order of the kernel's own parameters, the appended preemption parameters not included.
    pub args: Vec<Argument>,
}

/// One argument of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// Address of a buffer plus an offset in bytes; a u64 parameter.
    Buffer {
        /// The buffer.
        buffer: BufferId,
        /// Offset in bytes.
        #[serde(default = "zero")]
        offset: Expr,
    },
    /// An integer literal over symbols, stored as `dtype` (U32, I32, U64 or I64).
    Int {
        /// Parameter type.
        dtype: DType,
        /// Its value.
        value: Expr,
    },
    /// A 32-bit float literal by its bits, so that the text is exact.
    F32 {
        /// IEEE bits.
        bits: u32,
    },
    /// The same for 64 bits.
    F64 {
        /// IEEE bits.
        bits: u64,
    },
}

fn zero() -> Expr {
    Expr::Const(0)
}

impl Argument {
    /// Size and alignment in bytes of the parameter.
    pub fn bytes(&self) -> u32 {
        match self {
            Argument::Buffer { .. } | Argument::F64 { .. } => 8,
            Argument::Int { dtype, .. } => dtype.bytes() as u32,
            Argument::F32 { .. } => 4,
        }
    }
}
