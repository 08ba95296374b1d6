//! A bundle before it is read.

use memmap2::Mmap;
use std::path::PathBuf;

/// A file in memory that is to be a bundle, and was not read yet.
#[derive(Debug)]
pub struct Mapped {
    pub(super) map: Mmap,
    pub(super) path: PathBuf,
}
