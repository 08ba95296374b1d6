//! Loads and unloads models.

use super::Repository;
use super::ensembles::{sort, steps};
use super::error::LoadError;
use super::exchange::Failure;
use super::overrides::Overrides;
use super::scan::{self, Form, Scan, Skipped, Source};
use super::slot::State;
use crate::graphs::Functions;
use crate::inference::blocking;
use std::time::Instant;

/// Names a folder or a link that is no model.
pub(super) fn log_skipped(skipped: &Skipped) {
    let Skipped { name, why } = skipped;
    tracing::warn!(folder = name, "the repository has `{name}`, which is not served: {why}");
}

impl Repository {
    /// Loads all models of the folder, bundles first. Failures are logged and shown in the index.
    /// `functions` has what the steps of ensembles call, here and below.
    pub(crate) async fn load_all(&self, functions: &dyn Functions) {
        let Scan { mut sources, skipped } = scan::scan_all(&self.folder).unwrap_or_default();
        skipped.iter().for_each(log_skipped);
        sort(&mut sources);
        for source in sources {
            // The failure has already been logged.
            let _ = self.load_source(source, functions).await;
        }
    }

    /// Loads the named models, bundles first. A model that is not in the folder counts as failed.
    pub(crate) async fn load_named(&self, names: &[String], functions: &dyn Functions) {
        let mut sources = self.scan().unwrap_or_default();
        for name in names.iter().filter(|name| !sources.iter().any(|source| source.name == **name)) {
            let error = self.unknown(name);
            tracing::error!(model = name, %error, "not loaded");
            if let Ok(slot) = self.slot_of(name) {
                slot.set_whole(State::Failed(error.to_string()));
            }
        }
        sources.retain(|source| names.contains(&source.name));
        sort(&mut sources);
        for source in sources {
            // A failure of a called model has been logged. An ensemble that contradicts itself fails
            // below again.
            let _ = self.load_called_by(&source, functions).await;
            // The failure has already been logged.
            let _ = self.load_source(source, functions).await;
        }
    }

    /// Loads the models and ensembles that an ensemble calls, directly or through others, unless they
    /// are loaded, as Triton does.
    async fn load_called_by(&self, source: &Source, functions: &dyn Functions) -> Result<(), LoadError> {
        for called in self.called_by(source)? {
            if self.slot(&called.name).is_none_or(|slot| !slot.has_ready()) {
                self.load_source(called, functions).await?;
            }
        }
        Ok(())
    }

    /// Loads the versions of a model that its policy wants, or reloads those whose file or settings
    /// changed, and unloads the others. During a reload the old versions answer requests until all new
    /// ones are ready.
    ///
    /// `may` says which models the caller may call. It is asked if the caller brings along the steps
    /// of an ensemble, because the steps run with the rights of the daemon.
    pub(crate) async fn load(
        &self,
        name: &str,
        overrides: Overrides,
        may: &(dyn Fn(&str) -> bool + Sync),
        functions: &dyn Functions,
    ) -> Result<(), LoadError> {
        let scanned = self.scan().map_err(|source| LoadError::Io { path: self.folder.clone(), source })?;
        let found = scanned.into_iter().find(|source| source.name == name);
        if overrides.is_empty() {
            let source = found.ok_or_else(|| self.unknown(name))?;
            self.load_called_by(&source, functions).await?;
            return self.load_source(source, functions).await;
        }
        let (name, scratch) = (name.to_owned(), self.scratch.clone());
        let source = blocking(move || overrides.source(&name, found, &scratch));
        // The folder with files that came along is needed until they are loaded.
        let (source, _folder) = source.await.ok_or(LoadError::Panicked)??;
        if let Some(refused) = steps(&source)?.iter().find(|model| !may(model)) {
            return Err(LoadError::Ensemble(format!("it calls the function `{refused}`, which is not deployed")));
        }
        self.load_called_by(&source, functions).await?;
        self.load_source(source, functions).await
    }

    /// The error for a model that the folder does not have.
    fn unknown(&self, name: &str) -> LoadError {
        match scan::why_skipped(&self.folder, name) {
            Some(why) => LoadError::NoModel { name: name.into(), why },
            None => LoadError::Unknown(name.into()),
        }
    }

    /// Unloads all versions of a model. Returns when their memory is free.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), LoadError> {
        let slot = self.slot(name).ok_or_else(|| LoadError::NotServed(name.into()))?;
        let _turn = slot.changing.lock().await;
        let ready = slot.ready();
        if ready.is_empty() {
            // Unloading a failed model clears the failure, so that it no longer affects readiness.
            slot.set_whole(State::Unloaded);
            return Ok(());
        }
        for version in ready.keys() {
            slot.set(*version, State::Unloading);
        }
        let mut unloaded = Ok(());
        for model in ready.values() {
            // The others are unloaded all the same.
            unloaded = self.unload_function(model).await.and(unloaded);
        }
        slot.set_whole(match &unloaded {
            Ok(()) => State::Unloaded,
            Err(error) => State::Failed(error.to_string()),
        });
        tracing::info!(model = name, "unloaded");
        unloaded
    }

    /// Unloads the models and ensembles that an ensemble calls, if they are loaded and `may` allows it. Other
    /// models call none.
    pub(crate) async fn unload_called_by(
        &self,
        name: &str,
        may: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<(), LoadError> {
        let scanned = self.scan().map_err(|source| LoadError::Io { path: self.folder.clone(), source })?;
        let Some(source) = scanned.into_iter().find(|source| source.name == name) else { return Ok(()) };
        // Callers before those that they call.
        for called in self.called_by(&source)?.into_iter().rev() {
            if may(&called.name) && self.slot(&called.name).is_some_and(|slot| slot.has_ready()) {
                self.unload(&called.name).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn load_source(&self, source: Source, functions: &dyn Functions) -> Result<(), LoadError> {
        let slot = self.slot_of(&source.name)?;
        let _turn = slot.changing.lock().await;
        // The folder may have changed since the scan, while another load held the turn.
        let source = source.now();
        let start = Instant::now();
        match self.exchange(&slot, &source, functions).await {
            // An ensemble has been reported where it was checked against its models.
            Ok(()) if source.form() == Form::Ensemble => Ok(()),
            Ok(()) => {
                tracing::info!(model = source.name, seconds = start.elapsed().as_secs_f64(), "ready");
                Ok(())
            }
            Err(Failure { version, error }) => {
                tracing::error!(model = source.name, version, %error, "not loaded");
                slot.fail(version, error.to_string());
                Err(error)
            }
        }
    }
}
