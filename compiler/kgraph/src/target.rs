//! What one target adds to the graph: code, launch shapes, arguments, facts.

use crate::expr::{Expr, SymbolId};
use crate::graph::{BufferId, DType, zero};
use serde::{Deserialize, Serialize};

/// The preemption parameters that the compiler appends to a kernel (design D5), in this order and
/// with natural alignment: epoch word (u64 address), evicted word (u64 address), progress bytes of
/// this launch (u64 address), issued epoch (u32). The value is what stands in the kernel's
/// parameter list; offsets are from the start of the appended block.
pub mod preempt_params {
    /// Byte offset of the address of the task's epoch word (u32 in memory).
    pub const EPOCH_WORD: u32 = 0;
    /// Byte offset of the address of the launch's evicted word (u32 in memory, set to 1 by a block
    /// that left).
    pub const EVICTED_WORD: u32 = 8;
    /// Byte offset of the address of the launch's progress bytes: one per block, linear index, 1
    /// once the block has finished.
    pub const PROGRESS: u32 = 16;
    /// Byte offset of the epoch this launch was issued under (u32 value).
    pub const ISSUED_EPOCH: u32 = 24;
    /// Bytes from the start of the block to the end of its last parameter.
    pub const BYTES: u32 = 28;
}

/// The parameters that the compiler appends to a kernel with virtual thread and block numbers
/// (design D6), in this order, all u32 values: the block of the real launch that is the kernel's
/// block 0, the kernel's own grid, and its own block shape unless that was compiled in. Offsets are
/// from the start of the appended block.
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

/// The fence parameters that the compiler appends to a kernel of a tenant that is not trusted
/// (design D9), with natural alignment: start and mask of the tenant's region, start and mask of
/// the shared constants (a region's size is a power of two, its mask that size less one, its start
/// a multiple of the size), and the dynamic shared memory that the kernel itself asked for. Offsets
/// are from the start of the appended block.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetImage {
    /// `host-x86-64-v3`, `host-x86-64-v4`, `nvidia-sm_75`, `amd-gfx90a`.
    pub name: String,
    /// Kernels; [`KernelId`] indexes them.
    pub kernels: Vec<KernelFacts>,
    /// One entry per graph node. A kernel node has one; a copy or fill has one where a kernel does
    /// it, and `None` where the host does.
    pub launches: Vec<Option<LaunchSpec>>,
    /// Digest of the kernels' PTX from before the passes, which is in the bundle once for all
    /// targets that have the same ([`crate::Bundle::source`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Constants that this target has in another form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packed: Vec<PackedConstant>,
}

/// A constant rearranged for a CPU level or a GPU: kernels of this target are given these bytes
/// instead of those of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedConstant {
    /// The constant.
    pub buffer: BufferId,
    /// Name of the arrangement, for people and for caches.
    pub layout: String,
    /// Offset in the weights, in bytes, a multiple of [`crate::BUFFER_ALIGN`].
    pub weights_offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Compute capabilities of NVIDIA GPUs with the names of their target images, ascending: from
/// Turing on; older ones no current assembler knows.
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

/// The target images that a GPU of a compute capability runs, best first: its own, and those of
/// older ones by their PTX.
pub fn nvidia_targets(capability: u32) -> Vec<String> {
    NVIDIA_TARGETS.iter().rev().filter(|(of, _)| *of <= capability).map(|(_, name)| (*name).to_owned()).collect()
}

/// Index of a kernel in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(pub u32);

/// What is known about one compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFacts {
    /// Entry point in PTX, and symbol in native code.
    pub name: String,
    /// Block shape the kernel was compiled for.
    pub block: [u32; 3],
    /// Size of the parameter block in bytes, appended parameters included.
    pub params_bytes: u32,
    /// Byte offset of the appended [`preempt_params`] in the parameter block; `None` for a kernel
    /// that must not be cut.
    pub preempt_offset: Option<u32>,
    /// Blocks that leave write neither the evicted word nor do others write progress bytes, as in
    /// kernels that were made preemptible elsewhere (REEF's): what ran of a launch that was told to
    /// leave nobody knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_silently: bool,
    /// Dynamic shared memory that the launch must give, in bytes.
    pub shared_bytes: u32,
    /// Bytes of scratch memory one compute unit needs to run a block (host targets: values that
    /// live across barriers, local memory).
    #[serde(default)]
    pub scratch_bytes: u32,
    /// Registers per thread, on targets where they are shared out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Whether the registers are estimated from what lives in the PTX; otherwise an assembler
    /// counted them.
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
    /// Why the kernel cannot share a launch with others (design D6); `None` where it can, or where
    /// nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_padded: Option<String>,
    /// What an AMD code object says of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amd: Option<AmdFacts>,
}

/// What an AMD code object says of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdFacts {
    /// Vector registers per lane.
    pub vgprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Accumulation registers per lane, on architectures that have them.
    pub agprs: u32,
    /// Lanes of a wave: 32 or 64.
    pub wave_lanes: u32,
    /// Scratch memory per lane in bytes.
    pub private_bytes: u32,
}

impl KernelFacts {
    /// Whether its launches say what of them ran, by an evicted word and a progress map.
    pub fn keeps_progress(&self) -> bool {
        self.preempt_offset.is_some() && !self.leaves_silently
    }
}

/// How a node is launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// Which kernel.
    pub kernel: KernelId,
    /// Blocks in x, y, z. A zero in any dimension means that nothing is launched.
    pub grid: [Expr; 3],
    /// Arguments in the order of the kernel's own parameters, the appended preemption parameters
    /// not included.
    pub args: Vec<Argument>,
    /// Launches that are better for some values of the symbols. The first that matches is taken;
    /// where none does, this one is, so that every value has a launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<LaunchVariant>,
}

/// A launch for some values of the symbols.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchVariant {
    /// What the symbols have to be; at least one range, each of another symbol.
    pub ranges: Vec<SymbolRange>,
    /// The launch. It has no variants of its own.
    pub launch: LaunchSpec,
}

/// Values of a symbol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolRange {
    /// The symbol.
    pub symbol: SymbolId,
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
}

impl LaunchSpec {
    /// A launch for all values of the symbols.
    pub fn new(kernel: KernelId, grid: [Expr; 3], args: Vec<Argument>) -> LaunchSpec {
        LaunchSpec { kernel, grid, args, variants: Vec::new() }
    }

    /// The launch for these values of the symbols: a variant by its index, or this one.
    pub fn choose(&self, symbols: &[i64]) -> (Option<usize>, &LaunchSpec) {
        let matches = |range: &SymbolRange| {
            symbols.get(range.symbol.0 as usize).is_some_and(|value| (range.min..=range.max).contains(value))
        };
        let index = self.variants.iter().position(|variant| variant.ranges.iter().all(matches));
        (index, self.variant(index))
    }

    /// The launch that [`LaunchSpec::choose`] told by its index.
    pub fn variant(&self, index: Option<usize>) -> &LaunchSpec {
        index.and_then(|index| self.variants.get(index)).map_or(self, |variant| &variant.launch)
    }

    /// This launch and its variants.
    pub fn all(&self) -> impl Iterator<Item = &LaunchSpec> {
        std::iter::once(self).chain(self.variants.iter().map(|variant| &variant.launch))
    }
}

/// One argument of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
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
    /// Address of the word in which the kernel notes that a check is violated ([`crate::Check`]); a
    /// u64 parameter. The kernel stores to it and never reads it.
    Check {
        /// Index of the check.
        check: u32,
    },
    /// A structure by value.
    Bytes {
        /// Its alignment in bytes: 1, 2, 4, 8 or 16.
        align: u32,
        /// Its bytes, in hexadecimal.
        #[serde(with = "crate::hexadecimal")]
        bytes: Vec<u8>,
        /// Addresses in it, ascending, that are known once memory is.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        relocations: Vec<Relocation>,
    },
}

/// Eight bytes of a structure that become the address of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relocation {
    /// Offset in the structure in bytes, such that the address is aligned to 8 in the parameter
    /// block.
    pub at: u32,
    /// The buffer.
    pub buffer: BufferId,
    /// Offset in the buffer in bytes.
    #[serde(default = "zero")]
    pub offset: Expr,
}

impl Argument {
    /// Size in bytes of the parameter.
    pub fn bytes(&self) -> u32 {
        match self {
            Argument::Buffer { .. } | Argument::Check { .. } | Argument::F64 { .. } => 8,
            Argument::Int { dtype, .. } => dtype.bytes() as u32,
            Argument::F32 { .. } => 4,
            Argument::Bytes { bytes, .. } => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Alignment in bytes of the parameter.
    pub fn align(&self) -> u32 {
        match self {
            Argument::Bytes { align, .. } => *align,
            _ => self.bytes(),
        }
    }
}
