//! The versions of the runtime that the program and its libraries were built for, by the names
//! under which they loaded this library. Some structs and arguments differ between versions, and a
//! call does not say which version its caller was built for.

use crate::error::Code;
use atoll_cuda_library::loaded;

/// The names under which programs look for the runtime, and the version of each: 12090 is 12.9.
const NAMES: [(&str, i32); 3] = [("libcudart.so.13", 13000), ("libcudart.so.12", 12090), ("libcudart.so.11.0", 11080)];

/// The versions that are loaded, newest first. If the program loaded the runtime under another
/// name, the newest known version. Names that link to one file count as the newest of them. The
/// result is not cached, since the program may load a further version later.
fn versions() -> impl Iterator<Item = i32> {
    let mut known = Vec::new();
    let mut found = NAMES.into_iter().filter_map(move |(name, version)| {
        let file = loaded(name).filter(|file| !known.contains(file))?;
        known.push(file);
        Some(version)
    });
    let first = found.next().unwrap_or(NAMES[0].1);
    std::iter::once(first).chain(found)
}

/// The newest version that is loaded.
pub(crate) fn newest() -> i32 {
    versions().next().unwrap_or(NAMES[0].1)
}

/// The oldest version that is loaded. Its structs are the smallest that any caller can have.
pub(crate) fn oldest() -> i32 {
    versions().last().unwrap_or(NAMES[0].1)
}

/// Whether the callers were built for this version or a newer one, whose arguments differ from those
/// of older ones.
///
/// # Errors
/// If callers of both kinds are loaded.
pub(crate) fn since(version: i32) -> Result<bool, Code> {
    match (oldest() >= version, newest() >= version) {
        (true, _) => Ok(true),
        (false, false) => Ok(false),
        (false, true) => Err(Code::NOT_SUPPORTED),
    }
}
