//! Where the XDG convention keeps what can be made again.

use std::path::PathBuf;

/// A folder of ours there; `None` where neither XDG_CACHE_HOME nor HOME is set.
pub(crate) fn folder(name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("atoll").join(name))
}

/// Native code of kernels, so that no kernel is compiled twice for one block shape.
#[cfg(feature = "compiler")]
pub(crate) fn kernels() -> Option<std::sync::Arc<atoll_kgraph::DiskCache>> {
    /// Hundreds of models, at a few MiB each.
    const BYTES_MAX: u64 = 1 << 30;
    Some(std::sync::Arc::new(atoll_kgraph::DiskCache::new(folder("kernels")?, "o", BYTES_MAX)))
}
