//! Which version of the runtime the program was built for: the name under which it loaded this
//! library. Some structs differ between versions.

use std::sync::OnceLock;

/// `RTLD_NOLOAD`: find a library that is loaded already, and load none.
const NO_LOAD: i32 = libc::RTLD_NOLOAD | libc::RTLD_LAZY;

/// The names under which programs look for the runtime, and the version of each: 12090 is 12.9.
const NAMES: [(&str, i32); 3] = [("libcudart.so.13", 13000), ("libcudart.so.12", 12090), ("libcudart.so.11.0", 11080)];

/// The version of the runtime; the newest if the program loaded it under another name.
pub(crate) fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let is_loaded = |name: &str| {
            // SAFETY: nothing is loaded, so no code of a library runs.
            unsafe { libloading::os::unix::Library::open(Some(name), NO_LOAD) }.is_ok()
        };
        NAMES.iter().find(|(name, _)| is_loaded(name)).map_or(NAMES[0].1, |(_, version)| *version)
    })
}
