//! What can go wrong, and whose fault it is.

use atoll_sealed::Digest;
use std::io;
use std::path::PathBuf;

/// Why the store does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The tenant has no right to an object of this name, or there is none: which of the two is not
    /// told.
    #[error("there is no object {0}")]
    NoObject(Digest),
    /// The object would take the tenant beyond its quota.
    #[error(
        "the object needs {wanted_bytes} bytes; of {what}, {used} of {limit} are used. Remove objects, or ask for a larger quota"
    )]
    Quota {
        /// Size of the object.
        wanted_bytes: u64,
        /// What is limited: `object bytes`, `objects`, and the same for one class.
        what: &'static str,
        /// How much there is now.
        used: u64,
        /// How much there may be.
        limit: u64,
    },
    /// The file of an object does not hold what its name says. The object is forgotten.
    #[error("the file of object {0} was damaged and has been removed; put the object again")]
    Damaged(Digest),
    /// The file system, or the quota on it, is full. What was there is still there.
    #[error("the disk under {folder} is full; free some space and try again")]
    DiskFull {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// The operating system refused something.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
    /// The index cannot be read or written.
    #[error("the store's index {path}: {reason}")]
    Index {
        /// Its file.
        path: PathBuf,
        /// What the database says.
        reason: String,
    },
    /// Another daemon uses the folder.
    #[error("{path} is in use by another daemon; give each its own --state")]
    InUse {
        /// The index.
        path: PathBuf,
    },
}

/// Whether an answer of the operating system means that there is no room: a full disk, a quota, a
/// limit of file sizes.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
