//! The driver and its devices.

use super::arguments::Out;
use super::entry_points;
use crate::device::SHARED_BYTES_MAX;
use crate::driver::Driver;
use crate::module::SHARED_BYTES_DEFAULT;
use crate::status::Status;
use crate::visible::Visible;
use atoll_cuda_api::types::*;

/// Attributes end before this number; those that are not listed are 0.
const ATTRIBUTES_END: c_int = 150;

entry_points! { DEVICE:
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::InvalidValue);
        }
        Driver::init()
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        // Works before `cuInit` too, when the options are not known yet.
        version.set(Driver::get().map_or(crate::options::Options::default().driver, |driver| driver.options.driver))
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(Driver::get()?.visible.len() as c_int)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: c_int) {
        Driver::get()?.check_ordinal(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: c_int, device: CUdevice) {
        let device = Driver::get()?.device_at(device)?;
        name.is_wanted()?;
        let room = usize::try_from(room).map_err(|_| Status::InvalidValue)?;
        name.set_text(&device.name(), room);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice) {
        uuid.set(Driver::get()?.device_at(device)?.gpu_uuid())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: CUdevice) {
        uuid.set(Driver::get()?.device_at(device)?.uuid())
    }

    fn cuDeviceGetPCIBusId(name: Out<c_char>, room: c_int, device: CUdevice) {
        let Visible { gpu, .. } = Driver::get()?.device_at(device)?;
        name.is_wanted()?;
        name.set_text(&format!("0000:{gpu:02x}:00.0"), usize::try_from(room).map_err(|_| Status::InvalidValue)?);
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        let driver = Driver::get()?;
        driver.check_ordinal(device)?;
        bytes.set(driver.options.memory_bytes as usize)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice) {
        let driver = Driver::get()?;
        driver.check_ordinal(device)?;
        major.set(driver.options.capability as c_int / 10)?;
        minor.set(driver.options.capability as c_int % 10)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: CUdevice_attribute, device: CUdevice) {
        let driver = Driver::get()?;
        let Visible { gpu, .. } = driver.device_at(device)?;
        value.set(attribute_of(driver, attribute, gpu)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice) {
        let driver = Driver::get()?;
        driver.check_ordinal(device)?;
        driver.check_ordinal(peer)?;
        can.set(0)
    }
}

/// A number about a device, by its number in `cuda.h`.
fn attribute_of(driver: &Driver, attribute: c_int, gpu: u32) -> Result<c_int, Status> {
    let options = &driver.options;
    Ok(match attribute {
        // Threads of a block; sizes of blocks and grids.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block, constant memory, a warp, pitch, registers of a block, kHz,
        // texture alignment.
        8 => SHARED_BYTES_DEFAULT as c_int,
        9 => 65_536,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65_536,
        13 | 36 => 1_000_000,
        14 => 512,
        16 => options.compute_units as c_int,
        17 => options.time_limit.is_some().into(),
        20 => options.compute_mode as c_int,
        33 => gpu as c_int,
        37 => 64,
        38 => 1 << 20,
        // Threads and blocks that fit on a compute unit: one block.
        39 => 1024,
        106 => 1,
        40 => 2,
        75 => options.capability as c_int / 10,
        76 => options.capability as c_int % 10,
        81 | 97 => SHARED_BYTES_MAX as c_int,
        // Concurrent copies, mapped host memory, concurrent kernels, unified addressing,
        // priorities, pageable memory access, registered memory by its host address, cooperative
        // launches, registration, host page tables, waits for 64-bit words and `NOR` waits.
        15 | 19 | 31 | 41 | 78 | 88 | 91 | 92 | 93 | 94 | 95 | 99 | 100 | 122 | 123 => 1,
        other if (1..ATTRIBUTES_END).contains(&other) => 0,
        _ => return Err(Status::InvalidValue),
    })
}
