//! Devices: a primary context for each, and the current device of each thread.

use crate::driver::{Driver, driver};
use crate::error::Code;
use atoll_cuda_api::types::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// The device that this thread has chosen.
    static CHOSEN: Cell<CUdevice> = const { Cell::new(0) };
}

/// The primary contexts that have been retained, by device.
static PRIMARY: Mutex<BTreeMap<CUdevice, CUcontext>> = Mutex::new(BTreeMap::new());

/// The driver, and the context that is current in this thread.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CUcontext,
}

/// The current context: the program's own, or the primary one of the thread's device, which is made
/// current.
pub(crate) fn current() -> Result<Current, Code> {
    let driver = driver()?;
    let mut context = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut context)?;
    if context == CUcontext::NULL {
        context = primary(driver, chosen())?;
        driver.cuCtxSetCurrent(context)?;
    }
    Ok(Current { driver, context })
}

/// The device of the calls of this thread.
pub(crate) fn chosen() -> CUdevice {
    // While a thread ends it is the first one.
    CHOSEN.try_with(Cell::get).unwrap_or(0)
}

/// Chooses the device of the calls of this thread.
pub(crate) fn choose(ordinal: CUdevice) -> Result<(), Code> {
    let driver = driver()?;
    check(driver, ordinal)?;
    let context = primary(driver, ordinal)?;
    driver.cuCtxSetCurrent(context)?;
    CHOSEN.try_with(|chosen| chosen.set(ordinal)).map_err(|_| Code::UNKNOWN)
}

/// An error if there is no such device.
pub(crate) fn check(driver: &Driver, ordinal: CUdevice) -> Result<(), Code> {
    let mut count = 0;
    driver.cuDeviceGetCount(&mut count)?;
    if (0..count).contains(&ordinal) { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

/// Ends the primary context of the thread's device. Returns the context, if there was one.
pub(crate) fn reset() -> Result<Option<CUcontext>, Code> {
    let driver = driver()?;
    let device = chosen();
    let ended = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
    driver.cuCtxSetCurrent(CUcontext::NULL)?;
    driver.cuDevicePrimaryCtxReset_v2(device)?;
    Ok(ended)
}

fn primary(driver: &Driver, device: CUdevice) -> Result<CUcontext, Code> {
    let mut primary = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = primary.get(&device) {
        return Ok(*context);
    }
    let mut context = CUcontext::NULL;
    driver.cuDevicePrimaryCtxRetain(&mut context, device)?;
    primary.insert(device, context);
    Ok(context)
}
