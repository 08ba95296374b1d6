//! Contexts, made current on every thread that uses them.

use crate::driver::{Driver, Gpu};
use crate::error::CudaError;
use crate::functions::{Functions, Status};
use atoll_cuda_api::types::{CUcontext, DriverHandle};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The number of the context that is current on this thread; 0 if there is none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// A device's primary context, which this retains; or a context of its own, which is destroyed when
/// this is dropped.
#[derive(Debug)]
pub struct Context {
    gpu: Gpu,
    handle: CUcontext,
    is_primary: bool,
    /// A unique number: the driver may reuse handles for later contexts.
    number: u64,
}

impl Context {
    pub(crate) fn retain(gpu: Gpu) -> Result<Arc<Context>, CudaError> {
        let mut handle = CUcontext::NULL;
        let retain = gpu.driver.functions.context_retain;
        // SAFETY: writes one handle to the given address.
        gpu.driver.check("cuDevicePrimaryCtxRetain", unsafe { retain(&mut handle, gpu.ordinal) })?;
        Ok(Arc::new(Context { gpu, handle, is_primary: true, number: next_number() }))
    }

    /// A context in addition to the primary one. A fault in one of them does not affect the other.
    pub(crate) fn create(gpu: Gpu) -> Result<Arc<Context>, CudaError> {
        let (mut handle, mut current) = (CUcontext::NULL, CUcontext::NULL);
        let functions = &gpu.driver.functions;
        // SAFETY: writes one handle to the given address.
        gpu.driver.check("cuCtxCreate", unsafe { (functions.context_create)(&mut handle, 0, gpu.ordinal) })?;
        // The call made the new context current; this makes the previous one current again.
        // SAFETY: writes one handle to the given address.
        gpu.driver.check("cuCtxPopCurrent", unsafe { (functions.context_pop)(&mut current) })?;
        Ok(Arc::new(Context { gpu, handle, is_primary: false, number: next_number() }))
    }

    /// The device of the context.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits for all work in the context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes no arguments.
        self.call("cuCtxSynchronize", |f| unsafe { (f.context_sync)() })
    }

    /// The highest stream priority, a negative number; 0 is the lowest.
    pub fn highest_priority(&self) -> Result<i32, CudaError> {
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: writes two ints to the given addresses.
        self.call("cuCtxGetStreamPriorityRange", |f| unsafe { (f.priority_range)(&mut lowest, &mut highest) })?;
        Ok(highest)
    }

    /// Free and total device memory in bytes.
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers to the given addresses.
        self.call("cuMemGetInfo", |f| unsafe { (f.memory_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Destroys everything in the primary context. Earlier handles become invalid; releasing them fails,
    /// which is ignored.
    pub fn reset(&self) -> Result<(), CudaError> {
        CURRENT.set(0);
        let reset = self.driver().functions.context_reset;
        // SAFETY: takes a device ordinal; handles into the context are only passed back to the
        // driver, which checks them.
        self.driver().check("cuDevicePrimaryCtxReset", unsafe { reset(self.gpu.ordinal) })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.gpu.driver
    }

    /// Calls a function of the driver with this context current.
    pub(crate) fn call(&self, name: &'static str, call: impl FnOnce(&Functions) -> Status) -> Result<(), CudaError> {
        self.enter()?;
        self.driver().check(name, call(&self.driver().functions))
    }

    /// Like `call`, to free a handle. Ignores errors: if the context is broken, its handles are
    /// gone.
    pub(crate) fn release(&self, call: impl FnOnce(&Functions) -> Status) {
        if self.enter().is_ok() {
            call(&self.driver().functions);
        }
    }

    fn enter(&self) -> Result<(), CudaError> {
        if CURRENT.get() == self.number {
            return Ok(());
        }
        // SAFETY: the handle is that of a retained context.
        self.driver().check("cuCtxSetCurrent", unsafe { (self.driver().functions.context_set)(self.handle) })?;
        CURRENT.set(self.number);
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if CURRENT.get() == self.number {
            CURRENT.set(0);
        }
        let functions = &self.driver().functions;
        if self.is_primary {
            // SAFETY: takes a device ordinal, and undoes one retain.
            unsafe { (functions.context_release)(self.gpu.ordinal) };
        } else {
            // SAFETY: the handle is ours and not used again: all other handles in the context keep
            // this alive.
            unsafe { (functions.context_destroy)(self.handle) };
        }
    }
}

/// A number for a context.
fn next_number() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    TAKEN.fetch_add(1, Ordering::Relaxed) + 1
}
