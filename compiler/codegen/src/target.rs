//! The properties of a target that the generator uses.

/// The tile of the tiled matrix product. A block computes `warps * rows` rows and `32 * columns`
/// columns, `depth` products at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Number of warps of a block, stacked along the rows.
    pub warps: u32,
    /// Rows of a warp: the number of accumulators per thread and column.
    pub rows: u32,
    /// Columns of a thread, 32 apart.
    pub columns: u32,
    /// Products between two barriers; a multiple of 32.
    pub depth: u32,
    /// Products per iteration of the innermost loop.
    pub unroll: u32,
    /// Whether to load four products of a row at once from shared memory.
    pub vector_rows: bool,
}

/// A target, as the generator sees it. On every target a warp has 32 lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetDescription {
    /// Name of the target image: `host-x86-64-v4`, `nvidia-sm_75`.
    pub name: String,
    /// `.version` of the modules.
    pub ptx_version: String,
    /// `.target` of the modules.
    pub ptx_target: String,
    /// Largest number of threads of a block.
    pub threads_max: u32,
    /// Largest static shared memory of a block, in bytes.
    pub shared_bytes_max: u32,
    /// Register limits for `.maxnreg`; `None` if the target needs none. Without a limit, `ptxas`
    /// aims at 128 registers per thread and spills rather than using more.
    pub registers: Option<RegisterLimits>,
    /// The tile of matrix products and convolutions that are large enough.
    pub gemm: GemmTile,
    /// Largest number of warps of a block whose second operand is gathered: all rows share the cost
    /// of gathering.
    pub gather_warps: u32,
    /// Largest number of products of a block with more than `gemm.warps` warps. It bounds how long
    /// a block delays a more urgent launch.
    pub gather_products_max: u32,
    /// Accumulators per thread of a product with few rows.
    pub gemv_accumulators: u32,
    /// Warps per block, for kernels whose warps do not cooperate.
    pub warps: u32,
    /// Number of elements that a block of a pointwise kernel should compute, so that its launch
    /// cost is negligible.
    pub elements_per_block: u32,
    /// Number of multiply-accumulates that a block of a direct convolution or pooling should do.
    pub products_per_block: u32,
}

/// Limits on the registers of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterLimits {
    /// Registers that one block can use.
    pub per_block: u32,
    /// Largest number of registers of a thread: enough for the largest tile without spilling, and
    /// few enough for three blocks of four warps per compute unit.
    pub per_thread_max: u32,
}

/// Vector level of a host target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLevel {
    /// x86-64-v3: AVX2 and FMA, sixteen registers of eight floats.
    V3,
    /// x86-64-v4: AVX-512, thirty-two registers of sixteen floats.
    V4,
}

impl TargetDescription {
    /// A host CPU. A warp is 32 lanes of vector code, a block runs on one core, and shared memory
    /// is in that core's cache.
    pub fn host(level: HostLevel) -> TargetDescription {
        // The accumulators of a warp take `4 * rows` of 16 vector registers, or `2 * rows` of 32;
        // the remaining registers hold operands. A block of 64 rows amortises the cost of staging.
        let (name, warps, rows, gather_warps) = match level {
            HostLevel::V3 => ("host-x86-64-v3", 32, 2, 32),
            HostLevel::V4 => ("host-x86-64-v4", 8, 8, 16),
        };
        TargetDescription {
            name: name.to_owned(),
            ptx_version: "7.0".to_owned(),
            ptx_target: "sm_75".to_owned(),
            threads_max: 1024,
            shared_bytes_max: 48 << 10,
            registers: None,
            gemm: GemmTile { warps, rows, columns: 1, depth: 32, unroll: 4, vector_rows: false },
            gather_warps,
            gather_products_max: 10 << 20,
            gemv_accumulators: 8,
            warps: 4,
            elements_per_block: 16 << 10,
            products_per_block: 256 << 10,
        }
    }

    /// AMD GPUs. The sizes are those for NVIDIA GPUs, without a limit on registers, which only
    /// `ptxas` knows.
    pub fn amd() -> TargetDescription {
        TargetDescription { name: "amd".to_owned(), registers: None, ..TargetDescription::nvidia_sm75() }
    }

    /// NVIDIA GPUs since Turing; the driver compiles the text for newer ones.
    pub fn nvidia_sm75() -> TargetDescription {
        TargetDescription {
            name: "nvidia-sm_75".to_owned(),
            ptx_version: "7.0".to_owned(),
            ptx_target: "sm_75".to_owned(),
            threads_max: 1024,
            shared_bytes_max: 48 << 10,
            // The largest limit with which a compute unit still holds twelve warps; with lower
            // limits some kernels spill.
            registers: Some(RegisterLimits { per_block: 64 << 10, per_thread_max: 168 }),
            gemm: GemmTile { warps: 4, rows: 8, columns: 4, depth: 32, unroll: 8, vector_rows: true },
            gather_warps: 4,
            gather_products_max: 0,
            gemv_accumulators: 1,
            warps: 4,
            elements_per_block: 2 << 10,
            products_per_block: 32 << 10,
        }
    }
}
