//! Errors of the store.

use atoll_sealed::Digest;
use std::io;
use std::path::PathBuf;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The tenant has no object of this digest. The error does not reveal whether another tenant
    /// has it.
    #[error("there is no object {0}")]
    NoObject(Digest),
    /// The object would exceed the tenant's quota.
    #[error(
        "the object needs {wanted_bytes} bytes; of {what}, {used} of {limit} are used. Remove objects, or raise \
        the quota"
    )]
    Quota {
        /// Size of the object.
        wanted_bytes: u64,
        /// The limited resource: `object bytes`, `objects`, or the same for best-effort work.
        what: &'static str,
        /// Current use.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The file of an object is missing or does not match its digest. The object has been removed
    /// from the store.
    #[error("the file of object {0} was damaged and has been removed; put the object again")]
    Damaged(Digest),
    /// The disk, or the quota on it, is full. Existing contents are unchanged.
    #[error("the disk under {folder} is full; free some space and try again")]
    DiskFull {
        /// The folder of the store.
        folder: PathBuf,
    },
    /// An I/O error.
    #[error("{what} {path}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The index cannot be read or written.
    #[error("cannot use the store's index {path}: {reason}")]
    Index {
        /// Its file.
        path: PathBuf,
        /// The error of the database.
        reason: String,
    },
    /// Another daemon uses the folder.
    #[error("{path} is in use by another daemon; give each its own --state")]
    InUse {
        /// The index.
        path: PathBuf,
    },
}

/// Whether an I/O error means that there is no room: a full disk, a disk quota, or a file size
/// limit.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}
