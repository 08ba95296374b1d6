//! The manifest, and the names of the other members.

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

/// Name of the member with kernels from before the passes, by the digest of their text.
pub(super) fn source(digest: &str) -> String {
    format!("sources/{digest}.ptx.gz")
}

/// What the manifest says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) producer: String,
    pub(super) members: BTreeMap<String, Member>,
}

/// What it says of another member.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    pub(super) bytes: u64,
    /// Of the whole member: what is checked where there are no pieces, and what other programs can
    /// check in any case.
    pub(super) sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pieces: Option<Pieces>,
}
