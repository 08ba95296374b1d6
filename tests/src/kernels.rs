//! The cache of native code that the tests of one run share.
//!
//! Many tests compile the same kernels. `make test` and `make test-full` set [`FOLDER`] to an empty
//! folder, and LLVM compiles each kernel once. Without the variable every test compiles its own.
//! The digest of an entry covers everything that LLVM's output depends on, so a test gets the same
//! code from the cache as without it.

use atoll_kgraph::DiskCache;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The environment variable with the folder. The stand-in for CUDA reads it, too.
const FOLDER: &str = "ATOLL_TEST_KERNELS";

/// Maximum size in bytes, the same as in the programs that share the folder.
const BYTES_MAX: u64 = 1 << 30;

/// The cache, if there is one.
pub fn kernel_cache() -> Option<Arc<DiskCache>> {
    Some(Arc::new(DiskCache::new(folder()?, "o", BYTES_MAX)))
}

/// Lets programs use the cache of this run. `caches` is their `$XDG_CACHE_HOME`. Does nothing without a
/// cache, or if the programs have a cache already.
///
/// # Errors
/// The link to the cache cannot be made.
pub fn share_kernels(caches: &Path) -> io::Result<()> {
    let Some(folder) = folder() else { return Ok(()) };
    let place = caches.join("atoll/kernels");
    if place.symlink_metadata().is_ok() {
        return Ok(());
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(caches.join("atoll"))?;
    std::os::unix::fs::symlink(folder, place)
}

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join("host"))
}
