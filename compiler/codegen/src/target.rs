//! The properties of a target that the generator uses.

/// The tile of the tiled matrix product. A block computes `warps * rows` rows and `32 * columns`
/// columns, `depth` products at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Number of warps of a block, stacked along the rows.
    pub warps: u32,
    /// Number of warps of a block whose second operand is expensive to stage, or to read from
    /// memory: all its rows share the cost.
    pub warps_max: u32,
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
    /// The tile of products whose second operand is a matrix with many columns; `None` if it is
    /// `gemm`.
    pub wide_gemm: Option<GemmTile>,
    /// Largest number of products of a block with more than its tile's `warps`. It bounds how long
    /// a block delays a more urgent launch.
    pub tall_products_max: u32,
    /// Whether broadcasts from global memory are as fast as those from shared memory, and
    /// prefetches are worth an instruction: the rows of a product are then not staged, and the
    /// columns of the next round are prefetched.
    pub caches_like_shared: bool,
    /// Smallest number of taps for which a depthwise convolution stages the image.
    pub staged_taps_min: i64,
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
        let (name, warps, rows, warps_max) = match level {
            HostLevel::V3 => ("host-x86-64-v3", 32, 2, 32),
            HostLevel::V4 => ("host-x86-64-v4", 8, 8, 16),
        };
        let gemm = GemmTile { warps, warps_max, rows, columns: 1, depth: 32, unroll: 4, vector_rows: false };
        TargetDescription {
            name: name.to_owned(),
            ptx_version: "7.0".to_owned(),
            ptx_target: "sm_75".to_owned(),
            threads_max: 1024,
            shared_bytes_max: 48 << 10,
            registers: None,
            gemm,
            // Two columns take half as many loads of rows for each product, and adjacent lines of
            // the second operand.
            wide_gemm: (level == HostLevel::V4).then_some(GemmTile {
                warps: 11,
                warps_max: 22,
                rows: 6,
                columns: 2,
                ..gemm
            }),
            tall_products_max: 10 << 20,
            caches_like_shared: true,
            // Staged pixels need no guards, which are vector instructions with AVX2.
            staged_taps_min: if level == HostLevel::V3 { 9 } else { 16 },
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
        let gemm = GemmTile { warps: 4, warps_max: 4, rows: 8, columns: 4, depth: 32, unroll: 8, vector_rows: true };
        TargetDescription {
            name: "nvidia-sm_75".to_owned(),
            ptx_version: "7.0".to_owned(),
            ptx_target: "sm_75".to_owned(),
            threads_max: 1024,
            shared_bytes_max: 48 << 10,
            // The largest limit with which a compute unit still holds twelve warps; with lower
            // limits some kernels spill.
            registers: Some(RegisterLimits { per_block: 64 << 10, per_thread_max: 168 }),
            gemm,
            wide_gemm: None,
            tall_products_max: 0,
            caches_like_shared: false,
            staged_taps_min: 16,
            gemv_accumulators: 1,
            warps: 4,
            elements_per_block: 2 << 10,
            products_per_block: 32 << 10,
        }
    }
}
