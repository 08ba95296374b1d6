//! The daemon's own copies of the bundles that it serves from the repository.
//!
//! A file of the repository is its user's, who may overwrite it in place while it is served; and
//! constants are read from a bundle again whenever they return to the device. So the daemon serves
//! a copy: a reflink where the file system makes them, and the bytes otherwise, in a file that has
//! no name. Nobody else opens or changes it, and its blocks are free once the last function
//! that uses it is unloaded, however the daemon ends. The copy is checked when it is made and never
//! again. Models with the same content share one copy, so the disk holds each served bundle once.
//!
//! Bundles in the cache of compiled models and in the store need none: the daemon made these files
//! itself, and replaces them by a rename only.

use super::load::LoadError;
use atoll_kgraph::{Bundle, BundleError};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The copies that are in use, by the digests of their bundles.
pub(super) struct BundleCopies {
    /// Where they lie.
    folder: PathBuf,
    known: Mutex<HashMap<String, Weak<Bundle>>>,
}

impl BundleCopies {
    pub(super) fn new(folder: PathBuf) -> BundleCopies {
        BundleCopies { folder, known: Mutex::default() }
    }

    /// A copy of a file, opened and checked; the one that is there already if its content is the
    /// same.
    ///
    /// # Errors
    /// The file is no bundle, or changed while it was copied, or there is no room for the copy.
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

    /// Bytes of all copies in use. Reflinks share blocks with their files until these change.
    pub(super) fn bytes(&self) -> u64 {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().filter_map(Weak::upgrade).map(|bundle| bundle.file_bytes()).sum()
    }

    fn copy(&self, mut source: &File) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let mut copy = tempfile::tempfile_in(&self.folder)?;
        // Most file systems make none, and none makes one of another's file.
        if rustix::fs::ioctl_ficlone(&copy, source).is_err() {
            source.rewind()?;
            // A file that grows meanwhile is found to be no bundle.
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

/// Opens a file. A pipe could keep whoever opens it waiting, and a device may have no end.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}
