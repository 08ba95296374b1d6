//! The manifest, and the names of all members.

use crate::pieces::Pieces;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
