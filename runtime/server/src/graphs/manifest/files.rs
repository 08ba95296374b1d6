//! The files that come with a manifest, as base64: WASM modules and tokenizers.

use crate::limits::GRAPH_FILES_BYTES_MAX;
use atoll_stages::limits::PROGRAM_FILE_BYTES_MAX;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A file. It is decoded when the manifest is read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ManifestFile(pub(crate) Arc<Vec<u8>>);

/// The files by name.
pub(crate) type Files = BTreeMap<String, ManifestFile>;

impl<'de> Deserialize<'de> for ManifestFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ManifestFile, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = BASE64_STANDARD.decode(text).map_err(|_| serde::de::Error::custom("a file is not base64"))?;
        Ok(ManifestFile(Arc::new(bytes)))
    }
}

impl fmt::Debug for ManifestFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The bytes of all files.
pub(crate) fn bytes_of(files: &Files) -> usize {
    files.values().map(|file| file.0.len()).sum()
}

/// Refuses files that are too large, and files that no stage names.
pub(super) fn check<'a>(files: &Files, named: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
    if bytes_of(files) > GRAPH_FILES_BYTES_MAX || files.values().any(|file| file.0.len() > PROGRAM_FILE_BYTES_MAX) {
        return Err(format!("they have {} bytes; the limit is {GRAPH_FILES_BYTES_MAX}", bytes_of(files)));
    }
    match files.keys().find(|file| !named.clone().any(|name| name == file.as_str())) {
        Some(file) => Err(format!("no stage names `{file}`")),
        None => Ok(()),
    }
}
