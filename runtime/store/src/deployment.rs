//! Deployed functions, as far as they have to survive a restart.

use atoll_core::{Class, Tenant};
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// What a deployed function is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeploymentKey {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its name among theirs.
    pub name: String,
}

/// How a function was deployed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// The SHA-256 of its bundle's file, by which the file is named.
    pub bundle: Digest,
    /// Size of the file.
    pub bundle_bytes: u64,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Whether only its tenant sees it.
    pub private: bool,
    /// When, in seconds since 1970.
    pub deployed_s: u64,
    /// The device that it is to be on; the emptiest one where `None`, as in records of before there
    /// were several.
    #[serde(default)]
    pub device: Option<String>,
}
