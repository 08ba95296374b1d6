//! Loads and unloads models.

use super::labels::{self, Labels, LabelsError};
use super::scan::{Form, Source};
use super::settings::{self, Settings, SettingsError};
use super::{Repository, Slot, State};
use crate::compiler::{CompileFailure, CompileProgress};
use crate::inference::blocking;
use crate::limits::MODELS_MAX;
use crate::model::Model;
use crate::names::{BadName, check_name};
use atoll_engine::{EngineError, FunctionKey, FunctionOptions, LaneId};
use atoll_kgraph::{Bundle, BundleError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Why a model was not loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("there is no model `{0}` in the repository; add {0}.kg, {0}.onnx or {0}/1/model.onnx")]
    Unknown(String),
    #[error("the repository holds more than {MODELS_MAX} models")]
    TooManyModels,
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "cannot copy {path} into {folder}: the disk is full; free some space, or choose another folder with --cache \
        (the daemon serves copies of repository files)"
    )]
    NoRoom { path: PathBuf, folder: PathBuf },
    #[error(
        "{path} cannot be copied into {folder}: {source}; choose another folder with --cache (the daemon serves copies \
        of repository files)"
    )]
    Copy { path: PathBuf, folder: PathBuf, source: io::Error },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{reason}; a model with [scaling] gives its name to instances: rename the model, or remove [scaling]")]
    ScaledName {
        #[source]
        reason: BadName,
    },
    #[error(
        "{0} has to be compiled, but this daemon was built with no compiler; compile it elsewhere with `atoll compile` \
        and put the .kg file into the repository"
    )]
    NoCompiler(PathBuf),
    #[error(transparent)]
    Compile(#[from] CompileFailure),
    #[error(transparent)]
    Labels(#[from] LabelsError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "max_batch_size is {rows}, but the rows of {path} are not independent: {reason}; remove max_batch_size, or \
        change the model"
    )]
    NotBatched { path: PathBuf, rows: u32, reason: String },
    #[error("internal error: loading panicked; please report this bug, with the model")]
    Panicked,
}

impl Repository {
    /// Loads all models of the folder, bundles first. Failures are logged and shown in the index.
    pub(crate) async fn load_all(&self) {
        let mut sources = self.scan().unwrap_or_default();
        sources.sort_by_key(|source| source.form);
        for source in sources {
            // The failure has already been logged.
            let _ = self.load_source(source).await;
        }
    }

    /// Loads the named models, bundles first. A model that is not in the folder counts as failed.
    pub(crate) async fn load_named(&self, names: &[String]) {
        let mut sources = self.scan().unwrap_or_default();
        for name in names.iter().filter(|name| !sources.iter().any(|source| source.name == **name)) {
            let error = LoadError::Unknown(name.clone());
            tracing::error!(model = name, %error, "not loaded");
            if let Ok(slot) = self.slot_of(name) {
                slot.set(State::Failed(error.to_string()));
            }
        }
        sources.retain(|source| names.contains(&source.name));
        sources.sort_by_key(|source| source.form);
        for source in sources {
            // The failure has already been logged.
            let _ = self.load_source(source).await;
        }
    }

    /// Loads a model, or reloads it if its file, its settings or its labels changed. During a
    /// reload the old model answers requests, except for a moment during the exchange.
    pub(crate) async fn load(&self, name: &str) -> Result<(), LoadError> {
        let source = self
            .scan()
            .map_err(|source| LoadError::Io { path: self.folder.clone(), source })?
            .into_iter()
            .find(|s| s.name == name);
        self.load_source(source.ok_or_else(|| LoadError::Unknown(name.into()))?).await
    }

    /// Unloads a model if it is loaded. Returns when its memory is free.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), LoadError> {
        let slot = self.slot(name).ok_or_else(|| LoadError::Unknown(name.into()))?;
        let _turn = slot.changing.lock().await;
        if slot.model().is_none() {
            // Unloading a failed model clears the failure, so that it no longer affects readiness.
            slot.set(State::Unloaded);
            return Ok(());
        }
        slot.set(State::Unloading);
        let unloaded = self.unload_function(name).await;
        slot.set(match &unloaded {
            Ok(()) => State::Unloaded,
            Err(error) => State::Failed(error.to_string()),
        });
        tracing::info!(model = name, "unloaded");
        unloaded
    }

    pub(super) async fn load_source(&self, source: Source) -> Result<(), LoadError> {
        let slot = self.slot_of(&source.name)?;
        let _turn = slot.changing.lock().await;
        let start = Instant::now();
        let loaded = self.exchange(&slot, &source).await;
        match &loaded {
            Ok(()) => tracing::info!(model = source.name, seconds = start.elapsed().as_secs_f64(), "ready"),
            Err(error) => {
                tracing::error!(model = source.name, %error, "not loaded");
                if slot.model().is_none() {
                    slot.set(State::Failed(error.to_string()));
                }
            }
        }
        loaded
    }

    /// Replaces the old model, if there is one, by the new one. On an error before the exchange the
    /// old model stays loaded.
    async fn exchange(&self, slot: &Arc<Slot>, source: &Source) -> Result<(), LoadError> {
        let old = slot.model();
        if old.is_none() {
            slot.set(State::Loading("reading".into()));
        }
        let settings = settings::read(source)?;
        if settings.scaling.is_some() {
            check_name(&source.name).map_err(|reason| LoadError::ScaledName { reason })?;
        }
        if !settings.ignored.is_empty() {
            let fields = settings.ignored.join(", ");
            tracing::warn!(model = source.name, fields, "config.pbtxt has fields that are ignored");
        }
        let bundle = self.bundle(slot, source, &settings).await?;
        self.check_rows(source, &bundle, &settings).await?;
        let read = (source.clone(), settings.labels.clone(), bundle.clone());
        let labels = blocking(move || labels::read(&read.0, &read.1, &read.2)).await.ok_or(LoadError::Panicked)??;
        if let Some(old) = old {
            if old.is_made_of(&bundle, &settings) && old.has_labels(&labels) {
                return Ok(());
            }
            slot.set(State::Unloading);
            self.unload_function(&source.name).await?;
        }
        slot.set(State::Loading("loading weights and code onto the device".into()));
        let model = self.load_function(source, bundle, settings, labels).await?;
        slot.set(State::Ready(Arc::new(model)));
        Ok(())
    }

    /// Refuses a `max_batch_size` for an ONNX model whose rows are not independent, with the
    /// reason. For bundles the engine refuses it, without a reason.
    async fn check_rows(&self, source: &Source, bundle: &Bundle, settings: &Settings) -> Result<(), LoadError> {
        let Some(rows) = settings.max_batch_size.filter(|_| bundle.graph().batch.is_none()) else { return Ok(()) };
        if source.form != Form::Onnx {
            return Ok(());
        }
        let (cache, path, options) = (self.cache.clone(), source.path.clone(), settings.of_model());
        let reason = blocking(move || cache.why_not_batched(&path, &options)).await.flatten();
        reason
            .map_or(Ok(()), |reason| Err(LoadError::NotBatched { path: source.path.clone(), rows: rows.get(), reason }))
    }

    /// The bundle of a model: its file, or the compiled ONNX file.
    async fn bundle(&self, slot: &Arc<Slot>, source: &Source, settings: &Settings) -> Result<Arc<Bundle>, LoadError> {
        let path = source.path.clone();
        if source.form == Form::Bundle {
            let copies = self.copies.clone();
            return blocking(move || copies.open(&path)).await.ok_or(LoadError::Panicked)?;
        }
        let (cache, options) = (self.cache.clone(), settings.of_model());
        if let Some(bundle) = blocking(move || cache.find(&path, &options)).await.ok_or(LoadError::Panicked)?? {
            return Ok(bundle);
        }
        if slot.model().is_none() {
            slot.set(State::Loading("waiting for the compiler".into()));
        }
        // The semaphore is never closed.
        let _permit = self.compiling.acquire().await.ok();
        tracing::info!(model = source.name, "compiling");
        let (cache, path, slot) = (self.cache.clone(), source.path.clone(), slot.clone());
        let options = settings.of_model();
        let report = move |progress: CompileProgress| {
            let stage = format!("compiling: {} ({} of {})", progress.stage, progress.done + 1, progress.total);
            if slot.model().is_none() {
                slot.set(State::Loading(stage));
            }
        };
        blocking(move || cache.compile(&path, &options, &report)).await.ok_or(LoadError::Panicked)?
    }

    async fn load_function(
        &self,
        source: &Source,
        bundle: Arc<Bundle>,
        settings: Settings,
        labels: Labels,
    ) -> Result<Model, LoadError> {
        let (engine, source) = (self.engine.clone(), source.clone());
        let load = move || {
            let options = FunctionOptions {
                key: FunctionKey::local(&source.name),
                class: settings.class,
                queue_capacity: settings.queue_capacity.map(std::num::NonZeroUsize::get),
                lane: LaneId::DEFAULT,
                batching: settings.batching(),
            };
            let placed = engine.load(bundle.clone(), options, settings.device.as_deref())?;
            tracing::debug!(
                model = source.name,
                devices = ?placed.devices,
                target = placed.info.target,
                weights_bytes = placed.info.weights_bytes,
                "on the device"
            );
            let key = FunctionKey::local(source.name);
            let model = Model::new(key, source.version, &bundle, settings, placed.devices);
            Ok(model.with_labels(labels))
        };
        blocking(load).await.ok_or(LoadError::Panicked)?
    }

    async fn unload_function(&self, name: &str) -> Result<(), LoadError> {
        let (engine, name) = (self.engine.clone(), FunctionKey::local(name));
        match blocking(move || engine.unload(&name)).await.ok_or(LoadError::Panicked)? {
            // The model is already unloaded: nothing left to do.
            Ok(()) | Err(EngineError::NotLoaded(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
