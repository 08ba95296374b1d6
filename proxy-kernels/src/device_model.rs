//! What a compute unit of each device holds.
//!
//! # Sources
//! - NVIDIA: "Compute Capabilities" of the CUDA programming guide; how registers and shared memory
//!   are handed out from `cuda_occupancy.h`, whose answers the tests compare with; numbers of
//!   compute units from the makers' data sheets.
//! - AMD: the instruction set references (Vega 7 nm, CDNA 1 to 3, RDNA 3) and what LLVM's AMD
//!   target prints, whose answers the tests compare with. REEF's paper and code agree for the MI50,
//!   but for its rule for shared memory, which divides by the wrong size.

/// A device's compute units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceModel {
    /// `v100`, `mi50`, `host`.
    pub name: &'static str,
    /// Streaming multiprocessors, compute units, cores.
    pub compute_units: u32,
    /// Threads of a warp or wave.
    pub warp_threads: u32,
    /// Most threads of a block.
    pub block_threads_max: u32,
    /// Most warps on a compute unit.
    pub warps_max: u32,
    /// Most blocks on a compute unit.
    pub blocks_max: u32,
    /// How registers are handed out.
    pub registers: RegisterFile,
    /// How shared memory is handed out.
    pub shared: SharedMemory,
}

/// Registers of a compute unit. It has `parts`, each of which holds whole warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterFile {
    /// Sub-partitions or SIMDs.
    pub parts: u32,
    /// Registers per lane that the warps of a part share: the size of the part's file over the
    /// threads of a warp.
    pub per_part: u32,
    /// A warp gets multiples of this, per lane.
    pub granule: u32,
    /// Most a thread can have.
    pub per_thread_max: u32,
    /// Whether a block's warps take places in all parts alike, so that their number is rounded up
    /// (NVIDIA).
    pub rounds_to_parts: bool,
}

/// Shared memory of a compute unit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// What its blocks share.
    pub unit_bytes: u32,
    /// Most a block can have.
    pub block_bytes_max: u32,
    /// A block gets multiples of this.
    pub granule: u32,
    /// What the driver keeps of each block's.
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

    /// The device of a name.
    pub fn find(name: &str) -> Option<&'static DeviceModel> {
        const ALL: &[DeviceModel] = &DeviceModel::ALL;
        ALL.iter().find(|device| device.name == name)
    }
}

/// A compute unit of four sub-partitions with 16,384 registers each. `limits` are warps and blocks;
/// `shared` is what a unit has, the most of a block, the granule, and what is reserved.
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

/// A compute unit of four SIMDs and waves of 64. `registers` is the file of a SIMD per lane, the
/// granule, and the most of a thread.
const fn amd(name: &'static str, compute_units: u32, waves_per_simd: u32, registers: [u32; 3]) -> DeviceModel {
    DeviceModel {
        name,
        compute_units,
        warp_threads: 64,
        block_threads_max: 1024,
        warps_max: 4 * waves_per_simd,
        // A block of one wave needs no barrier; the places for barriers limit all others to 16, which 40 waves in
        // blocks of two or more rarely reach.
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
const RX_7900: DeviceModel = DeviceModel {
    name: "rx-7900",
    compute_units: 96,
    warp_threads: 32,
    block_threads_max: 1024,
    warps_max: 32,
    blocks_max: 32,
    registers: RegisterFile { parts: 2, per_part: 1536, granule: 24, per_thread_max: 256, rounds_to_parts: false },
    shared: SharedMemory { unit_bytes: 64 << 10, block_bytes_max: 64 << 10, granule: 512, reserved: 0 },
};

/// Host cores run one block at a time, whatever it needs.
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
