//! Models come and go.

use super::scan::{Form, Source};
use super::settings::{self, Settings, SettingsError};
use super::{Repository, Slot, State};
use crate::compiler::{CompileFailure, CompileProgress};
use crate::inference::blocking;
use crate::limits::MODELS_MAX;
use crate::model::Model;
use atoll_engine::{EngineError, FunctionKey, FunctionOptions, LaneId};
use atoll_kgraph::{Bundle, BundleError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Why a model was not loaded or not unloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("there is no model `{0}` in the repository; it takes NAME.kg, NAME.onnx or NAME/1/model.onnx")]
    Unknown(String),
    #[error("the repository holds more than {MODELS_MAX} models")]
    TooManyModels,
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "the disk of {folder} is full: the daemon serves a copy of {path} that it keeps there; free some space, or choose another folder with --cache"
    )]
    NoRoom { path: PathBuf, folder: PathBuf },
    #[error(
        "{path} cannot be copied into {folder}, from where it would be served: {source}; --cache chooses another folder"
    )]
    Copy { path: PathBuf, folder: PathBuf, source: io::Error },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(
        "{0} has to be compiled, and this daemon has no compiler; compile it elsewhere with `atoll compile` and put the .kg file here"
    )]
    NoCompiler(PathBuf),
    #[error(transparent)]
    Compile(#[from] CompileFailure),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("a bug in the server: loading panicked; please report it with the model")]
    Panicked,
}

impl Repository {
    /// Loads every model of the folder, bundles first; what fails is logged, and stands in the
    /// index with its reason.
    pub(crate) async fn load_all(&self) {
        let mut sources = self.scan().unwrap_or_default();
        sources.sort_by_key(|source| source.form);
        for source in sources {
            // The failure has been logged.
            let _ = self.load_source(source).await;
        }
    }

    /// Loads a model, or loads it again if its file changed. While it is loaded again the old one
    /// answers, except for the moment of the exchange.
    pub(crate) async fn load(&self, name: &str) -> Result<(), LoadError> {
        let source = self
            .scan()
            .map_err(|source| LoadError::Io { path: self.folder.clone(), source })?
            .into_iter()
            .find(|s| s.name == name);
        self.load_source(source.ok_or_else(|| LoadError::Unknown(name.into()))?).await
    }

    /// Takes a model off the device, if it is there. Returns when its memory is free.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), LoadError> {
        let slot = self.slot(name).ok_or_else(|| LoadError::Unknown(name.into()))?;
        let _turn = slot.changing.lock().await;
        if slot.model().is_none() {
            // A model that failed and is given up makes the server unready no longer.
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

    async fn load_source(&self, source: Source) -> Result<(), LoadError> {
        let slot = self.slot_of(&source)?;
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

    /// Puts a new model in the place of the old one, if there is one; on an error before the
    /// exchange the old one stays.
    async fn exchange(&self, slot: &Arc<Slot>, source: &Source) -> Result<(), LoadError> {
        let old = slot.model();
        if old.is_none() {
            slot.set(State::Loading("reading".into()));
        }
        let settings = settings::read(source)?;
        let bundle = self.bundle(slot, source, &settings).await?;
        if let Some(old) = old {
            if old.is_made_of(&bundle, &settings) {
                return Ok(());
            }
            slot.set(State::Unloading);
            self.unload_function(&source.name).await?;
        }
        slot.set(State::Loading("bringing weights and code onto the device".into()));
        let model = self.load_function(source, bundle, settings).await?;
        slot.set(State::Ready(Arc::new(model)));
        Ok(())
    }

    /// The bundle of a model: its file, or what the compiler makes of it.
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
    ) -> Result<Model, LoadError> {
        let (engine, source) = (self.engine.clone(), source.clone());
        let load = move || {
            let options = FunctionOptions {
                key: FunctionKey::local(&source.name),
                class: settings.class,
                queue_capacity: settings.queue_capacity.map(std::num::NonZeroUsize::get),
                lane: LaneId::DEFAULT,
            };
            let placed = engine.load(bundle.clone(), options, settings.device.as_deref())?;
            tracing::debug!(
                model = source.name,
                device = engine.devices().get(usize::from(placed.device.0)),
                target = placed.info.target,
                weights_bytes = placed.info.weights_bytes,
                "on the device"
            );
            Ok(Model::new(FunctionKey::local(source.name), source.version, &bundle, settings, placed.device))
        };
        blocking(load).await.ok_or(LoadError::Panicked)?
    }

    async fn unload_function(&self, name: &str) -> Result<(), LoadError> {
        let (engine, name) = (self.engine.clone(), FunctionKey::local(name));
        match blocking(move || engine.unload(&name)).await.ok_or(LoadError::Panicked)? {
            // Gone is what was asked for.
            Ok(()) | Err(EngineError::NotLoaded(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
