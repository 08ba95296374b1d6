//! The kernels of `tests/kernels`.

use anyhow::Result;
use atoll_workbench::corpus::Corpus;
pub use atoll_workbench::corpus::{Argument, Case, Tolerance};
use std::path::PathBuf;

/// Folder of the corpus.
pub fn folder() -> PathBuf {
    crate::root().join("tests/kernels")
}

/// All cases, in the order of the file.
pub fn cases() -> Result<Vec<Case>> {
    Ok(Corpus::open(&folder())?.cases)
}

/// All PTX files of the corpus.
pub fn ptx_files() -> Result<Vec<PathBuf>> {
    Ok(Corpus::open(&folder())?.ptx)
}
