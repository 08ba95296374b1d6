//! Model repositories on other machines: buckets of S3 and of Google Cloud Storage, and folders of
//! web servers.
//!
//! A [`Remote`] mirrors a repository into a folder of this machine. The daemon reads the folder like
//! any other repository. Calls block.
//!
//! Not here: when to look for changes, and what models are.
//!
//! # Invariants
//!
//! - A file in the folder is complete: it has the size that the listing states, and the digest where
//!   one is stated. It appears and changes as a whole.
//! - If the repository cannot be read, no file is removed. If one of its objects cannot be read, a file
//!   that is no longer listed is removed only if the limit of bytes needs its room.
//! - The files of the folder have at most the bytes of [`Options::bytes_max`], and during a change
//!   those of one object more. A repository that does not fit is refused before anything is fetched.
//! - The record names only files that are on the disk, also after a crash of the machine.
//! - Requests are repeated a bounded number of times, and each has a bounded time. A listing has a
//!   bounded number of pages.
//! - A server is asked without TLS only on loopback.
//! - No name in a listing refers to a path outside of the folder.
//!
//! Start reading at [`Remote`]; `fetch.rs` reads one object, `listing.rs` reads listings, `sign.rs`
//! signs requests.

#![forbid(unsafe_code)]

mod error;
mod fetch;
mod listing;
mod location;
mod mirror;
mod sign;

pub use error::RemoteError;
pub use location::is_remote;
pub use mirror::{Changes, Remote};
pub use sign::Credentials;

use std::time::Duration;
use ureq::tls::TlsConfig;

/// Settings of a repository.
#[derive(Clone, Debug)]
pub struct Options {
    /// TLS settings; with `None`, addresses that need TLS are refused.
    pub tls: Option<TlsConfig>,
    /// The key that signs requests to a bucket; `None` for public ones.
    pub credentials: Option<Credentials>,
    /// Region of a bucket of S3.
    pub region: String,
    /// Address of a server with the S3 interface, instead of Amazon's.
    pub endpoint: Option<String>,
    /// Maximum total size of the files in bytes.
    pub bytes_max: u64,
    /// Timeout of a request, without the time for transferring its bytes.
    pub timeout: Duration,
    /// Pause before a request is repeated for the first time; it doubles each time.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tls: None,
            credentials: None,
            region: "us-east-1".into(),
            endpoint: None,
            bytes_max: BYTES_MAX_DEFAULT,
            timeout: Duration::from_secs(30),
            pause: Duration::from_millis(500),
        }
    }
}

/// Default of [`Options::bytes_max`].
pub const BYTES_MAX_DEFAULT: u64 = 64 << 30;

impl Options {
    /// Sets the key, the region and the address from variables of the environment, which `variable`
    /// reads: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` and
    /// `AWS_ENDPOINT_URL` for `s3://`, `GS_ACCESS_KEY_ID` and `GS_SECRET_ACCESS_KEY` (a key of kind
    /// HMAC) for `gs://`.
    #[must_use]
    pub fn with_environment(mut self, url: &str, variable: impl Fn(&str) -> Option<String>) -> Options {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_google = url.starts_with("gs://");
        let names = match is_google {
            true => ("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY"),
            false => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        };
        if let (Some(id), Some(secret)) = (variable(names.0), variable(names.1)) {
            let session = variable("AWS_SESSION_TOKEN").filter(|_| !is_google);
            self.credentials = Some(Credentials::new(id, secret, session));
        }
        if !is_google {
            self.endpoint = variable("AWS_ENDPOINT_URL").or(self.endpoint);
            self.region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")).unwrap_or(self.region);
        }
        self
    }
}
