//! Occupancy, computed from facts by the rules of NVIDIA's occupancy calculator for compute
//! capability 5 and later. A limit that the device does not report does not apply.

use crate::facts::{DeviceFacts, KernelFacts};

/// Threads of a warp.
const WARP: u64 = 32;
/// Registers are allocated to a warp in units of this many.
const REGISTER_UNIT: u64 = 256;
/// The number of warps that the registers suffice for is rounded down to a multiple of this.
const WARP_UNIT: u64 = 4;
/// Shared memory is allocated to a block in units of this many bytes.
const SHARED_UNIT: u64 = 128;

/// Numbers of device attributes in the header.
mod attribute {
    pub(super) const THREADS_PER_BLOCK: i32 = 1;
    pub(super) const REGISTERS_PER_BLOCK: i32 = 12;
    pub(super) const COMPUTE_UNITS: i32 = 16;
    pub(super) const THREADS_PER_UNIT: i32 = 39;
    pub(super) const SHARED_PER_UNIT: i32 = 81;
    pub(super) const REGISTERS_PER_UNIT: i32 = 82;
    pub(super) const SHARED_PER_BLOCK: i32 = 97;
    pub(super) const BLOCKS_PER_UNIT: i32 = 106;
    pub(super) const SHARED_RESERVED: i32 = 111;
}

/// The number of a kernel's blocks that fit on a compute unit at once.
pub fn active_blocks(device: &DeviceFacts, kernel: &KernelFacts, threads: u64, dynamic_shared: u64) -> u64 {
    let of = |number, unlimited| limit(device, number).unwrap_or(unlimited);
    let [threads_max, static_shared, _, _, registers, ..] = kernel.attributes.map(|value| value.max(0) as u64);
    let is_too_large = threads == 0 || threads > of(attribute::THREADS_PER_BLOCK, 1024) || threads > threads_max;
    let shared = dynamic_shared.saturating_add(static_shared);
    if is_too_large || shared > of(attribute::SHARED_PER_BLOCK, u64::MAX) {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let by_threads = of(attribute::THREADS_PER_UNIT, 2048) / WARP / warps;
    let shared = shared.saturating_add(limit(device, attribute::SHARED_RESERVED).unwrap_or(0));
    let by_shared = of(attribute::SHARED_PER_UNIT, u64::MAX)
        .checked_div(shared.checked_next_multiple_of(SHARED_UNIT).unwrap_or(u64::MAX))
        .unwrap_or(u64::MAX);
    let by_registers = match (registers, limit(device, attribute::REGISTERS_PER_UNIT)) {
        (0, _) | (_, None) => u64::MAX,
        (_, Some(of_unit)) => {
            let of_block = of(attribute::REGISTERS_PER_BLOCK, of_unit);
            let of_warp = (registers * WARP).next_multiple_of(REGISTER_UNIT);
            let warps_max = of_block / of_warp / WARP_UNIT * WARP_UNIT;
            warps_max / warps * (of_unit / of_block.max(1))
        }
    };
    by_threads.min(by_shared).min(by_registers).min(of(attribute::BLOCKS_PER_UNIT, 32))
}

/// Returns the number of blocks that fill the device, and the number of threads of a block with
/// which most threads are resident. `dynamic_shared` returns the dynamic shared memory of a block
/// in bytes for its number of threads. `most` limits the threads of a block; 0 is no limit.
pub fn best_block(
    device: &DeviceFacts,
    kernel: &KernelFacts,
    mut dynamic_shared: impl FnMut(u64) -> u64,
    most: u64,
) -> (u64, u64) {
    let by_device = limit(device, attribute::THREADS_PER_BLOCK).unwrap_or(1024);
    let mut end = by_device.min(kernel.attributes[0].max(0) as u64);
    if most > 0 {
        end = end.min(most);
    }
    let (mut best, mut grid, mut resident) = (0, 0, 0);
    let units = limit(device, attribute::COMPUTE_UNITS).unwrap_or(1);
    let mut threads = end;
    while threads > 0 {
        let blocks = active_blocks(device, kernel, threads, dynamic_shared(threads));
        if blocks * threads > resident {
            (best, grid, resident) = (threads, blocks * units, blocks * threads);
        }
        // Continues with whole warps; the first size may end in a partial warp.
        threads = (threads - 1) / WARP * WARP;
    }
    (grid, best)
}

/// The dynamic shared memory in bytes that a block may have if this many blocks shall fit on a
/// compute unit.
pub fn available_shared(device: &DeviceFacts, kernel: &KernelFacts, blocks: u64) -> u64 {
    let unit = limit(device, attribute::SHARED_PER_UNIT).unwrap_or(0) / blocks.max(1) / SHARED_UNIT * SHARED_UNIT;
    let taken = kernel.attributes[1].max(0) as u64 + limit(device, attribute::SHARED_RESERVED).unwrap_or(0);
    let of_block = limit(device, attribute::SHARED_PER_BLOCK).unwrap_or(unit);
    unit.saturating_sub(taken).min(of_block.saturating_sub(kernel.attributes[1].max(0) as u64))
}

fn limit(device: &DeviceFacts, number: i32) -> Option<u64> {
    device.attribute(number).and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::KERNEL_ATTRIBUTES;

    /// An A100 by its data sheet.
    fn a100() -> DeviceFacts {
        let mut attributes = vec![None; 150];
        let values =
            [(1, 1024), (12, 65_536), (16, 108), (39, 2048), (81, 167_936), (82, 65_536), (97, 166_912), (106, 32)];
        for (number, value) in [values.as_slice(), &[(111, 1024)]].concat() {
            attributes[number - 1] = Some(value);
        }
        let text = String::new;
        DeviceFacts { name: text(), uuid: [0; 16], pci_bus_id: text(), driver: 12040, priority: 0, attributes }
    }

    fn kernel(registers: i32, shared: i32) -> KernelFacts {
        let mut attributes = [0; KERNEL_ATTRIBUTES];
        (attributes[0], attributes[1], attributes[4]) = (1024, shared, registers);
        KernelFacts { params: Vec::new(), attributes }
    }

    #[test]
    fn occupancy_is_that_of_the_calculator() {
        for (registers, shared, threads, blocks) in [
            (32, 0, 256, 8),
            (32, 0, 1024, 2),
            (32, 0, 32, 32),
            (64, 0, 256, 4),
            (40, 0, 256, 6),
            (255, 0, 256, 1),
            (255, 0, 512, 0),
            (32, 49_152, 256, 3),
            (32, 0, 1025, 0),
            (32, 0, 0, 0),
        ] {
            let found = active_blocks(&a100(), &kernel(registers, shared), threads, 0);
            assert_eq!(found, blocks, "{registers} registers, {shared} bytes, {threads} threads");
        }
    }

    #[test]
    fn the_best_block_fills_the_device() {
        assert_eq!(best_block(&a100(), &kernel(32, 0), |_| 0, 0), (216, 1024));
        assert_eq!(best_block(&a100(), &kernel(32, 0), |_| 0, 256), (864, 256));
        assert_eq!(best_block(&a100(), &kernel(255, 0), |_| 0, 0), (108, 256));
        assert_eq!(available_shared(&a100(), &kernel(32, 0), 2), 83_968 - 1024);
        assert_eq!(available_shared(&a100(), &kernel(32, 0), 1), 166_912);
    }
}
