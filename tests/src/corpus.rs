//! The kernels of `tests/kernels`.

use anyhow::Result;
use atoll_workbench::corpus::Corpus;
pub use atoll_workbench::corpus::{Argument, Case, Tolerance};
use std::path::PathBuf;

/// Where the corpus is.
pub fn folder() -> PathBuf {
    crate::root().join("tests/kernels")
}

/// Every case, in the order of the file.
pub fn cases() -> Result<Vec<Case>> {
    Ok(Corpus::open(&folder())?.cases)
}

/// All PTX of the corpus.
pub fn ptx_files() -> Result<Vec<PathBuf>> {
    Ok(Corpus::open(&folder())?.ptx)
}
