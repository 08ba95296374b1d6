//! Follows changes of the repository's folder (`--model-control-mode poll`).
//!
//! A scan loads models that are new or whose files changed, and unloads those whose files are gone.
//! Changes are detected by the size, modification time and inode of a file, so unchanged models are
//! not read. A file that is still being written fails to load, or is loaded in its present state.
//! The first scan after it is complete loads it again.

use super::Repository;
use super::ensembles::places;
use super::load::log_skipped;
use super::scan::Scan;
use super::seen::stamps;
use crate::graphs::Functions;
use crate::inference::blocking;

impl Repository {
    /// Scans the folder and loads or unloads models by its changes. If the folder cannot be read,
    /// changes nothing.
    pub(crate) async fn poll(&self, functions: &dyn Functions) {
        let mut seen = self.seen.lock().await;
        let folder = self.folder.clone();
        let found = blocking(move || {
            let Scan { sources, skipped } = super::scan::scan_all(&folder)?;
            Ok((sources.into_iter().map(|source| (stamps(&source), source)).collect::<Vec<_>>(), skipped))
        });
        let (mut found, skipped) = match found.await {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let error: std::io::Error = error;
                return tracing::error!(%error, "cannot read the model repository; its models stay as they are");
            }
            // The panic hook has reported the panic.
            None => return,
        };
        seen.new_skipped(skipped).iter().for_each(log_skipped);
        for name in seen.gone(&found) {
            tracing::info!(model = name, "its file is gone");
            // A failure shows in the index.
            let _ = self.unload(&name).await;
        }
        let places = places(found.iter().map(|(_, source)| source));
        found.sort_by_key(|(_, source)| (source.form(), places.get(&source.name).copied()));
        for (stamps, source) in found {
            if seen.is_same(&source.name, &stamps) {
                continue;
            }
            let name = source.name.clone();
            // A failure has been logged. The load is not retried until the files change.
            let _ = self.load_source(source, functions).await;
            seen.note(name, stamps);
        }
    }
}
