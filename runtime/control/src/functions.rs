//! A deployed function, as clients see it.

use atoll_core::Class;
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// A deployed function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSummary {
    /// Its name within the tenant.
    pub name: String,
    /// Its model name over HTTP; `None` if it is private.
    pub model: Option<String>,
    /// SHA-256 of its bundle.
    pub bundle: Digest,
    /// Size of its bundle.
    pub bundle_bytes: u64,
    /// Size of its constants.
    pub weights_bytes: u64,
    /// The class of invocations that name none.
    pub class: Class,
    /// Time of deployment, in seconds since 1970.
    pub deployed_s: u64,
    /// Its first device; `None` if it cannot be called.
    #[serde(default)]
    pub device: Option<String>,
    /// All its devices.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The reason why it cannot be called.
    pub failure: Option<String>,
}
