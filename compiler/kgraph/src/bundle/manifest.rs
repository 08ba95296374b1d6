//! The manifest, and the names of all members.

use super::error::BundleError;
use super::json;
use crate::graph::{FORMAT_VERSION, FORMAT_VERSION_MIN};
use crate::pieces::Pieces;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the manifest itself.
pub(super) const MANIFEST: &str = "manifest.json";
/// Name of the member that holds the graph.
pub(super) const GRAPH: &str = "graph.json";
/// Name of the member that holds all constants.
pub(super) const WEIGHTS: &str = "weights.safetensors";
/// Name of the one tensor in the weights.
pub(super) const WEIGHTS_TENSOR: &str = "weights";

/// Name of the member with the PTX before the passes; `digest` is the digest of its text.
pub(super) fn source(digest: &str) -> String {
    format!("sources/{digest}.ptx.gz")
}

/// The content of the manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) producer: String,
    pub(super) members: BTreeMap<String, Member>,
}

/// The entry of another member.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    pub(super) bytes: u64,
    /// SHA-256 of the whole member. Atoll checks it if there are no pieces; other programs can
    /// always check it.
    pub(super) sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pieces: Option<Pieces>,
}

/// Checks the format version of a manifest, and no other field: another format may have other
/// fields. `path` appears in messages.
pub(super) fn check_format(manifest: &[u8], path: &Path) -> Result<(), BundleError> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let corrupt = |reason| BundleError::Corrupt { path: path.into(), reason: format!("{MANIFEST}: {reason}") };
    let Version { format: found } = json::parse(manifest).map_err(corrupt)?;
    if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&found) {
        return Err(BundleError::UnknownFormat { path: path.into(), found });
    }
    Ok(())
}
