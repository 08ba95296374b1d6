//! Follows changes of the repository's folder (`--model-control-mode poll`).
//!
//! A scan loads models that are new or whose files changed, and unloads those whose files are gone.
//! A change is seen by the size, time and inode of a file, so that an unchanged model costs no
//! read. A file that is still being written fails to load or loads as it is, and is loaded again by
//! the first scan after it is complete.

use super::scan::Source;
use super::{Repository, settings};
use crate::inference::blocking;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the last scans found, by model.
#[derive(Default)]
pub(super) struct Seen(BTreeMap<String, Sight>);

struct Sight {
    stamps: Vec<Option<Stamp>>,
    /// Whether the last scan did not find the model. A second one unloads it: a scan may miss a
    /// model while its file is being replaced, or if descriptors run out.
    is_missing: bool,
}

/// Identifies the state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
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

/// The stamps of a model's file and of the files with its settings.
fn stamps(source: &Source) -> Vec<Option<Stamp>> {
    std::iter::once(source.path.clone()).chain(settings::files(source)).map(|path| Stamp::of(&path)).collect()
}

impl Repository {
    /// Scans the folder and follows its changes. If it cannot be read, everything stays.
    pub(crate) async fn poll(&self) {
        let mut seen = self.seen.lock().await;
        let folder = self.folder.clone();
        let found = blocking(move || {
            let sources = super::scan::scan(&folder)?;
            Ok(sources.into_iter().map(|source| (stamps(&source), source)).collect::<Vec<_>>())
        });
        let mut found = match found.await {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let error: std::io::Error = error;
                return tracing::error!(%error, "cannot read the model repository; its models stay as they are");
            }
            // The panic hook has reported the panic.
            None => return,
        };
        for name in seen.gone(&found) {
            tracing::info!(model = name, "its file is gone");
            // The failure is in the index.
            let _ = self.unload(&name).await;
        }
        found.sort_by_key(|(_, source)| source.form);
        for (stamps, source) in found {
            if seen.0.get(&source.name).is_some_and(|sight| sight.stamps == stamps && !sight.is_missing) {
                continue;
            }
            let name = source.name.clone();
            // The failure has been logged, and is not tried again before the files change.
            let _ = self.load_source(source).await;
            seen.0.insert(name, Sight { stamps, is_missing: false });
        }
    }
}

impl Seen {
    /// Forgets and returns the models that this scan and the one before did not find.
    fn gone(&mut self, found: &[(Vec<Option<Stamp>>, Source)]) -> Vec<String> {
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
