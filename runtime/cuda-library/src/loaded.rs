//! Which libraries the process has loaded. A program loads one of ours by the name of the version for
//! which it was built.

use libloading::os::unix::Library;

/// `RTLD_NOLOAD`: find a library that is loaded already, and load none.
const NO_LOAD: i32 = libc::RTLD_NOLOAD | libc::RTLD_LAZY;

/// Whether a library is loaded under this name.
pub fn is_loaded(name: &str) -> bool {
    // SAFETY: nothing is loaded, so no code of a library runs; dropping the handle closes it, and
    // the program keeps the library.
    unsafe { Library::open(Some(name), NO_LOAD) }.is_ok()
}
