//! Private copies of the bundles that are served from the repository.
//!
//! Constants are read from the bundle each time they are loaded onto the device, and a user may
//! overwrite the file in the repository meanwhile. So the daemon serves a copy in an unnamed file:
//! a reflink if the file system supports it, otherwise a copy of the bytes. No other process can
//! open or change it. Its blocks are freed with the last function that uses it, even if the daemon
//! is killed. The copy is checked once, when it is made. Models with the same content share one
//! copy.
//!
//! Bundles in the cache of compiled models and in the store need no copy: the daemon wrote these
//! files itself, and replaces them only by a rename.

use super::error::LoadError;
use super::regular::open_regular;
use atoll_kgraph::{Bundle, BundleError};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The copies in use, by the digest of their bundle.
pub(super) struct BundleCopies {
    /// The folder of the unnamed files.
    folder: PathBuf,
    known: Mutex<HashMap<String, Weak<Bundle>>>,
}

impl BundleCopies {
    pub(super) fn new(folder: PathBuf) -> BundleCopies {
        BundleCopies { folder, known: Mutex::default() }
    }

    /// Copies, opens and checks a bundle. Returns the existing copy if the content is the same.
    ///
    /// # Errors
    /// If the file is not a bundle, changed while it was copied, or there is no room for the copy.
    pub(super) fn open(&self, path: &Path) -> Result<Arc<Bundle>, LoadError> {
        let source = open_regular(path).map_err(|source| BundleError::Io { path: path.into(), source })?;
        let copy = self.copy(&source).map_err(|source| self.refusal(path, source))?;
        let bundle = Bundle::of_file(&copy, path)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, copy| copy.strong_count() > 0);
        if let Some(other) = known.get(bundle.digest()).and_then(Weak::upgrade) {
            return Ok(other);
        }
        known.insert(bundle.digest().into(), Arc::downgrade(&bundle));
        Ok(bundle)
    }

    /// Bytes of all copies in use. A reflink shares its blocks with the original until the original
    /// changes.
    pub(super) fn bytes(&self) -> u64 {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().filter_map(Weak::upgrade).map(|bundle| bundle.file_bytes()).sum()
    }

    fn copy(&self, mut source: &File) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let mut copy = tempfile::tempfile_in(&self.folder)?;
        // A reflink works only on file systems that support it, with both files on the same one.
        if rustix::fs::ioctl_ficlone(&copy, source).is_err() {
            source.rewind()?;
            // A file that grows meanwhile is cut, so its copy is not a valid bundle.
            let bytes = source.metadata()?.len();
            io::copy(&mut source.take(bytes), &mut copy)?;
        }
        Ok(copy)
    }

    fn refusal(&self, path: &Path, source: io::Error) -> LoadError {
        let (path, folder) = (path.into(), self.folder.clone());
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                LoadError::NoRoom { path, folder }
            }
            _ => LoadError::Copy { path, folder, source },
        }
    }
}
