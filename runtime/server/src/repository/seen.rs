//! Remembers the models and files that scans of the folder found, to detect changes.

use super::scan::{Skipped, Source};
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

/// The files of a model's versions and its settings files, each with its stamp.
pub(super) fn stamps(source: &Source) -> Files {
    let versions = source.versions.iter().map(|version| version.path.clone());
    let stamp = |path: PathBuf| (path.clone(), Stamp::of(&path));
    versions.chain(settings::files(source)).map(stamp).collect()
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
