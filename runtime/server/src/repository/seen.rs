//! Remembers the models and files that scans of the folder found, to detect changes.

use super::scan::Source;
use super::settings;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The files that the last scans found, by model.
#[derive(Default)]
pub(super) struct Seen(BTreeMap<String, Sight>);

struct Sight {
    stamps: Vec<Option<Stamp>>,
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

/// The stamps of a model's file and of its settings files.
pub(super) fn stamps(source: &Source) -> Vec<Option<Stamp>> {
    std::iter::once(source.path.clone()).chain(settings::files(source)).map(|path| Stamp::of(&path)).collect()
}

impl Seen {
    /// Whether the last scan found the model, with the same stamps.
    pub(super) fn is_same(&self, name: &str, stamps: &[Option<Stamp>]) -> bool {
        self.0.get(name).is_some_and(|sight| sight.stamps == stamps && !sight.is_missing)
    }

    /// Records a model that a scan found.
    pub(super) fn note(&mut self, name: String, stamps: Vec<Option<Stamp>>) {
        self.0.insert(name, Sight { stamps, is_missing: false });
    }

    /// Forgets and returns the models that this scan and the one before did not find.
    pub(super) fn gone(&mut self, found: &[(Vec<Option<Stamp>>, Source)]) -> Vec<String> {
        let is_found = |name: &str| found.iter().any(|(_, source)| source.name == name);
        let mut gone = Vec::new();
        self.0.retain(|name, sight| {
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
