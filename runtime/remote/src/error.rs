//! Errors of repositories on other machines.

use std::io;
use std::path::PathBuf;

/// Why a repository cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is invalid.
    #[error("{0}")]
    Address(String),
    /// The server refuses a request.
    #[error("{url}: status {status}{message}")]
    Refused {
        /// The address, without a signature.
        url: String,
        /// The status of HTTP.
        status: u16,
        /// The reason, if the server states one; begins with a colon.
        message: String,
    },
    /// No complete answer arrived, although the request was repeated.
    #[error("{url}: no complete answer in {attempts} attempts: {reason}")]
    Lost {
        /// The address.
        url: String,
        /// How often the request was sent.
        attempts: u32,
        /// What happened last.
        reason: String,
    },
    /// The content of an object did not match its digest in any attempt.
    #[error("{url}: expected digest {stated}, found {found}")]
    Digest {
        /// The address.
        url: String,
        /// The digest of what arrived, SHA-256.
        found: String,
        /// The stated digest.
        stated: String,
    },
    /// The repository changed while it was read, each time that it was listed.
    #[error("{url}: changes while it is read: {what}")]
    Changing {
        /// The repository.
        url: String,
        /// The object that changed last.
        what: String,
    },
    /// The listing cannot be read, or contains an invalid name.
    #[error("{url}: {reason}")]
    Listing {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The repository is too large.
    #[error("{url} has {found}; at most {limit} are possible")]
    TooLarge {
        /// The repository.
        url: String,
        /// What it has.
        found: String,
        /// The limit.
        limit: String,
    },
    /// A file of this machine cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl RemoteError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> RemoteError {
        let path = path.into();
        move |source| RemoteError::Io { path, source }
    }
}
