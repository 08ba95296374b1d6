//! How many blocks of a kernel fit a compute unit at the same time.

use crate::DeviceModel;

/// The resources of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelNeeds {
    /// Registers per thread (vector registers on AMD).
    pub registers: u32,
    /// Static and dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// The resource that limits the number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Block slots.
    Blocks,
    /// Warp slots.
    Warps,
    /// Registers.
    Registers,
    /// Shared memory.
    Shared,
}

/// The occupancy of a compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Number of concurrent blocks; 0 if a block does not fit at all.
    pub blocks: u32,
    /// Warps of these blocks.
    pub warps: u32,
    /// The resource that prevents another block.
    pub limit: Limit,
}

impl DeviceModel {
    /// The occupancy of a compute unit with blocks that need these resources.
    pub fn occupancy(&self, needs: KernelNeeds) -> Occupancy {
        let warps = needs.threads.div_ceil(self.warp_threads).max(1);
        let fits = needs.threads <= self.block_threads_max;
        let candidates = [
            (Limit::Blocks, if fits { self.blocks_max } else { 0 }),
            (Limit::Warps, self.warps_max / warps),
            (Limit::Registers, self.blocks_by_registers(needs.registers, needs.threads)),
            (Limit::Shared, self.blocks_by_shared(needs.shared_bytes)),
        ];
        let (limit, blocks) = candidates.into_iter().min_by_key(|(_, blocks)| *blocks).unwrap_or((Limit::Blocks, 0));
        Occupancy { blocks, warps: blocks * warps, limit }
    }

    /// Blocks of `threads` threads that the register file of a compute unit has room for.
    pub(crate) fn blocks_by_registers(&self, registers: u32, threads: u32) -> u32 {
        let (file, warps) = (&self.registers, threads.div_ceil(self.warp_threads).max(1));
        if registers > file.per_thread_max {
            return 0;
        }
        let per_warp = registers.max(1).next_multiple_of(file.granule);
        let warps_max = file.parts.saturating_mul(file.per_part / per_warp);
        // A block must fit with its warps spread over all parts.
        let spread = if file.rounds_to_parts { warps.next_multiple_of(file.parts) } else { warps };
        if spread > warps_max { 0 } else { warps_max / warps }
    }

    fn blocks_by_shared(&self, bytes: u32) -> u32 {
        let shared = &self.shared;
        if bytes > shared.block_bytes_max {
            return 0;
        }
        let taken = (bytes + shared.reserved).next_multiple_of(shared.granule);
        shared.unit_bytes.checked_div(taken).unwrap_or(u32::MAX)
    }

    /// Maximum number of registers per thread with which `warps` warps fit a compute unit; 0 if
    /// they never fit.
    pub fn registers_for(&self, warps: u32) -> u32 {
        let file = &self.registers;
        let per_part = warps.div_ceil(file.parts).max(1);
        (file.per_part / per_part / file.granule * file.granule).min(file.per_thread_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> &'static DeviceModel {
        DeviceModel::find(name).unwrap_or_else(|| panic!("{name}"))
    }

    /// `cuda_occupancy.h` distinguishes architectures; devices of the same architecture differ only
    /// in their number of compute units.
    #[test]
    fn matches_nvidias_occupancy_calculator() {
        let mut compared = 0;
        for line in include_str!("../tests/vendors/nvidia.txt").lines() {
            let [name, registers, threads, shared_bytes, blocks] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let number = |text: &str| text.parse::<u32>().unwrap();
            let needs = KernelNeeds {
                registers: number(registers),
                shared_bytes: number(shared_bytes),
                threads: number(threads),
            };
            assert_eq!(device(name).occupancy(needs).blocks, number(blocks), "{line}");
            compared += 1;
        }
        assert!(compared > 2000, "{compared}");
    }

    #[test]
    fn matches_llvms_amd_target() {
        for line in include_str!("../tests/vendors/amd.txt").lines() {
            let [cpu, registers, waves] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let model = &crate::AmdModel::find(cpu).unwrap().device;
            let needs = KernelNeeds {
                registers: registers.parse::<u32>().unwrap(),
                shared_bytes: 0,
                threads: model.warp_threads,
            };
            assert_eq!(model.occupancy(needs).warps / model.registers.parts, waves.parse::<u32>().unwrap(), "{line}");
        }
    }

    /// REEF's table of occupancy levels (in its code, `proxy kernels` for the MI50). It leaves one
    /// granule unused if the register file does not divide evenly.
    #[test]
    fn the_mi50_has_reefs_levels() {
        let reef = [(1, 256), (2, 128), (3, 84), (4, 64), (5, 48), (6, 40), (7, 36), (8, 32), (9, 28)];
        for (waves, registers) in reef {
            assert_eq!(device("mi50").registers_for(4 * waves), registers, "{waves} waves per SIMD");
        }
        assert_eq!(device("mi50").registers_for(40), 24, "REEF has 28, with which only nine waves fit");
    }

    #[test]
    fn the_limiting_resource_is_reported() {
        let v100 = device("v100");
        let needs = |registers, shared_bytes, threads| KernelNeeds { registers, shared_bytes, threads };
        assert_eq!(v100.occupancy(needs(16, 0, 32)), Occupancy { blocks: 32, warps: 32, limit: Limit::Blocks });
        assert_eq!(v100.occupancy(needs(16, 0, 1024)).limit, Limit::Warps);
        assert_eq!(v100.occupancy(needs(255, 0, 128)).limit, Limit::Registers);
        assert_eq!(v100.occupancy(needs(16, 60_000, 128)), Occupancy { blocks: 1, warps: 4, limit: Limit::Shared });
        assert_eq!(v100.occupancy(needs(16, 200_000, 128)).blocks, 0);
        assert_eq!(v100.occupancy(needs(16, 0, 2048)).blocks, 0);
        assert_eq!(device("host").occupancy(needs(500, 100_000, 256)).blocks, 1);
    }
}
