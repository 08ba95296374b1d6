//! The part of a path that names a model.

use serde::Deserialize;

/// The variables of `/v2/models/{name}` and `/v2/models/{name}/versions/{version}`.
#[derive(Deserialize)]
pub(super) struct ModelPath {
    pub(super) name: String,
    pub(super) version: Option<String>,
}
