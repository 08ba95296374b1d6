//! Remembers the models and files that scans of the folder found, to detect changes.

use super::cache::external_data;
use super::scan::{Form, Skipped, Source, VersionFile};
use super::settings;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files of a model, and the state of each.
pub(super) type Files = Vec<(PathBuf, Option<Stamp>)>;

/// The files that the last scans found, by model.
#[derive(Default)]
pub(super) struct Seen {
    models: BTreeMap<String, Sight>,
    /// What was no model.
    skipped: BTreeSet<Skipped>,
}

struct Sight {
    files: Files,
    /// Whether the last scan did not find the model. The model is unloaded if the next scan does
    /// not find it, either: a scan may miss a model while its file is being replaced, or if file
    /// descriptors run out.
    is_missing: bool,
}

/// Identifies the state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Stamp {
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
        })
    }
}

/// The files of a model's versions, their weights, its settings files and its labels, each with its
/// stamp.
pub(super) fn stamps(source: &Source) -> Files {
    let of_version = |version: &VersionFile| [vec![version.path.clone()], weights(version)].concat();
    let versions = source.versions.iter().flat_map(of_version);
    // Settings that cannot be read name no labels. Their file has a stamp.
    let labels = settings::read(source).map(|settings| settings.labels).unwrap_or_default();
    let labels = labels.into_values().map(|file| source.files_folder().join(file));
    let stamp = |path: PathBuf| (path.clone(), Stamp::of(&path));
    versions.chain(settings::files(source)).chain(labels).map(stamp).collect()
}

/// Files with weights beside an ONNX model.
fn weights(version: &VersionFile) -> Vec<PathBuf> {
    if version.form == Form::Onnx { external_data(&version.path) } else { Vec::new() }
}

impl Seen {
    /// Whether the last scan found the model, with the same files.
    pub(super) fn is_same(&self, name: &str, files: &Files) -> bool {
        self.models.get(name).is_some_and(|sight| sight.files == *files && !sight.is_missing)
    }

    /// Records a model that a scan found.
    pub(super) fn note(&mut self, name: String, files: Files) {
        self.models.insert(name, Sight { files, is_missing: false });
    }

    /// Records what is no model. Returns what the last scan did not find.
    pub(super) fn new_skipped(&mut self, skipped: BTreeSet<Skipped>) -> Vec<Skipped> {
        let new = skipped.difference(&self.skipped).cloned().collect();
        self.skipped = skipped;
        new
    }

    /// Forgets and returns the models that this scan and the one before did not find.
    pub(super) fn gone(&mut self, found: &[(Files, Source)]) -> Vec<String> {
        let is_found = |name: &str| found.iter().any(|(_, source)| source.name == name);
        let mut gone = Vec::new();
        self.models.retain(|name, sight| {
            if is_found(name) {
                return true;
            }
            if sight.is_missing {
                gone.push(name.clone());
            }
            !std::mem::replace(&mut sight.is_missing, true)
        });
        gone
    }
}
