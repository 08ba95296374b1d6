//! The resources of a compute unit of each device.
//!
//! # Sources
//! - NVIDIA: "Compute Capabilities" in the CUDA programming guide; allocation of registers and
//!   shared memory from `cuda_occupancy.h`, against which the tests compare; numbers of compute
//!   units from data sheets.
//! - AMD: the instruction set references (Vega 7 nm, CDNA 1 to 3, RDNA 3), and the occupancy
//!   printed by LLVM's AMD target, against which the tests compare. REEF's paper and code agree for
//!   the MI50, except for its rule for shared memory, which divides by the wrong size.

/// A device and its compute units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceModel {
    /// The name: `v100`, `mi50`, `host`.
    pub name: &'static str,
    /// Number of streaming multiprocessors, compute units or cores.
    pub compute_units: u32,
    /// Threads per warp or wave.
    pub warp_threads: u32,
    /// Maximum number of threads of a block.
    pub block_threads_max: u32,
    /// Maximum number of warps on a compute unit.
    pub warps_max: u32,
    /// Maximum number of blocks on a compute unit.
    pub blocks_max: u32,
    /// Register allocation.
    pub registers: RegisterFile,
    /// Shared memory allocation.
    pub shared: SharedMemory,
}

/// The register file of a compute unit: `parts` equal parts. Each warp is in one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterFile {
    /// Number of sub-partitions or SIMDs.
    pub parts: u32,
    /// Registers per lane in a part: the size of the part's file divided by the threads of a warp.
    pub per_part: u32,
    /// Allocation granularity of a warp, in registers per lane.
    pub granule: u32,
    /// Maximum number of registers per thread.
    pub per_thread_max: u32,
    /// Whether a block's number of warps is rounded up to a multiple of `parts`, because it takes
    /// room in all parts alike (NVIDIA).
    pub rounds_to_parts: bool,
}

/// Shared memory of a compute unit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Shared memory of all blocks on the unit.
    pub unit_bytes: u32,
    /// Maximum shared memory of one block.
    pub block_bytes_max: u32,
    /// Allocation granularity of a block.
    pub granule: u32,
    /// Bytes that the driver reserves per block.
    pub reserved: u32,
}

impl DeviceModel {
    /// Every device.
    pub const ALL: [DeviceModel; 18] = [
        nvidia("v100", 80, [64, 32], [98304, 98304, 256, 0]),
        nvidia("t4", 40, [32, 16], [65536, 65536, 256, 0]),
        nvidia("a100", 108, [64, 32], [167_936, 166_912, 128, 1024]),
        nvidia("a10", 72, [48, 16], [102_400, 101_376, 128, 1024]),
        nvidia("jetson-orin", 16, [48, 16], [167_936, 166_912, 128, 1024]),
        nvidia("rtx-3080", 68, [48, 16], [102_400, 101_376, 128, 1024]),
        nvidia("rtx-4090", 128, [48, 24], [102_400, 101_376, 128, 1024]),
        nvidia("h100", 132, [64, 32], [233_472, 232_448, 128, 1024]),
        nvidia("h200", 132, [64, 32], [233_472, 232_448, 128, 1024]),
        nvidia("b200", 148, [64, 32], [233_472, 232_448, 128, 1024]),
        nvidia("jetson-thor", 20, [48, 24], [233_472, 232_448, 128, 1024]),
        nvidia("rtx-5090", 170, [48, 24], [102_400, 101_376, 128, 1024]),
        amd("mi50", 60, 10, [256, 4, 256]),
        amd("mi100", 120, 10, [256, 4, 256]),
        amd("mi250", 104, 8, [512, 8, 512]),
        amd("mi300x", 304, 8, [512, 8, 512]),
        RX_7900,
        HOST,
    ];

    /// Whether it is an AMD GPU: it has a register file, and a block's waves go to any of its parts.
    pub(crate) fn is_amd(&self) -> bool {
        self.registers.per_thread_max != u32::MAX && !self.registers.rounds_to_parts
    }

    /// The device with a name.
    pub fn find(name: &str) -> Option<&'static DeviceModel> {
        const ALL: &[DeviceModel] = &DeviceModel::ALL;
        ALL.iter().find(|device| device.name == name)
    }
}

/// A compute unit with four sub-partitions of 16,384 registers each. `limits` are warps and blocks
/// per unit; `shared` is the fields of [`SharedMemory`] in order.
const fn nvidia(name: &'static str, compute_units: u32, limits: [u32; 2], shared: [u32; 4]) -> DeviceModel {
    DeviceModel {
        name,
        compute_units,
        warp_threads: 32,
        block_threads_max: 1024,
        warps_max: limits[0],
        blocks_max: limits[1],
        registers: RegisterFile { parts: 4, per_part: 512, granule: 8, per_thread_max: 255, rounds_to_parts: true },
        shared: SharedMemory {
            unit_bytes: shared[0],
            block_bytes_max: shared[1],
            granule: shared[2],
            reserved: shared[3],
        },
    }
}

/// A compute unit with four SIMDs and waves of 64. `registers` are the registers per lane of a
/// SIMD, the granule, and the most per thread.
pub(crate) const fn amd(
    name: &'static str,
    compute_units: u32,
    waves_per_simd: u32,
    registers: [u32; 3],
) -> DeviceModel {
    DeviceModel {
        name,
        compute_units,
        warp_threads: 64,
        block_threads_max: 1024,
        warps_max: 4 * waves_per_simd,
        // A block of one wave needs no barrier. Barrier slots limit other blocks to 16, which 40
        // waves in blocks of two or more rarely reach.
        blocks_max: 4 * waves_per_simd,
        registers: RegisterFile {
            parts: 4,
            per_part: registers[0],
            granule: registers[1],
            per_thread_max: registers[2],
            rounds_to_parts: false,
        },
        shared: SharedMemory { unit_bytes: 64 << 10, block_bytes_max: 64 << 10, granule: 512, reserved: 0 },
    }
}

/// RDNA 3 in waves of 32 and compute-unit mode: two SIMDs with 1,536 registers per lane.
const RX_7900: DeviceModel = rdna("rx-7900", 96, [1536, 24]);

/// A compute unit of RDNA 2 and later in waves of 32 and compute-unit mode. `registers` are the
/// registers per lane of a SIMD and the granule.
pub(crate) const fn rdna(name: &'static str, compute_units: u32, registers: [u32; 2]) -> DeviceModel {
    DeviceModel {
        name,
        compute_units,
        warp_threads: 32,
        block_threads_max: 1024,
        warps_max: 32,
        blocks_max: 32,
        registers: RegisterFile {
            parts: 2,
            per_part: registers[0],
            granule: registers[1],
            per_thread_max: 256,
            rounds_to_parts: false,
        },
        shared: SharedMemory { unit_bytes: 64 << 10, block_bytes_max: 64 << 10, granule: 512, reserved: 0 },
    }
}

/// A host core runs one block at a time, whatever its resources are.
const HOST: DeviceModel = DeviceModel {
    name: "host",
    compute_units: 1,
    warp_threads: 32,
    block_threads_max: 1024,
    warps_max: 32,
    blocks_max: 1,
    registers: RegisterFile {
        parts: 1,
        per_part: u32::MAX,
        granule: 1,
        per_thread_max: u32::MAX,
        rounds_to_parts: false,
    },
    shared: SharedMemory { unit_bytes: 228 << 10, block_bytes_max: 228 << 10, granule: 16, reserved: 0 },
};
