//! Which libraries the process has loaded. A program loads one of ours by the name of the version for
//! which it was built.

use libloading::os::unix::Library;
use std::ffi::c_void;

/// `RTLD_NOLOAD`: find a library that is loaded already, and load none.
const NO_LOAD: i32 = libc::RTLD_NOLOAD | libc::RTLD_LAZY;

/// The dynamic linker's handle of a library that is loaded under this name. It is the same for all names
/// of a file.
pub fn loaded(name: &str) -> Option<*mut c_void> {
    // SAFETY: nothing is loaded, so no code of a library runs.
    let handle = unsafe { Library::open(Some(name), NO_LOAD) }.ok()?.into_raw();
    // SAFETY: the handle was opened above; this closes it, and the program keeps the library.
    drop(unsafe { Library::from_raw(handle) });
    Some(handle)
}

/// Whether a library is loaded under this name.
pub fn is_loaded(name: &str) -> bool {
    loaded(name).is_some()
}
