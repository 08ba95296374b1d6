//! What programs see of the device, and of kernels.

use crate::compiler::ModuleKernel;
use atoll_session::{DeviceFacts, KernelFacts};
use sha2::{Digest, Sha256};

/// Dynamic shared memory in bytes that a launch may have unless the program raises the limit.
pub(super) const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Most shared memory of a block in bytes.
pub(super) const SHARED_BYTES_MAX: u32 = 99 << 10;

/// The compute capability: 90 is 9.0. PTX for newer ones is refused.
pub(super) const CAPABILITY: u32 = 90;

/// The CUDA version of the driver: 13.0.
const DRIVER: u32 = 13_000;

/// Facts about a device for the client.
pub(super) fn of_device(name: &str, compute_units: u32) -> DeviceFacts {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&Sha256::digest(name)[..16]);
    DeviceFacts {
        name: format!("Atoll {name}"),
        uuid,
        pci_bus_id: "0000:00:00.0".to_owned(),
        driver: DRIVER,
        priority: 0,
        attributes: DeviceFacts::attribute_numbers().map(|number| Some(attribute(number, compute_units))).collect(),
    }
}

/// An attribute by its number in CUDA's header.
fn attribute(number: i32, compute_units: u32) -> i32 {
    match number {
        // Threads of a block; sizes of blocks and grids.
        1..=3 | 39 => 1024,
        4 | 37 => 64,
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block, constant memory, a warp, registers of a block, kHz, alignment
        // of textures.
        8 => SHARED_BYTES_DEFAULT as i32,
        81 | 97 => SHARED_BYTES_MAX as i32,
        9 | 12 | 82 => 65_536,
        10 => 32,
        13 | 36 => 1_000_000,
        14 => 512,
        16 => compute_units as i32,
        38 => 1 << 20,
        40 => 2,
        75 => CAPABILITY as i32 / 10,
        76 => CAPABILITY as i32 % 10,
        106 => 1,
        // Concurrent copies, concurrent kernels, unified addressing, priorities.
        15 | 31 | 41 | 78 => 1,
        _ => 0,
    }
}

/// Facts about a kernel for the client.
pub(super) fn of_kernel(kernel: &ModuleKernel) -> KernelFacts {
    let capability = CAPABILITY as i32;
    let mut attributes = [0; 10];
    attributes[0] = kernel.threads_max as i32;
    attributes[1] = kernel.shared_bytes as i32;
    // Registers, PTX version and version of the code. Registers are unknown before it is compiled.
    (attributes[4], attributes[5], attributes[6]) = (32, capability, capability);
    attributes[8] = SHARED_BYTES_DEFAULT as i32;
    KernelFacts { params: kernel.params.clone(), attributes }
}
