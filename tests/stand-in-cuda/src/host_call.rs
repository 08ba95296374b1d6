//! Functions of the program that streams call.

use std::ffi::c_void;

/// A function of the program that a stream is to call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the header says that the function is called on a thread of the driver's.
unsafe impl Send for HostCall {}
// SAFETY: it is only called by the thread of its stream.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub(crate) fn new(function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> HostCall {
        HostCall { function, data }
    }

    pub(crate) fn call(&self) {
        // SAFETY: the program gave the function for this value.
        unsafe { (self.function)(self.data) };
    }
}
