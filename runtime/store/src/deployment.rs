//! Deployed functions, as records that survive a restart.

use atoll_core::{Class, Tenant};
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// Identifies a deployed function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeploymentKey {
    /// Its tenant.
    pub tenant: Tenant,
    /// Its name within the tenant.
    pub name: String,
}

/// A deployed function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// SHA-256 of its bundle, which is also the name of the file.
    pub bundle: Digest,
    /// Size of the bundle.
    pub bundle_bytes: u64,
    /// The class of invocations that state no class.
    pub class: Class,
    /// Whether only its tenant may call it.
    pub private: bool,
    /// Time of deployment, in seconds since 1970.
    pub deployed_s: u64,
    /// The device to load it on; `None` if the daemon chooses. Older records have no such field.
    #[serde(default)]
    pub device: Option<String>,
    /// The signature of the bundle, as the tenant sent it. Older records have no such field.
    #[serde(default)]
    pub signature: Option<String>,
    /// Number of its constants. Each takes a file descriptor of the daemon while the function is
    /// loaded. Older records have no such field.
    #[serde(default)]
    pub constants: u64,
}
