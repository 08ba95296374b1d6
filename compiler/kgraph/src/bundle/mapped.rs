//! A bundle that is mapped and not read yet.

use memmap2::Mmap;
use std::path::PathBuf;

/// A mapped file that should be a bundle. Nothing of it was read or checked yet.
#[derive(Debug)]
pub struct Mapped {
    pub(super) map: Mmap,
    pub(super) path: PathBuf,
}
