//! Messages of the model repository extension.

use crate::model::ConfigNote;
use crate::parameters::Parameters;
use serde::{Deserialize, Serialize};

/// `POST /v2/repository/index`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRequest {
    /// List only models that accept requests.
    #[serde(default)]
    pub ready: bool,
}

/// One model of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its state.
    pub state: ModelState,
    /// Details of the state; may be empty.
    #[serde(default)]
    pub reason: String,
}

/// State of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// It accepts requests.
    Ready,
    /// It is being compiled or loaded.
    Loading,
    /// It is being unloaded.
    Unloading,
    /// It accepts no requests; `reason` says why.
    Unavailable,
}

/// `POST /v2/repository/models/NAME/load` and `…/unload`. The body may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRequest {
    /// `config` and `file:…` of a load, `unload_dependents` of an unload.
    #[serde(default)]
    pub parameters: Parameters,
}

/// `GET /v2/repository/models/NAME/explain`, an extension of Atoll: what the daemon reads of the
/// model's folder as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelExplanation {
    /// The model.
    pub name: String,
    /// The file with its settings; empty if it has none.
    pub settings: String,
    /// The versions in its folder.
    pub versions: Vec<u64>,
    /// Which of them are wanted; empty if the settings cannot be read.
    pub version_policy: String,
    /// The versions that a load serves.
    pub served: Vec<u64>,
    /// Numbered folders that are no versions, and why.
    pub skipped: Vec<String>,
    /// What becomes of each field of its `config.pbtxt`.
    pub fields: Vec<ConfigNote>,
    /// Why the settings cannot be used; empty if they can.
    pub problem: String,
}
