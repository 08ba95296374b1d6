//! Folders for caches and state, following the XDG base directory specification.

use std::path::PathBuf;

/// A cache folder of Atoll; `None` if neither XDG_CACHE_HOME nor HOME is set.
pub fn folder(name: &str) -> Option<PathBuf> {
    Some(xdg("XDG_CACHE_HOME", ".cache")?.join("atoll").join(name))
}

/// The state folder of Atoll; `None` if neither XDG_STATE_HOME nor HOME is set.
pub fn state_folder() -> Option<PathBuf> {
    Some(xdg("XDG_STATE_HOME", ".local/state")?.join("atoll"))
}

fn xdg(variable: &str, in_home: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable).or_else(|| Some(set("HOME")?.join(in_home)))
}

/// The cache of native kernel code, so that no kernel is compiled twice for the same block shape.
#[cfg(feature = "compiler")]
pub fn kernels() -> Option<std::sync::Arc<atoll_kgraph::DiskCache>> {
    /// Enough for hundreds of models at a few MiB each.
    const BYTES_MAX: u64 = 1 << 30;
    Some(std::sync::Arc::new(atoll_kgraph::DiskCache::new(folder("kernels")?, "o", BYTES_MAX)))
}
