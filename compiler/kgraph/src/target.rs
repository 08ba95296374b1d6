//! The target-specific part of a compiled model: kernel facts, launch shapes and arguments.

use crate::expr::{Expr, SymbolId};
use crate::graph::{BufferId, DType, zero};
use serde::{Deserialize, Serialize};

/// The preemption parameters that the compiler appends to a kernel, in this order and naturally
/// aligned: epoch word (u64 address), evicted word (u64 address), progress bytes of this launch
/// (u64 address), issued epoch (u32 value). Offsets are from the start of the appended block.
pub mod preempt_params {
    /// Byte offset of the address of the task's epoch word (u32 in memory).
    pub const EPOCH_WORD: u32 = 0;
    /// Byte offset of the address of the launch's evicted word (u32 in memory, set to 1 by a block
    /// that exits early).
    pub const EVICTED_WORD: u32 = 8;
    /// Byte offset of the address of the launch's progress bytes: one per block, linear index, 1
    /// once the block has finished.
    pub const PROGRESS: u32 = 16;
    /// Byte offset of the epoch that this launch was issued under (u32 value).
    pub const ISSUED_EPOCH: u32 = 24;
    /// Bytes from the start of the block to the end of its last parameter.
    pub const BYTES: u32 = 28;
}

/// The parameters that the compiler appends to a kernel with virtual thread and block numbers (a
/// candidate of a dkp kernel), in this order, all u32 values: the real block that is the kernel's
/// block 0, the kernel's own grid, and its own block shape unless that is compiled in. Offsets are
/// from the start of the appended block.
pub mod virtual_params {
    /// Byte offset of the linear number of the kernel's first block in the real launch.
    pub const BLOCK_BASE: u32 = 0;
    /// Byte offset of the kernel's grid in x; y and z follow.
    pub const GRID: u32 = 4;
    /// Byte offset of the kernel's block shape in x; y and z follow.
    pub const BLOCK: u32 = 16;
    /// Bytes of all parameters if the block shape is compiled in.
    pub const BYTES_WITHOUT_BLOCK: u32 = BLOCK;
    /// Bytes of all parameters including the block shape.
    pub const BYTES: u32 = 28;
}

/// The fence parameters that the compiler appends to a kernel of an untrusted tenant, naturally
/// aligned: start and mask of the tenant's region, start and mask of the shared constants, the
/// dynamic shared memory that the kernel itself requested, and in one form of the fence the address
/// of the launch's fault word. The size of a region is a power of two, and its mask is the size
/// minus one. Offsets are from the start of the appended block.
pub mod fence_params {
    /// Byte offset of the region's start (u64 address).
    pub const BASE: u32 = 0;
    /// Byte offset of the region's mask (u64).
    pub const MASK: u32 = 8;
    /// Byte offset of the constants' start (u64 address).
    pub const CONSTANTS_BASE: u32 = 16;
    /// Byte offset of the constants' mask (u64).
    pub const CONSTANTS_MASK: u32 = 24;
    /// Byte offset of the size in bytes of the kernel's own dynamic shared array (u32).
    pub const DYNAMIC_SHARED: u32 = 32;
    /// Bytes from the start of the block to the end of that parameter.
    pub const BYTES: u32 = 36;
    /// Byte offset of the address of the launch's fault word (u64 in memory), for kernels that report
    /// faults there. A thread that ends because of a fault sets it to one of [`super::fault_word`].
    pub const FAULT_WORD: u32 = 40;
    /// Bytes of all parameters of such kernels.
    pub const BYTES_WITH_FAULT_WORD: u32 = 48;
}

/// Values of a launch's fault word. It is 0 if no thread had a fault.
pub mod fault_word {
    /// Values below this one: an address in the tenant's region that is not a multiple of the size of
    /// the access.
    pub const MISALIGNED_END: u64 = 32;
    /// The kernel executed `trap`. A region has at least twice as many bytes, so no address outside
    /// of it gives this value.
    pub const TRAP: u64 = 1 << 16;
    /// An access outside the region, if the address is not known. Every other value means that as
    /// well.
    pub const OUTSIDE: u64 = 1 << 62;
}

/// Launches and kernel facts of one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetImage {
    /// Name of the target: `host-x86-64-v3`, `host-x86-64-v4`, `nvidia-sm_75`, `amd-gfx90a`.
    pub name: String,
    /// Kernels; [`KernelId`] indexes them.
    pub kernels: Vec<KernelFacts>,
    /// One entry per graph node. A kernel node has a launch. A copy or fill has a launch if a
    /// kernel does it, and `None` if the host does it.
    pub launches: Vec<Option<LaunchSpec>>,
    /// Digest of the kernels' PTX before the passes. The bundle stores the text once for all
    /// targets that share it ([`crate::Bundle::source`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Constants that this target uses in another layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packed: Vec<PackedConstant>,
}

/// A constant rearranged for a CPU level or a GPU. Kernels of this target get these bytes instead
/// of the graph's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedConstant {
    /// The constant.
    pub buffer: BufferId,
    /// Name of the layout, for inspection and caches.
    pub layout: String,
    /// Offset in the weights, in bytes, a multiple of [`crate::BUFFER_ALIGN`].
    pub weights_offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Compute capabilities of NVIDIA GPUs with the names of their target images, ascending. Turing
/// (7.5) is the oldest that current assemblers support.
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

/// The target images that a GPU of a compute capability can run, best first: its own, and those of
/// older capabilities by their PTX.
pub fn nvidia_targets(capability: u32) -> Vec<String> {
    NVIDIA_TARGETS.iter().rev().filter(|(of, _)| *of <= capability).map(|(_, name)| (*name).to_owned()).collect()
}

/// Architectures of AMD GPUs with the names of their target images. Code for an architecture runs
/// only on that architecture.
pub const AMD_TARGETS: [(&str, &str); 7] = [
    ("gfx906", "amd-gfx906"),
    ("gfx908", "amd-gfx908"),
    ("gfx90a", "amd-gfx90a"),
    ("gfx942", "amd-gfx942"),
    ("gfx1030", "amd-gfx1030"),
    ("gfx1100", "amd-gfx1100"),
    ("gfx1201", "amd-gfx1201"),
];

/// The target image for a GPU of this architecture. `None` if Atoll does not compile for it.
pub fn amd_target(architecture: &str) -> Option<&'static str> {
    AMD_TARGETS.iter().find(|(name, _)| *name == architecture).map(|(_, target)| *target)
}

/// Index of a kernel in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(pub u32);

/// Facts about one compiled kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFacts {
    /// Entry point in PTX, symbol in native code.
    pub name: String,
    /// Block shape the kernel was compiled for.
    pub block: [u32; 3],
    /// Size of the parameter block in bytes, including appended parameters.
    pub params_bytes: u32,
    /// Byte offset of the appended [`preempt_params`] in the parameter block; `None` for a kernel
    /// that is not preemptible.
    pub preempt_offset: Option<u32>,
    /// Facts about the fence of the kernel. `None` if its accesses are not bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceFacts>,
    /// True if blocks that exit early do not set the evicted word and finished blocks do not set
    /// progress bytes, as in kernels that another tool made preemptible (REEF's). After an eviction
    /// it is unknown which blocks of such a launch ran.
    #[serde(rename = "leaves_silently", default, skip_serializing_if = "std::ops::Not::not")]
    pub exits_unreported: bool,
    /// Dynamic shared memory that the launch must request, in bytes.
    pub shared_bytes: u32,
    /// Bytes of scratch memory that a compute unit needs to run a block (host targets: values that
    /// are live across barriers, and local memory).
    #[serde(default)]
    pub scratch_bytes: u32,
    /// Registers per thread, on targets where they limit occupancy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Whether `registers` is an estimate from the liveness of PTX registers instead of an
    /// assembler's count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registers_estimated: bool,
    /// Bytes spilled, if an assembler reported them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_bytes: Option<u32>,
    /// Whether a block may be run again after it was stopped midway; absent if not analysed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<crate::rerun::RerunFact>,
    /// Number of loops in which a running block checks the epoch word.
    #[serde(default)]
    pub loop_checks: u32,
    /// Why the kernel cannot share a launch with others (dynamic kernel padding); `None` if it can,
    /// or if it was not analysed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_padded: Option<String>,
    /// Resources of the kernel according to its AMD code object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amd: Option<AmdFacts>,
}

/// Facts about the fence of a kernel, which bounds its accesses to the memory of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceFacts {
    /// Byte offset of the appended [`fence_params`] in the parameter block. They precede the
    /// [`preempt_params`].
    pub offset: u32,
    /// Bytes of dynamic shared memory that the kernel itself uses: a part of
    /// [`KernelFacts::shared_bytes`].
    pub dynamic_shared_bytes: u32,
    /// Whether the kernel reports faults in the launch's fault word instead of trapping.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fault_word: bool,
}

impl FenceFacts {
    /// Byte offset of the end of the [`fence_params`] in the parameter block.
    pub fn end(&self) -> u32 {
        let bytes = if self.fault_word { fence_params::BYTES_WITH_FAULT_WORD } else { fence_params::BYTES };
        self.offset.saturating_add(bytes)
    }

    /// Byte offset of the address of the fault word in the parameter block.
    pub fn fault_word_offset(&self) -> Option<u32> {
        self.fault_word.then(|| self.offset.saturating_add(fence_params::FAULT_WORD))
    }
}

/// Resources of a kernel according to its AMD code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AmdFacts {
    /// Vector registers per lane.
    pub vgprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Accumulation registers per lane, on architectures with such registers.
    pub agprs: u32,
    /// Lanes of a wave: 32 or 64.
    pub wave_lanes: u32,
    /// Scratch memory per lane in bytes.
    pub private_bytes: u32,
}

impl KernelFacts {
    /// Whether its launches record which blocks ran, in an evicted word and a progress map.
    pub fn keeps_progress(&self) -> bool {
        self.preempt_offset.is_some() && !self.exits_unreported
    }
}

/// The launch of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// The kernel.
    pub kernel: KernelId,
    /// Blocks in x, y, z. If any is zero, nothing is launched.
    pub grid: [Expr; 3],
    /// Arguments in the order of the kernel's own parameters, without appended parameters.
    pub args: Vec<Argument>,
    /// Alternative launches for some values of the symbols. The first that matches is used; if none
    /// matches, this launch is used, so every value has a launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<LaunchVariant>,
}

/// A launch for some values of the symbols.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchVariant {
    /// Conditions on the symbols; at least one range, each for another symbol.
    pub ranges: Vec<SymbolRange>,
    /// The launch. It has no variants.
    pub launch: LaunchSpec,
}

/// A range of a symbol's values, inclusive at both ends.
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

    /// The launch for the given values of the symbols, with the index of its variant; `None` for
    /// this launch itself.
    pub fn choose(&self, symbols: &[i64]) -> (Option<usize>, &LaunchSpec) {
        let matches = |range: &SymbolRange| {
            symbols.get(range.symbol.0 as usize).is_some_and(|value| (range.min..=range.max).contains(value))
        };
        let index = self.variants.iter().position(|variant| variant.ranges.iter().all(matches));
        (index, self.variant(index))
    }

    /// The launch with an index returned by [`LaunchSpec::choose`].
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
        /// Type of the parameter.
        dtype: DType,
        /// The value.
        value: Expr,
    },
    /// A 32-bit float literal by its bits, which are exact in text.
    F32 {
        /// IEEE bits.
        bits: u32,
    },
    /// A 64-bit float literal by its bits.
    F64 {
        /// IEEE bits.
        bits: u64,
    },
    /// Address of the word in which the kernel reports a violated check ([`crate::Check`]); a u64
    /// parameter. The kernel writes the word and never reads it.
    Check {
        /// Index of the check.
        check: u32,
    },
    /// A structure by value.
    Bytes {
        /// Alignment in bytes: 1, 2, 4, 8 or 16.
        align: u32,
        /// The bytes, in hexadecimal.
        #[serde(with = "crate::hexadecimal")]
        bytes: Vec<u8>,
        /// Addresses in the structure, ascending, filled in when memory is allocated.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        relocations: Vec<Relocation>,
    },
}

/// Eight bytes of a structure that are replaced by the address of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relocation {
    /// Offset in the structure in bytes, such that the address is 8-byte aligned in the parameter
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
