//! What the generator needs to know of a target.

/// Shape of the tiled matrix product: a block computes `warps * rows` rows and `32 * columns`
/// columns, `depth` products at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Warps of a block, one above the other.
    pub warps: u32,
    /// Rows of one warp: accumulators per thread and column.
    pub rows: u32,
    /// Columns of one thread, 32 apart.
    pub columns: u32,
    /// Products between two barriers; a multiple of 32.
    pub depth: u32,
    /// Products per round of the innermost loop.
    pub unroll: u32,
    /// Read four products of a row at once from shared memory.
    pub vector_rows: bool,
}

/// A target as the generator sees it. Warps have 32 lanes everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetDescription {
    /// Name of the target image: `host-x86-64-v4`, `nvidia-sm_75`.
    pub name: String,
    /// `.version` of the modules.
    pub ptx_version: String,
    /// `.target` of the modules.
    pub ptx_target: String,
    /// Most threads of a block.
    pub threads_max: u32,
    /// Most bytes of static shared memory.
    pub shared_bytes_max: u32,
    /// Registers of a compute unit and most registers of a thread, for targets whose assembler
    /// wants to be told. Left alone, `ptxas` aims at 128 a thread and spills rather than taking
    /// more.
    pub registers: Option<RegisterLimits>,
    /// Tile of matrix products and convolutions where the problem is large enough.
    pub gemm: GemmTile,
    /// Most warps of a block whose second operand is gathered: every row shares the price of
    /// gathering.
    pub gather_warps: u32,
    /// Most products of a block with more than `gemm.warps` warps: a bound on how long a block can
    /// hold up somebody more urgent.
    pub gather_products_max: u32,
    /// Accumulators per thread of a product with few rows.
    pub gemv_accumulators: u32,
    /// Warps of a block of kernels whose warps do not work together.
    pub warps: u32,
    /// Elements a block of a pointwise kernel should produce: enough that starting it does not
    /// count.
    pub elements_per_block: u32,
    /// Multiply-accumulates a block of a direct convolution or pooling should do.
    pub products_per_block: u32,
}

/// How many registers threads may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterLimits {
    /// Registers that one block can have.
    pub per_block: u32,
    /// Most registers of a thread: enough for the largest tile without a spill, few enough for
    /// three blocks of four warps on a compute unit.
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
    /// A host CPU. A warp is 32 lanes of vector code, a block runs on one core; shared memory is
    /// the core's own cache.
    pub fn host(level: HostLevel) -> TargetDescription {
        // Accumulators of a warp take `4 * rows` of 16 vector registers, or `2 * rows` of 32; the rest is
        // for what is multiplied. A block of 64 rows makes up for staging.
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

    /// NVIDIA GPUs from Turing on; the driver compiles the text for newer ones.
    pub fn nvidia_sm75() -> TargetDescription {
        TargetDescription {
            name: "nvidia-sm_75".to_owned(),
            ptx_version: "7.0".to_owned(),
            ptx_target: "sm_75".to_owned(),
            threads_max: 1024,
            shared_bytes_max: 48 << 10,
            // The most with which a compute unit still holds twelve warps; with less some kernels spill.
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
