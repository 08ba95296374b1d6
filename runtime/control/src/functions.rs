//! Functions of a tenant, as clients see them.

use crate::blob::Blob;
use atoll_core::{Class, Tenant};
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// A function to deploy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deploy {
    /// Its name; `None` for the name of its graph.
    pub name: Option<String>,
    /// The class of invocations that state no class.
    pub class: Option<Class>,
    /// Whether only its tenant may call it; other functions can also be called over HTTP and gRPC.
    pub private: bool,
    /// The device to load it on; `None` for the placement policy's choice.
    #[serde(default)]
    pub device: Option<String>,
    /// A signature of the bundle in the format of minisign (`atoll sign`). If the daemon trusts its
    /// key, native code of the bundle runs as it was sent.
    #[serde(default)]
    pub signature: Option<String>,
    /// Whether the daemon sends an [`Answer::Compiling`](crate::Answer::Compiling) at the beginning
    /// of each stage of a compilation, before the answer itself.
    #[serde(default)]
    pub progress: bool,
    /// The bundle.
    pub bundle: Blob,
}

/// A deployed function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSummary {
    /// Its name within the tenant.
    pub name: String,
    /// Its model name over HTTP and gRPC; `None` if it is private.
    pub model: Option<String>,
    /// SHA-256 of its bundle.
    pub bundle: Digest,
    /// Size of its bundle.
    pub bundle_bytes: u64,
    /// Size of its constants.
    pub weights_bytes: u64,
    /// The class of invocations that state no class.
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

/// Usage of the tenant's store, and counters of its functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// The tenant.
    pub tenant: Tenant,
    /// Bytes of its objects.
    pub object_bytes: u64,
    /// Limit of the bytes of its objects.
    pub object_bytes_max: u64,
    /// Number of its objects.
    pub objects: u64,
    /// Limit of the number of its objects.
    pub objects_max: u64,
    /// Limit of the number of its functions.
    pub functions_max: u64,
    /// Counters of its functions, since each was loaded.
    pub functions: Vec<FunctionCounts>,
}

/// Counters of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// Its name.
    pub name: String,
    /// Invocations with a result.
    pub success: u64,
    /// Invocations that were admitted and failed.
    pub failure: u64,
    /// Invocations that were rejected.
    pub rejected: u64,
    /// Queued and running invocations.
    pub pending: u64,
    /// Time on the device, in nanoseconds.
    pub compute_ns: u64,
}

/// A stage of a compilation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileStage {
    /// Its name.
    pub stage: String,
    /// Number of finished stages.
    pub done: usize,
    /// Number of stages in total.
    pub total: usize,
}
