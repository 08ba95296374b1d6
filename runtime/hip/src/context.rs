//! A device in use, made current on every thread that uses it.

use crate::driver::Driver;
use crate::error::{HipError, status};
use crate::functions::{Functions, Status};
use crate::gpu::Gpu;
use crate::kfd::{Kfd, KfdError};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// The kernel driver's side of the device, opened when the library cannot kill waves.
    kfd: OnceLock<Result<Kfd, KfdError>>,
}

impl Context {
    pub(crate) fn new(gpu: Gpu) -> Result<Arc<Context>, HipError> {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed) + 1;
        let context = Context { gpu, number, kfd: OnceLock::new() };
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

    /// Kills all running waves of this process, by REEF's runtime or by Atoll's patch of the kernel
    /// driver, which does so on this device only. Memory, streams and modules stay; each kernel
    /// that ran ends without a part of its blocks, and queued kernels start as usual.
    ///
    /// # Errors
    /// `hipErrorNotSupported` if neither is there, or the error of the library or the kernel
    /// driver.
    pub fn reset_waves(&self) -> Result<(), HipError> {
        // SAFETY: takes no arguments; memory that kernels write is only accessed by atomics or
        // after they have ended.
        let reset = |f: &Functions| f.reset_waves.map_or(status::NOT_SUPPORTED, |reset| unsafe { reset() });
        match self.call("hipResetWavefronts", reset) {
            Err(error) if error.code == status::NOT_SUPPORTED => self.reset_by_kernel().map_err(of_kernel),
            answer => answer,
        }
    }

    /// Like [`Context::reset_waves`], by Atoll's patch of the kernel driver only. It never reaches
    /// another process, whereas REEF's runtime may.
    ///
    /// # Errors
    /// Why the kernel driver does not.
    pub fn reset_by_kernel(&self) -> Result<(), KfdError> {
        let open = || match self.gpu.pci_bus_id() {
            Ok(address) => Kfd::open(&address, self.driver().kernel_driver),
            Err(error) => Err(KfdError::NoGpu(error.to_string())),
        };
        self.kfd.get_or_init(open).as_ref().map_err(Clone::clone)?.reset_waves()
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

/// An error of the kernel driver as one of the library.
fn of_kernel(error: KfdError) -> HipError {
    let code = match error {
        KfdError::Absent(_) => status::NOT_SUPPORTED,
        KfdError::Lost => status::CONTEXT_IS_DESTROYED,
        _ => status::UNKNOWN,
    };
    HipError { call: "ATOLL_KFD_IOC_RESET_WAVES", code, name: error.to_string() }
}
