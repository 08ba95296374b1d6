//! Host callbacks: functions of the program that a stream calls.

use std::ffi::c_void;

/// A function of the program, to be called by a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the driver's reference says that the function is called on a thread of the driver.
unsafe impl Send for HostCall {}
// SAFETY: only the thread of its stream calls it.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub(crate) fn new(function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> HostCall {
        HostCall { function, data }
    }

    pub(crate) fn call(&self) {
        // SAFETY: the program passed the function with this argument.
        unsafe { (self.function)(self.data) };
    }
}
