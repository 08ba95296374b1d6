//! What programs see of the device, and of kernels.

use crate::compiler::ModuleKernel;
use atoll_session::{DeviceFacts, KERNEL_ATTRIBUTES, KernelFacts};
use sha2::{Digest, Sha256};

/// Dynamic shared memory in bytes that a launch may have unless the program raises the limit.
pub(super) const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// The compute capability of host devices: 90 is 9.0. PTX for newer ones is refused.
const HOST_CAPABILITY: u32 = 90;

/// The CUDA version of the driver: 13.0.
const DRIVER: u32 = 13_000;

/// What launches on a device may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The compute capability.
    pub(super) capability: u32,
    /// Most shared memory of a block in bytes.
    pub(super) shared_bytes_max: u32,
    /// Threads and blocks that a compute unit runs at the same time.
    threads: u32,
    blocks: u32,
    /// Shared memory of a compute unit in bytes.
    shared_bytes: u32,
}

impl Limits {
    /// The limits of an NVIDIA GPU with this compute capability, or of a host device.
    pub(super) fn of(capability: Option<u32>) -> Limits {
        let Some(capability) = capability else {
            let shared_bytes = 99 << 10;
            let (capability, threads, blocks) = (HOST_CAPABILITY, 1024, 1);
            return Limits { capability, threads, blocks, shared_bytes, shared_bytes_max: shared_bytes };
        };
        // From the tables of CUDA's programming guide.
        let (threads, blocks, shared_kib) = match capability {
            ..80 => (1024, 16, 64),
            80 => (2048, 32, 164),
            87 => (1536, 16, 164),
            81..=86 | 88 => (1536, 16, 100),
            89 | 120.. => (1536, 24, 100),
            110..120 => (1536, 24, 228),
            90..110 => (2048, 32, 228),
        };
        // From Ampere on, the driver keeps 1 KiB for each block.
        let own_kib = if capability < 80 { 0 } else { 1 };
        let (shared_bytes, shared_bytes_max) = (shared_kib << 10, (shared_kib - own_kib) << 10);
        Limits { capability, threads, blocks, shared_bytes, shared_bytes_max }
    }
}

/// Facts about a device for the client.
pub(super) fn of_device(name: &str, compute_units: u32, limits: Limits) -> DeviceFacts {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&Sha256::digest(name)[..16]);
    let attributes = DeviceFacts::attribute_numbers().map(|number| Some(attribute(number, compute_units, limits)));
    DeviceFacts {
        name: format!("Atoll {name}"),
        uuid,
        pci_bus_id: "0000:00:00.0".to_owned(),
        driver: DRIVER,
        priority: 0,
        attributes: attributes.collect(),
    }
}

/// An attribute by its number in CUDA's header.
fn attribute(number: i32, compute_units: u32, limits: Limits) -> i32 {
    match number {
        // Threads of a block; sizes of blocks and grids.
        1..=3 => 1024,
        4 | 37 => 64,
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block, constant memory, a warp, registers of a block, kHz, alignment
        // of textures.
        8 => SHARED_BYTES_DEFAULT as i32,
        97 => limits.shared_bytes_max as i32,
        9 | 12 | 82 => 65_536,
        10 => 32,
        13 | 36 => 1_000_000,
        14 => 512,
        38 => 1 << 20,
        40 => 2,
        // The compute units: their number, and what each runs at the same time.
        16 => compute_units as i32,
        39 => limits.threads as i32,
        81 => limits.shared_bytes as i32,
        106 => limits.blocks as i32,
        75 => limits.capability as i32 / 10,
        76 => limits.capability as i32 % 10,
        // Concurrent copies, concurrent kernels, unified addressing, priorities.
        15 | 31 | 41 | 78 => 1,
        _ => 0,
    }
}

/// Facts about a kernel for the client.
pub(super) fn of_kernel(kernel: &ModuleKernel, capability: u32) -> KernelFacts {
    let capability = capability as i32;
    let mut attributes = [0; KERNEL_ATTRIBUTES];
    attributes[0] = kernel.threads_max as i32;
    attributes[1] = kernel.shared_bytes as i32;
    // Registers, PTX version and version of the code. Registers are unknown before it is compiled.
    (attributes[4], attributes[5], attributes[6]) = (32, capability, capability);
    attributes[8] = SHARED_BYTES_DEFAULT as i32;
    KernelFacts { params: kernel.params.clone(), attributes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_see_the_limits_of_the_device() {
        let seen = |capability: Option<u32>| {
            let facts = of_device("device", 132, Limits::of(capability));
            [75, 76, 16, 39, 106, 81, 97].map(|number| facts.attribute(number).expect("all are known"))
        };
        assert_eq!(seen(Some(90)), [9, 0, 132, 2048, 32, 228 << 10, 227 << 10], "a H100");
        assert_eq!(seen(Some(75)), [7, 5, 132, 1024, 16, 64 << 10, 64 << 10], "a T4");
        assert_eq!(seen(Some(120)), [12, 0, 132, 1536, 24, 100 << 10, 99 << 10]);
        assert_eq!(seen(None), [9, 0, 132, 1024, 1, 99 << 10, 99 << 10], "a host device");
    }
}
