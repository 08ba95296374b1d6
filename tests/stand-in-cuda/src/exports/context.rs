//! Contexts.

use super::arguments::Out;
use super::entry_points;
use crate::device::PRIORITY_MIN;
use crate::driver::{Driver, change_contexts, current_handle};
use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::types::*;

/// `CU_LIMIT_*` are below this. Limits are accepted without effect: stacks, heaps and printed text
/// always have enough space.
const LIMITS_END: CUlimit = 8;

entry_points! { CONTEXT:
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) {
        let driver = Driver::get()?;
        context.is_wanted()?;
        context.set(driver.retain_primary(driver.check_ordinal(device)?)?.raw())
    }

    fn cuDevicePrimaryCtxRelease(device: CUdevice) {
        release(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        release(device)
    }

    fn cuDevicePrimaryCtxReset(device: CUdevice) {
        reset(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        reset(device)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, _flags: c_uint) {
        Driver::get()?.check_ordinal(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = Driver::get()?;
        let ordinal = driver.check_ordinal(device)?;
        flags.set(0)?;
        active.set(driver.is_primary_active(ordinal).into())
    }

    fn cuCtxCreate_v2(context: Out<CUcontext>, _flags: c_uint, device: CUdevice) {
        let driver = Driver::get()?;
        context.is_wanted()?;
        let handle = driver.create_context(driver.check_ordinal(device)?)?;
        change_contexts(|contexts| contexts.push(handle));
        context.set(handle.raw())
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        let driver = Driver::get()?;
        let context = driver.context(Handle::of(context))?;
        if context.is_primary {
            return Err(Status::InvalidContext);
        }
        driver.contexts.remove(context.handle)?;
        driver.destroy(&context);
        // Removed from this thread's stack only if it is on top. Elsewhere, its next use returns an
        // error.
        change_contexts(|contexts| contexts.pop_if(|top| *top == context.handle));
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let driver = Driver::get()?;
        if context != CUcontext::NULL {
            driver.context(Handle::of(context))?;
        }
        change_contexts(|contexts| {
            contexts.pop();
            contexts.extend((context != CUcontext::NULL).then_some(Handle::of(context)));
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        Driver::get()?;
        context.set(current_handle().map_or(CUcontext::NULL, Handle::raw))
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        Driver::get()?.context(Handle::of(context))?;
        change_contexts(|contexts| contexts.push(Handle::of(context)));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<CUcontext>) {
        Driver::get()?;
        let handle = change_contexts(Vec::pop).ok_or(Status::InvalidContext)?;
        context.set_if_wanted(handle.raw());
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<CUdevice>) {
        device.set(Driver::get()?.current()?.device.ordinal as c_int)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        Driver::get()?.current()?;
        flags.set(0)
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: Out<c_uint>) {
        let driver = Driver::get()?;
        if context == CUcontext::NULL { driver.current() } else { driver.context(Handle::of(context)) }?;
        version.set(3020)
    }

    fn cuCtxGetId(context: CUcontext, id: Out<c_ulonglong>) {
        let driver = Driver::get()?;
        let context = if context == CUcontext::NULL { driver.current() } else { driver.context(Handle::of(context)) }?;
        id.set(context.handle.0)
    }

    fn cuCtxSynchronize() {
        Driver::get()?.current()?.synchronize()
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        Driver::get()?.current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(PRIORITY_MIN);
        Ok(())
    }

    fn cuCtxSetLimit(limit: CUlimit, _value: usize) {
        Driver::get()?.current()?;
        if (0..LIMITS_END).contains(&limit) { Ok(()) } else { Err(Status::UnsupportedLimit) }
    }
}

fn release(device: CUdevice) -> Result<(), Status> {
    let driver = Driver::get()?;
    driver.release_primary(driver.check_ordinal(device)?)
}

fn reset(device: CUdevice) -> Result<(), Status> {
    let driver = Driver::get()?;
    driver.reset_primary(driver.check_ordinal(device)?)
}
