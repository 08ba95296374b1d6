//! Register classes: which candidates may share a module.
//!
//! A launch gives every thread as many registers as the most demanding candidate that its entry can
//! reach. Candidates are therefore divided into classes, so that a small kernel does not pay for a
//! large one that it is never paired with. On AMD GPUs, a class is an occupancy level.

use crate::DeviceModel;
use std::collections::BTreeSet;

/// Registers per thread of each class of NVIDIA GPUs. 255 is the most a thread can have; each class has half as
/// many concurrent warps as the previous one.
const LADDER: [u32; 4] = [32, 64, 128, 255];

/// Maximum number of vector registers that an instruction can name on AMD GPUs. The rest of a
/// unified register file holds accumulators, which no candidate uses.
const NAMED_VECTORS: u32 = 256;

/// Registers per thread of each occupancy level of an AMD GPU, ascending.
fn levels(device: &DeviceModel) -> impl Iterator<Item = u32> {
    let parts = device.registers.parts;
    let of_level = |waves: u32| device.registers_for(waves * parts).min(NAMED_VECTORS);
    let all: BTreeSet<u32> = (1..=device.warps_max / parts).map(of_level).collect();
    all.into_iter()
}

/// A register class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterClass {
    /// Maximum number of registers of a thread.
    pub registers: u32,
    /// Maximum number of threads per block: a larger block of this class does not fit a compute
    /// unit.
    pub threads_max: u32,
}

impl RegisterClass {
    /// The classes of a device, smallest first. A device without register limits has one class.
    pub fn of_device(device: &DeviceModel) -> Vec<RegisterClass> {
        if device.registers.per_thread_max == u32::MAX {
            return vec![RegisterClass { registers: u32::MAX, threads_max: device.block_threads_max }];
        }
        let class = |registers: u32| {
            let per_warp = registers.next_multiple_of(device.registers.granule);
            let warps = device.registers.parts * (device.registers.per_part / per_warp);
            RegisterClass { registers, threads_max: (warps * device.warp_threads).min(device.block_threads_max) }
        };
        if device.is_amd() {
            return levels(device).map(class).collect();
        }
        LADDER.into_iter().map(class).collect()
    }

    /// The class of a kernel; `None` if its block is too large for the registers it needs.
    pub fn of_kernel(device: &DeviceModel, registers: u32, threads: u32) -> Option<RegisterClass> {
        let class = RegisterClass::of_device(device).into_iter().find(|class| registers <= class.registers)?;
        (threads <= class.threads_max).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_block_of_a_class_fits_a_compute_unit() {
        for device in DeviceModel::ALL.iter().filter(|d| d.registers.rounds_to_parts) {
            for class in RegisterClass::of_device(device) {
                let needs =
                    crate::KernelNeeds { registers: class.registers, shared_bytes: 0, threads: class.threads_max };
                assert!(device.occupancy(needs).blocks >= 1, "{} {class:?}", device.name);
            }
        }
        let v100 = DeviceModel::find("v100").unwrap();
        let threads: Vec<u32> = RegisterClass::of_device(v100).iter().map(|c| c.threads_max).collect();
        assert_eq!(threads, [1024, 1024, 512, 256]);
        assert_eq!(RegisterClass::of_kernel(v100, 100, 640), None);
        assert_eq!(RegisterClass::of_kernel(v100, 64, 640).map(|c| c.registers), Some(64));
    }

    /// The levels of the MI50 are REEF's.
    #[test]
    fn amd_gpus_have_a_class_per_occupancy_level() {
        let registers = |name| {
            let classes = RegisterClass::of_device(DeviceModel::find(name).unwrap());
            classes.iter().map(|class| class.registers).collect::<Vec<_>>()
        };
        assert_eq!(registers("mi50"), [24, 28, 32, 36, 40, 48, 64, 84, 128, 256]);
        assert_eq!(registers("mi250"), [64, 72, 80, 96, 128, 168, 256]);
        let mi50 = DeviceModel::find("mi50").unwrap();
        assert_eq!(RegisterClass::of_kernel(mi50, 85, 1024), None, "16 waves do not fit with 128 registers");
        assert_eq!(RegisterClass::of_kernel(mi50, 85, 512).map(|c| c.registers), Some(128));
    }

    #[test]
    fn the_host_has_one_class() {
        let host = DeviceModel::find("host").unwrap();
        assert_eq!(RegisterClass::of_device(host).len(), 1);
        assert!(RegisterClass::of_kernel(host, 100_000, 1024).is_some());
    }
}
