//! A device in use, made current on every thread that uses it.

use crate::driver::Driver;
use crate::error::{HipError, status};
use crate::functions::{Functions, Status};
use crate::gpu::Gpu;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The number of the context whose device is current on this thread; 0 if there is none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// A device in use by this process. HIP has one context per device and process; calls apply to the
/// device that is current on their thread.
#[derive(Debug)]
pub struct Context {
    gpu: Gpu,
    /// A unique number: two libraries may both have a device 0.
    number: u64,
}

impl Context {
    pub(crate) fn new(gpu: Gpu) -> Result<Arc<Context>, HipError> {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let context = Context { gpu, number: TAKEN.fetch_add(1, Ordering::Relaxed) + 1 };
        context.enter()?;
        Ok(Arc::new(context))
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits for all work of this process on the device.
    pub fn synchronize(&self) -> Result<(), HipError> {
        // SAFETY: takes no arguments.
        self.call("hipDeviceSynchronize", |f| unsafe { (f.device_sync)() })
    }

    /// The highest stream priority, a negative number or 0, which is the usual one.
    pub fn highest_priority(&self) -> Result<i32, HipError> {
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: writes two ints to the given addresses.
        self.call("hipDeviceGetStreamPriorityRange", |f| unsafe { (f.priority_range)(&mut lowest, &mut highest) })?;
        Ok(highest)
    }

    /// Free and total device memory in bytes.
    pub fn memory_bytes(&self) -> Result<(u64, u64), HipError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers to the given addresses.
        self.call("hipMemGetInfo", |f| unsafe { (f.memory_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Kills all running waves of this process, on REEF's runtime. Memory, streams and modules
    /// stay; each kernel that ran ends without a part of its blocks, and queued kernels start as
    /// usual.
    ///
    /// # Errors
    /// `hipErrorNotSupported` on other libraries, or what the library answers.
    pub fn reset_waves(&self) -> Result<(), HipError> {
        // SAFETY: takes no arguments; memory that kernels write is only accessed by atomics or
        // after they have ended.
        self.call("hipResetWavefronts", |f| f.reset_waves.map_or(status::NOT_SUPPORTED, |reset| unsafe { reset() }))
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.gpu.driver
    }

    /// Calls a function of the library with this device current.
    pub(crate) fn call(&self, name: &'static str, call: impl FnOnce(&Functions) -> Status) -> Result<(), HipError> {
        self.enter()?;
        self.driver().check(name, call(&self.driver().functions))
    }

    /// Like `call`, to free a handle. Ignores errors: if the device is lost, its handles are gone.
    pub(crate) fn release(&self, call: impl FnOnce(&Functions) -> Status) {
        if self.enter().is_ok() {
            call(&self.driver().functions);
        }
    }

    fn enter(&self) -> Result<(), HipError> {
        if CURRENT.get() == self.number {
            return Ok(());
        }
        // SAFETY: takes an ordinal.
        self.driver().check("hipSetDevice", unsafe { (self.driver().functions.device_set)(self.gpu.ordinal()) })?;
        CURRENT.set(self.number);
        Ok(())
    }
}
