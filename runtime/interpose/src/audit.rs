//! Redirects the program's searches for CUDA libraries to those of `atoll run`.
//!
//! The dynamic linker searches the `RPATH` of a program before the library path, and a program may
//! load a library by its full path. So NVIDIA's Python packages find each other's libraries first.
//! The linker asks the libraries in `LD_AUDIT` about each search (`man rtld-audit`) and takes the
//! path that they return. It keeps this copy of the library apart from the one that the program
//! calls.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;

/// The folder with the libraries of `atoll run`, under the names for which programs search.
const FOLDER_VARIABLE: &str = "ATOLL_LIBRARIES";

/// The path of each library by its name.
type Libraries = BTreeMap<Vec<u8>, CString>;

static LIBRARIES: OnceLock<Libraries> = OnceLock::new();

/// The dynamic linker calls this first. Returns the version of its interface, of which this file
/// uses what all versions have, or 0 to be called no more.
#[unsafe(no_mangle)]
extern "C" fn la_version(version: c_uint) -> c_uint {
    let has_any = catch_unwind(|| {
        let found = std::env::var_os(FOLDER_VARIABLE).map(|folder| libraries(Path::new(&folder)));
        !LIBRARIES.get_or_init(|| found.unwrap_or_default()).is_empty()
    });
    if has_any.unwrap_or(false) { version } else { 0 }
}

/// The dynamic linker calls this with the name of each library that it searches, and with each path
/// that it tries. Returns what it opens instead.
///
/// # Safety
/// The name must end with a NUL byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_objsearch(name: *const c_char, _cookie: *mut usize, _flag: c_uint) -> *mut c_char {
    // SAFETY: the dynamic linker passes a string.
    let searched = unsafe { CStr::from_ptr(name) };
    let found = catch_unwind(|| replacement(LIBRARIES.get()?, searched.to_bytes()));
    // The linker does not write to the path, and the table is never freed.
    found.ok().flatten().map_or(name, CStr::as_ptr).cast_mut()
}

/// The libraries in a folder.
fn libraries(folder: &Path) -> Libraries {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.file_name().as_bytes().to_vec(), entry.path()));
    let libraries = named.filter(|(name, _)| name.windows(3).any(|part| part == b".so"));
    libraries.filter_map(|(name, path)| Some((name, CString::new(path.as_os_str().as_bytes()).ok()?))).collect()
}

/// The path of the library whose name is the last part of what is searched.
fn replacement<'a>(libraries: &'a Libraries, searched: &[u8]) -> Option<&'a CStr> {
    let name = Path::new(OsStr::from_bytes(searched)).file_name()?;
    libraries.get(name.as_bytes()).map(CString::as_c_str)
}
