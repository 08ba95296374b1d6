//! What the driver hands out.

use std::ffi::c_void;
use std::ptr;

/// A pointer that only the driver looks behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

impl Handle {
    pub(crate) const NULL: Handle = Handle(ptr::null_mut());
}

// SAFETY: the driver's functions may be called from any thread with any handle, also at once; it locks what has to be locked.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}
