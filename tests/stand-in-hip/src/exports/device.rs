//! The library and its devices.

use super::{entry_points, put, take_last_error};
use crate::runtime::Runtime;
use crate::status::Status;
use atoll_hip_api::constants::{
    CLOCK_RATE, COMPUTE_MODE, MAX_SHARED_MEMORY_PER_BLOCK, MULTIPROCESSOR_COUNT, WARP_SIZE,
};
use atoll_hip_api::types::*;

/// LDS of a block in bytes.
pub(super) const LDS_BYTES: u32 = 64 << 10;

const NAME: &str = "stand-in";

/// The stream priorities: ROCm has three.
const LOWEST: c_int = 1;
pub(super) const HIGHEST: c_int = -1;

entry_points! { DEVICE:
    fn hipInit(flags: c_uint) {
        let runtime = Runtime::get()?;
        match (flags, runtime.count()) {
            (1.., _) => Err(Status::InvalidValue),
            // Without a device, Debian's 5.2.3 returns `hipErrorInvalidDevice` and newer releases
            // `hipErrorNoDevice`.
            (0, 0) if runtime.options.rocm.0 < 6 => Err(Status::InvalidDevice),
            (0, 0) => Err(Status::NoDevice),
            (0, _) => Ok(()),
        }
    }

    fn hipDriverGetVersion(driver_version: *mut c_int) {
        // SAFETY: as the caller guarantees.
        unsafe { put(driver_version, Runtime::get()?.options.version()) }
    }

    fn hipRuntimeGetVersion(runtime_version: *mut c_int) {
        // SAFETY: as the caller guarantees.
        unsafe { put(runtime_version, Runtime::get()?.options.version()) }
    }

    fn hipGetDeviceCount(count: *mut c_int) {
        let devices = Runtime::get()?.count();
        // SAFETY: as the caller guarantees.
        unsafe { put(count, devices)? };
        if devices == 0 { Err(Status::NoDevice) } else { Ok(()) }
    }

    fn hipSetDevice(device: c_int) {
        Runtime::get()?.set_current(device)
    }

    fn hipGetDevice(device: *mut c_int) {
        // SAFETY: as the caller guarantees.
        unsafe { put(device, Runtime::get()?.current()?.ordinal as c_int) }
    }

    fn hipDeviceGetName(name: *mut c_char, room: c_int, device: hipDevice_t) {
        Runtime::get()?.device(device)?;
        // SAFETY: as the caller guarantees.
        unsafe { put_text(name, room, NAME) }
    }

    fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t) {
        let ordinal = Runtime::get()?.device(device)?.ordinal;
        // SAFETY: as the caller guarantees.
        unsafe { put(uuid, hipUUID { bytes: [0xa0 + ordinal as u8; 16] }) }
    }

    fn hipDeviceGetPCIBusId(pci_bus_id: *mut c_char, room: c_int, device: c_int) {
        let ordinal = Runtime::get()?.device(device)?.ordinal;
        // SAFETY: as the caller guarantees.
        unsafe { put_text(pci_bus_id, room, &format!("0000:{:02x}:00.0", ordinal + 1)) }
    }

    fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int) {
        let runtime = Runtime::get()?;
        runtime.device(device)?;
        let number = match attribute {
            CLOCK_RATE => 1_700_000,
            COMPUTE_MODE => 0,
            MULTIPROCESSOR_COUNT => runtime.options.compute_units as c_int,
            MAX_SHARED_MEMORY_PER_BLOCK => LDS_BYTES as c_int,
            WARP_SIZE => runtime.options.wave_lanes(),
            _ => return Err(Status::InvalidValue),
        };
        // SAFETY: as the caller guarantees.
        unsafe { put(value, number) }
    }

    fn hipGetDeviceProperties(properties: *mut hipDeviceProp_tR0000, device: c_int) {
        let runtime = Runtime::get()?;
        runtime.device(device)?;
        let value = hipDeviceProp_tR0000 {
            name: text(NAME),
            total_global_mem: runtime.options.memory_bytes as usize,
            between: [0; 132],
            gcn_arch_name: text(&runtime.options.full_architecture()),
            rest: [0; 140],
        };
        // SAFETY: as the caller guarantees.
        unsafe { put(properties, value) }
    }

    fn hipGetDevicePropertiesR0600(properties: *mut hipDeviceProp_tR0600, device: c_int) {
        let runtime = Runtime::get()?;
        if runtime.options.rocm.0 < 6 {
            return Err(Status::NotSupported);
        }
        runtime.device(device)?;
        let value = hipDeviceProp_tR0600 {
            name: text(NAME),
            identity: [0; 32],
            total_global_mem: runtime.options.memory_bytes as usize,
            between: [0; 864],
            gcn_arch_name: text(&runtime.options.full_architecture()),
            rest: [0; 56],
        };
        // SAFETY: as the caller guarantees.
        unsafe { put(properties, value) }
    }

    fn hipDeviceGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int) {
        // SAFETY: as the caller guarantees.
        unsafe {
            put(least_priority, LOWEST)?;
            put(greatest_priority, HIGHEST)
        }
    }

    fn hipDeviceSynchronize() {
        Runtime::get()?.current()?.synchronize_all()
    }

    fn hipGetLastError() {
        take_last_error()
    }

    fn hipResetWavefronts() {
        let runtime = Runtime::get()?;
        if runtime.options.reset_is_fatal {
            std::process::abort();
        }
        if !runtime.options.resets_waves {
            return Err(Status::NotSupported);
        }
        runtime.current()?.reset_waves(false).map(drop)
    }
}

/// A NUL-terminated text in a field.
fn text(text: &str) -> [u8; 256] {
    let mut field = [0; 256];
    field.iter_mut().zip(text.bytes().take(255)).for_each(|(to, from)| *to = from);
    field
}

/// Writes as much of a text as fits, and a NUL.
///
/// # Safety
/// The pointer must be null or the address of `room` bytes.
unsafe fn put_text(to: *mut c_char, room: c_int, text: &str) -> Result<(), Status> {
    let room = usize::try_from(room).ok().filter(|room| *room > 0 && !to.is_null()).ok_or(Status::InvalidValue)?;
    for (index, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        // SAFETY: at most `room` bytes, as the caller guarantees.
        unsafe { to.add(index).write(byte as c_char) };
    }
    Ok(())
}
