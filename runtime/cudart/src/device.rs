//! Devices: the primary context of each, and the current device of each thread.

use crate::driver::{Driver, driver};
use crate::error::Code;
use crate::loaded::forget;
use atoll_cuda_api::types::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The device that this thread has chosen.
    static CHOSEN: Cell<CUdevice> = const { Cell::new(0) };
}

/// The primary contexts that have been retained, by device.
static PRIMARY: Mutex<BTreeMap<CUdevice, CUcontext>> = Mutex::new(BTreeMap::new());

fn primaries() -> MutexGuard<'static, BTreeMap<CUdevice, CUcontext>> {
    PRIMARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver, and the context that is current in this thread.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CUcontext,
}

/// The current context: the one that the program has set, or the primary context of the thread's
/// device, which becomes current. The primary context also replaces a context that no longer
/// exists, since another thread may have reset the device.
pub(crate) fn current() -> Result<Current, Code> {
    let driver = driver()?;
    let mut context = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut context)?;
    if context == CUcontext::NULL || has_ended(driver) {
        context = primary(driver, chosen())?;
        driver.cuCtxSetCurrent(context)?;
    }
    Ok(Current { driver, context })
}

/// Whether the context that is current in this thread no longer exists.
fn has_ended(driver: &Driver) -> bool {
    let flags = driver.cuCtxGetFlags(&mut 0);
    matches!(flags, Err(Code::CONTEXT_IS_DESTROYED | Code::INVALID_CONTEXT))
}

/// The device that this thread's calls use.
pub(crate) fn chosen() -> CUdevice {
    // The thread-local value is gone while the thread ends; device 0 then.
    CHOSEN.try_with(Cell::get).unwrap_or(0)
}

/// Sets the device that this thread's calls use.
pub(crate) fn choose(ordinal: CUdevice) -> Result<(), Code> {
    let driver = driver()?;
    check(driver, ordinal)?;
    let context = primary(driver, ordinal)?;
    driver.cuCtxSetCurrent(context)?;
    CHOSEN.try_with(|chosen| chosen.set(ordinal)).map_err(|_| Code::UNKNOWN)
}

/// Retains the primary context of a device. The thread's device does not change.
pub(crate) fn initialize(ordinal: CUdevice, device_flags: Option<c_uint>) -> Result<(), Code> {
    let driver = driver()?;
    check(driver, ordinal)?;
    if let Some(flags) = device_flags {
        driver.cuDevicePrimaryCtxSetFlags_v2(ordinal, flags)?;
    }
    primary(driver, ordinal).map(drop)
}

/// Returns an error if there is no such device.
pub(crate) fn check(driver: &Driver, ordinal: CUdevice) -> Result<(), Code> {
    let mut count = 0;
    driver.cuDeviceGetCount(&mut count)?;
    if (0..count).contains(&ordinal) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

/// Resets the primary context of the thread's device, whether this library or the program retained
/// it. Modules that were loaded into it are dropped here even if the driver returns an error.
pub(crate) fn reset() -> Result<(), Code> {
    let driver = driver()?;
    let device = chosen();
    let mut primaries = primaries();
    let mut context = CUcontext::NULL;
    let is_retained = is_active(driver, device) && driver.cuDevicePrimaryCtxRetain(&mut context, device).is_ok();
    let ended = primaries.remove(&device).into_iter().chain(is_retained.then_some(context));
    let unset = driver.cuCtxSetCurrent(CUcontext::NULL);
    let reset = driver.cuDevicePrimaryCtxReset_v2(device);
    ended.for_each(forget);
    reset.and(unset)
}

/// The primary context of a device. It is retained again if the device was reset, which the program
/// can also do by a call to the driver.
fn primary(driver: &Driver, device: CUdevice) -> Result<CUcontext, Code> {
    let mut primaries = primaries();
    if let Some(context) = primaries.get(&device) {
        if is_active(driver, device) {
            return Ok(*context);
        }
        forget(*context);
    }
    let mut context = CUcontext::NULL;
    driver.cuDevicePrimaryCtxRetain(&mut context, device)?;
    primaries.insert(device, context);
    Ok(context)
}

/// Whether the primary context of a device exists; true if the driver cannot say.
fn is_active(driver: &Driver, device: CUdevice) -> bool {
    let (mut flags, mut is_active) = (0, 1);
    driver.cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active).is_err() || is_active != 0
}
