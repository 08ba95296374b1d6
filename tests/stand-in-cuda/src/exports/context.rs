//! Contexts.

use super::arguments::Out;
use super::entry_points;
use crate::device::PRIORITY_MIN;
use crate::driver::{Driver, change_contexts, current_handle};
use crate::status::Status;
use crate::table::Handle;
use std::ffi::{c_int, c_uint};

/// `CU_LIMIT_*` are below this. They are taken and change nothing: stacks, heaps and printed text have the room that they need.
const LIMITS_END: c_uint = 8;

entry_points! { CONTEXT:
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        let driver = Driver::get()?;
        context.is_wanted()?;
        context.set(driver.retain_primary(driver.check_ordinal(device)?)?.0)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let driver = Driver::get()?;
        driver.release_primary(driver.check_ordinal(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        let driver = Driver::get()?;
        driver.reset_primary(driver.check_ordinal(device)?)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) {
        Driver::get()?.check_ordinal(device).map(drop)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = Driver::get()?;
        let ordinal = driver.check_ordinal(device)?;
        flags.set(0)?;
        active.set(driver.is_primary_active(ordinal).into())
    }

    fn cuCtxCreate_v2(context: Out<u64>, _flags: c_uint, device: c_int) {
        let driver = Driver::get()?;
        context.is_wanted()?;
        let handle = driver.create_context(driver.check_ordinal(device)?)?;
        change_contexts(|contexts| contexts.push(handle));
        context.set(handle.0)
    }

    fn cuCtxDestroy_v2(context: u64) {
        let driver = Driver::get()?;
        let context = driver.context(Handle(context))?;
        if context.is_primary {
            return Err(Status::InvalidContext);
        }
        driver.contexts.remove(context.handle)?;
        context.destroy();
        // It goes from this thread only where it is on top; elsewhere it is found to be gone.
        change_contexts(|contexts| contexts.pop_if(|top| *top == context.handle));
        Ok(())
    }

    fn cuCtxSetCurrent(context: u64) {
        let driver = Driver::get()?;
        if context != 0 {
            driver.context(Handle(context))?;
        }
        change_contexts(|contexts| {
            contexts.pop();
            contexts.extend((context != 0).then_some(Handle(context)));
        });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        Driver::get()?;
        context.set(current_handle().map_or(0, |handle| handle.0))
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        Driver::get()?.context(Handle(context))?;
        change_contexts(|contexts| contexts.push(Handle(context)));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        Driver::get()?;
        let handle = change_contexts(Vec::pop).ok_or(Status::InvalidContext)?;
        context.set_if_wanted(handle.0);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(Driver::get()?.current()?.device.ordinal as c_int)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        Driver::get()?.current()?;
        flags.set(0)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<c_uint>) {
        let driver = Driver::get()?;
        if context == 0 { driver.current() } else { driver.context(Handle(context)) }?;
        version.set(3020)
    }

    fn cuCtxGetId(context: u64, id: Out<u64>) {
        let driver = Driver::get()?;
        let context = if context == 0 { driver.current() } else { driver.context(Handle(context)) }?;
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

    fn cuCtxSetLimit(limit: c_uint, _value: usize) {
        Driver::get()?.current()?;
        if limit < LIMITS_END { Ok(()) } else { Err(Status::UnsupportedLimit) }
    }
}
