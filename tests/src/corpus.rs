//! The kernels of `tests/kernels`.

use anyhow::Result;
use atoll_workbench::corpus::Corpus;
pub use atoll_workbench::corpus::{Argument, Case, Tolerance};
use std::path::{Path, PathBuf};

/// Folder of the corpus.
pub fn folder() -> PathBuf {
    crate::root().join("tests/kernels")
}

/// All cases, in the order of the file.
pub fn cases() -> Result<Vec<Case>> {
    Ok(Corpus::open(&folder())?.cases)
}

/// All launches of the cases: the case, one of its PTX files, and the index of the shape.
pub fn launches(cases: &[Case]) -> Vec<(&Case, &Path, usize)> {
    let mut launches = Vec::new();
    for case in cases {
        for ptx in &case.ptx {
            launches.extend((0..case.launches.len()).map(|launch| (case, ptx.as_path(), launch)));
        }
    }
    launches
}

/// All PTX files of the corpus.
pub fn ptx_files() -> Result<Vec<PathBuf>> {
    Ok(Corpus::open(&folder())?.ptx)
}
