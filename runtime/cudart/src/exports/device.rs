//! The driver, devices and their contexts, and channel descriptions.

use super::{clear_last, entry_points};
use crate::arguments::{In, Out};
use crate::device::{check, choose, chosen, current, initialize, reset};
use crate::driver::{driver, installed};
use crate::error::Code;
use crate::properties::{Layout, properties};
use crate::version::{newest, oldest};
use atoll_cuda_api::types::*;
use atoll_cuda_library::log_once;

/// `cudaInitDeviceFlagsAreValid`.
const DEVICE_FLAGS_ARE_VALID: c_uint = 1;

/// The bits of each component of an array's elements, and their kind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct ChannelFormat {
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    kind: c_int,
}

/// Builds the struct; there is no other effect.
#[unsafe(no_mangle)]
extern "C" fn cudaCreateChannelDesc(x: c_int, y: c_int, z: c_int, w: c_int, kind: c_int) -> ChannelFormat {
    ChannelFormat { x, y, z, w, kind }
}

entry_points! {
    /// The version is 0 without a driver, or with a session's driver that cannot reach its server.
    /// Neither is an error.
    fn cudaDriverGetVersion(of_driver: Out<c_int>) {
        of_driver.set(0)?;
        match installed().and_then(|driver| driver.cuDriverGetVersion(of_driver.raw())) {
            Err(Code::INSUFFICIENT_DRIVER | Code::NO_DEVICE) => Ok(()),
            result => result,
        }
    }

    fn cudaRuntimeGetVersion(of_runtime: Out<c_int>) {
        of_runtime.set(newest())
    }

    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.set(0)?;
        driver()?.cuDeviceGetCount(count.raw())
    }

    fn cudaGetDevice(device: Out<c_int>) {
        driver()?;
        device.set(chosen())
    }

    fn cudaSetDevice(device: c_int) {
        choose(device)
    }

    fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint) {
        initialize(device, Some(device_flags).filter(|_| flags & DEVICE_FLAGS_ARE_VALID != 0))
    }

    /// CUDA 12 calls `cudaGetDeviceProperties_v2` for its layout. If CUDA 11 and 13 are both
    /// loaded, the caller may be of either version, and the struct of 13 is larger than that of 11.
    fn cudaGetDeviceProperties(to: Out<u8>, device: c_int) {
        let layout = match (oldest(), newest()) {
            (oldest, newest) if oldest < 12000 && newest >= 13000 => {
                log_once(
                    "cudaGetDeviceProperties",
                    &"cudaGetDeviceProperties: the process has loaded libcudart.so.11.0 and libcudart.so.13, whose \
                      structs differ; it returns cudaErrorNotSupported; build all parts with one version of CUDA",
                );
                return Err(Code::NOT_SUPPORTED);
            }
            (_, newest) if newest >= 13000 => Layout::Thirteen,
            _ => Layout::Eleven,
        };
        write_properties(to, device, layout)
    }

    fn cudaGetDeviceProperties_v2(to: Out<u8>, device: c_int) {
        write_properties(to, device, Layout::Twelve)
    }

    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: CUdevice_attribute, device: c_int) {
        value.is_wanted()?;
        check(driver()?, device)?;
        driver()?.cuDeviceGetAttribute(value.raw(), attribute, device)
    }

    fn cudaDeviceGetPCIBusId(text: Out<c_char>, room: c_int, device: c_int) {
        text.is_wanted()?;
        driver()?.cuDeviceGetPCIBusId(text.raw(), room, device)
    }

    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, text: In<c_char>) {
        device.is_wanted()?;
        driver()?.cuDeviceGetByPCIBusId(device.raw(), text.raw())
    }

    fn cudaDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        can.is_wanted()?;
        driver()?.cuDeviceCanAccessPeer(can.raw(), device, peer)
    }

    fn cudaDeviceSynchronize() {
        current()?.driver.cuCtxSynchronize()
    }

    fn cudaThreadSynchronize() {
        current()?.driver.cuCtxSynchronize()
    }

    /// Also clears the sticky error of a fault, so that the device can be used again.
    fn cudaDeviceReset() {
        reset()?;
        clear_last();
        Ok(())
    }

    fn cudaThreadExit() {
        reset()?;
        clear_last();
        Ok(())
    }

    fn cudaSetDeviceFlags(flags: c_uint) {
        driver()?.cuDevicePrimaryCtxSetFlags_v2(chosen(), flags)
    }

    fn cudaGetDeviceFlags(flags: Out<c_uint>) {
        flags.is_wanted()?;
        current()?.driver.cuCtxGetFlags(flags.raw())
    }

    fn cudaDeviceSetLimit(limit: CUlimit, value: usize) {
        current()?.driver.cuCtxSetLimit(limit, value)
    }

    fn cudaDeviceGetLimit(value: Out<usize>, limit: CUlimit) {
        value.is_wanted()?;
        current()?.driver.cuCtxGetLimit(value.raw(), limit)
    }

    fn cudaDeviceSetCacheConfig(config: CUfunc_cache) {
        current()?.driver.cuCtxSetCacheConfig(config)
    }

    fn cudaDeviceGetCacheConfig(config: Out<CUfunc_cache>) {
        config.is_wanted()?;
        current()?.driver.cuCtxGetCacheConfig(config.raw())
    }

    /// A hint that current devices ignore.
    fn cudaDeviceSetSharedMemConfig(_config: c_int) {
        current().map(drop)
    }

    /// The size is four bytes, that of the banks of current devices.
    fn cudaDeviceGetSharedMemConfig(config: Out<c_int>) {
        current()?;
        config.set(1)
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?.driver.cuCtxGetStreamPriorityRange(least.raw(), greatest.raw())
    }

    /// No profiler is started.
    fn cudaProfilerStart() {
        current().map(drop)
    }

    fn cudaProfilerStop() {
        current().map(drop)
    }

    fn cudaGetDriverEntryPointByVersion(
        name: In<c_char>, entry: Out<*mut c_void>, of_driver: c_uint, flags: c_ulonglong, found: Out<c_int>
    ) also cudaGetDriverEntryPointByVersion_ptsz {
        entry_point(name, entry, of_driver as c_int, flags, Some(found))
    }

    /// Callers of CUDA 11 do not pass the last argument, so it is not written while CUDA 11 is
    /// loaded.
    fn cudaGetDriverEntryPoint(
        name: In<c_char>, entry: Out<*mut c_void>, flags: c_ulonglong, found: Out<c_int>
    ) also cudaGetDriverEntryPoint_ptsz {
        entry_point(name, entry, newest(), flags, Some(found).filter(|_| oldest() >= 12000))
    }
}

fn write_properties(to: Out<u8>, device: c_int, layout: Layout) -> Result<(), Code> {
    to.is_wanted()?;
    let driver = driver()?;
    check(driver, device)?;
    to.set_bytes(&properties(driver, device, layout)?)
}

/// Looks up an entry point of the driver. A missing one is reported in the status and is no error.
fn entry_point(
    name: In<c_char>,
    entry: Out<*mut c_void>,
    of_driver: c_int,
    flags: c_ulonglong,
    found: Option<Out<c_int>>,
) -> Result<(), Code> {
    entry.is_wanted()?;
    let mut status = 0;
    let driver = driver()?;
    match driver.cuGetProcAddress_v2(name.raw(), entry.raw(), of_driver, flags, &mut status) {
        Err(Code::SYMBOL_NOT_FOUND) if status != 0 => entry.set(std::ptr::null_mut())?,
        result => result?,
    }
    if let Some(found) = found {
        found.set_if_wanted(status);
    }
    Ok(())
}
