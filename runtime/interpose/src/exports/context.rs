//! Contexts.

use super::device::check_device;
use super::entry_points;
use crate::arguments::{In, Out};
use crate::contexts::{PRIMARY, change_stack};
use crate::handles::{Kind, handle, number};
use crate::shim::Shim;
use atoll_cuda_api::types::*;
use atoll_session::Code;
use std::sync::MutexGuard;

/// Values of `CU_LIMIT_*` are below this. Limits are accepted and not sent to the server: they are
/// hints.
const LIMITS_END: CUlimit = 8;
/// `CU_LIMIT_STACK_SIZE` and its default, `CU_LIMIT_PRINTF_FIFO_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
const LIMITS: [usize; 3] = [1024, 1 << 20, 8 << 20];

entry_points! { CONTEXT:
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) {
        let mut shim = Shim::get()?;
        check_device(device)?;
        context.is_wanted()?;
        shim.contexts.retain();
        context.set(handle(Kind::Context, PRIMARY))
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

    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) {
        let mut shim = Shim::get()?;
        check_device(device)?;
        shim.contexts.set_primary_flags(flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let shim = Shim::get()?;
        check_device(device)?;
        let (value, is_active) = shim.contexts.primary();
        flags.set(value)?;
        active.set(is_active.into())
    }

    fn cuCtxCreate_v2(context: Out<CUcontext>, flags: c_uint, device: CUdevice) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(
        context: Out<CUcontext>, _params: In<CUexecAffinityParam>, count: c_int, flags: c_uint, device: CUdevice
    ) {
        if count == 0 { create(context, flags, device) } else { Err(Code::NOT_SUPPORTED) }
    }

    fn cuCtxCreate_v4(context: Out<CUcontext>, params: In<CUctxCreateParams>, flags: c_uint, device: CUdevice) {
        if !params.is_null() {
            let params = params.get(0)?;
            if params.exec_affinity_count != 0 || !params.cig.is_null() {
                return Err(Code::NOT_SUPPORTED);
            }
        }
        create(context, flags, device)
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        let context = number(Kind::Context, context).map_err(|_| Code::INVALID_CONTEXT)?;
        let mut shim = Shim::get()?;
        shim.contexts.destroy(context)?;
        let mut shim = free_values(shim, context)?;
        // Removed from this thread's stack only if it is on top. Elsewhere, its next use returns an
        // error.
        change_stack(|stack| stack.pop_if(|top| *top == context))?;
        shim.destroy_context(context)
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let shim = Shim::get()?;
        let context = existing(&shim, context)?;
        change_stack(|stack| {
            stack.pop();
            stack.extend(context);
        })
    }

    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        Shim::check()?;
        let current = change_stack(|stack| stack.last().copied())?;
        context.set(current.map_or(CUcontext::NULL, |number| handle(Kind::Context, number)))
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        let shim = Shim::get()?;
        let context = existing(&shim, context)?.ok_or(Code::INVALID_CONTEXT)?;
        change_stack(|stack| stack.push(context))
    }

    fn cuCtxPopCurrent_v2(context: Out<CUcontext>) {
        Shim::check()?;
        let popped = change_stack(Vec::pop)?.ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(handle(Kind::Context, popped));
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<CUdevice>) {
        Shim::get()?.contexts.current()?;
        device.set(0)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        let shim = Shim::get()?;
        flags.set(shim.contexts.flags(shim.contexts.current()?)?)
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: Out<c_uint>) {
        let shim = Shim::get()?;
        if existing(&shim, context)?.is_none() {
            shim.contexts.current()?;
        }
        version.set(3020)
    }

    fn cuCtxGetId(context: CUcontext, id: Out<c_ulonglong>) {
        let shim = Shim::get()?;
        id.set(existing(&shim, context)?.map_or_else(|| shim.contexts.current(), Ok)?.into())
    }

    fn cuCtxSynchronize() {
        let (mut shim, _) = Shim::current()?;
        shim.refuse_all_captured()?;
        let waited = shim.client.synchronize();
        shim.waited(waited)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        let (shim, _) = Shim::current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(shim.client.facts().priority);
        Ok(())
    }

    fn cuCtxSetLimit(limit: CUlimit, _value: usize) {
        Shim::check_current()?;
        if (0..LIMITS_END).contains(&limit) { Ok(()) } else { Err(Code::UNSUPPORTED_LIMIT) }
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: CUlimit) {
        Shim::check_current()?;
        let index = usize::try_from(limit).map_err(|_| Code::UNSUPPORTED_LIMIT)?;
        value.set(*LIMITS.get(index).ok_or(Code::UNSUPPORTED_LIMIT)?)
    }

    fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) {
        Shim::check_current()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(_config: CUfunc_cache) {
        Shim::check_current()
    }

    fn cuCtxResetPersistingL2Cache() {
        Shim::check_current()
    }
}

/// Creates a context and makes it current.
fn create(context: Out<CUcontext>, flags: c_uint, device: CUdevice) -> Result<(), Code> {
    let mut shim = Shim::get()?;
    check_device(device)?;
    context.is_wanted()?;
    let created = shim.contexts.create(flags)?;
    change_stack(|stack| stack.push(created))?;
    context.set(handle(Kind::Context, created))
}

/// The number of a context that exists. `None` for null.
pub(super) fn existing(shim: &Shim, context: CUcontext) -> Result<Option<u32>, Code> {
    if context == CUcontext::NULL {
        return Ok(None);
    }
    let context = number(Kind::Context, context).map_err(|_| Code::INVALID_CONTEXT)?;
    shim.contexts.check_usable(context)?;
    Ok(Some(context))
}

fn release(device: CUdevice) -> Result<(), Code> {
    let mut shim = Shim::get()?;
    check_device(device)?;
    if shim.contexts.release()? { destroy_primary(shim) } else { Ok(()) }
}

fn reset(device: CUdevice) -> Result<(), Code> {
    let mut shim = Shim::get()?;
    check_device(device)?;
    if shim.contexts.reset() { destroy_primary(shim) } else { Ok(()) }
}

fn destroy_primary(shim: MutexGuard<'static, Shim>) -> Result<(), Code> {
    free_values(shim, PRIMARY)?.destroy_context(PRIMARY)
}

/// Frees the values that the runtime keeps for a context, by functions of the program, which may
/// call the driver.
fn free_values(mut shim: MutexGuard<'static, Shim>, context: u32) -> Result<MutexGuard<'static, Shim>, Code> {
    let values = shim.storage.take(context);
    drop(shim);
    values.into_iter().for_each(|value| value.free(handle(Kind::Context, context)));
    Shim::get()
}
