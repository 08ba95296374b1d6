//! Bodies of the model repository extension.

use crate::parameters::Parameters;
use serde::{Deserialize, Serialize};

/// `POST /v2/repository/index`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRequest {
    /// Only models that take requests.
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
    /// Where it is in its life.
    pub state: ModelState,
    /// Why, where there is something to say.
    #[serde(default)]
    pub reason: String,
}

/// Where a model is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// It takes requests.
    Ready,
    /// It is being compiled or brought onto the device.
    Loading,
    /// It is being taken off the device.
    Unloading,
    /// It takes no requests; the reason says why.
    Unavailable,
}

/// `POST /v2/repository/models/NAME/load` and `…/unload`. The body may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRequest {
    /// `config` and `file:…` of a load, `unload_dependents` of an unload.
    #[serde(default)]
    pub parameters: Parameters,
}
