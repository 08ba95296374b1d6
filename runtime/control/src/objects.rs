//! Objects: tensors and other bytes that the daemon keeps for a tenant.

use crate::blob::Blob;
use crate::message::Form;
use atoll_core::Class;
use atoll_sealed::Digest;
use serde::{Deserialize, Serialize};

/// An object to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// Its type and shape.
    pub form: Option<Form>,
    /// The class that it is stored for; `None` for best-effort.
    pub class: Option<Class>,
    /// The bytes.
    pub blob: Blob,
}

/// An object of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectSummary {
    /// Its digest.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
    /// The class that it is stored for.
    pub class: Class,
    /// Its type and shape.
    pub form: Option<Form>,
    /// When the tenant stored it, in seconds since 1970.
    pub created_s: u64,
    /// When the tenant last used it, in seconds since 1970.
    pub used_s: u64,
    /// Whether it is in memory as well as on disk.
    pub in_memory: bool,
}
