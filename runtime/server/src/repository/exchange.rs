//! Replaces the versions of a model that are served by those that its folder has and its policy
//! wants.
//!
//! The newest version answers requests that name none. It has the name of the model as its key in
//! the engines, so instances, shares and leases of the model are its own. Another version has the
//! key `NAME/VERSION`, which no file and no deployed function can have.
//!
//! All wanted versions are read and compiled before anything changes. Then the version that was the
//! newest is loaded under its own key if it is still wanted, the new one takes its place, and what
//! is not wanted any more is unloaded. Versions with equal contents share their constants on the
//! device.

use super::Repository;
use super::error::LoadError;
use super::labels::{self, Labels};
use super::scan::{Form, Source, VersionFile};
use super::settings::{self, Settings, Warmup};
use super::slot::{Slot, State};
use super::versions::listed;
use super::warmup;
use crate::compiler::CompileProgress;
use crate::inference::{blocking, invoke};
use crate::model::Model;
use crate::names::check_name;
use crate::reshape::{Reshapes, reshapes};
use crate::running::Permit;
use atoll_engine::{Class, EngineError, FunctionKey, FunctionOptions, InvocationRequest, LaneId};
use atoll_kgraph::Bundle;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a load failed, and at which version if it was one.
pub(super) struct Failure {
    pub(super) version: Option<u64>,
    pub(super) error: LoadError,
}

/// A version that was read, and compiled if necessary.
struct Prepared {
    number: u64,
    bundle: Arc<Bundle>,
    labels: Labels,
    reshapes: Reshapes,
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure { version: None, error }
    }
}

/// The key and the settings of a version.
struct Place {
    key: FunctionKey,
    settings: Settings,
}

/// The key of a version that is not the newest.
fn key_of(model: &str, version: u64) -> FunctionKey {
    FunctionKey::local(format!("{model}/{version}"))
}

/// The daemon's name of the GPU that a configuration names.
fn gpu_of(settings: &Settings, devices: &[String]) -> Option<String> {
    let gpu = settings.gpu?;
    let found = devices.iter().find(|device| [format!("cuda:{gpu}"), format!("hip:{gpu}")].contains(device));
    if found.is_none() {
        tracing::warn!(gpu, "the daemon does not have the GPU that config.pbtxt names; the placement policy decides");
    }
    found.cloned()
}

/// The files of the wanted versions, the highest first.
fn wanted<'s>(source: &'s Source, settings: &Settings) -> Result<Vec<&'s VersionFile>, LoadError> {
    let found = || source.versions.iter().map(|version| version.number);
    let chosen = settings.version_policy.choose(found()).map_err(|missing| LoadError::NoVersion {
        policy: settings.version_policy.to_string(),
        missing: listed(missing.into_iter(), ", "),
        folder: source.files_folder().into(),
        found: listed(found(), ", "),
    })?;
    Ok(chosen.iter().filter_map(|number| source.versions.iter().find(|version| version.number == *number)).collect())
}

impl Repository {
    /// Serves the wanted versions of a model, and no others. On an error before the exchange the old
    /// ones stay.
    pub(super) async fn exchange(&self, slot: &Arc<Slot>, source: &Source) -> Result<(), Failure> {
        if !slot.has_ready() {
            slot.set_whole(State::Loading("reading".into()));
        }
        let settings = settings::read(source).map_err(LoadError::from)?;
        if settings.scaling.is_some() {
            check_name(&source.name).map_err(|reason| LoadError::ScaledName { reason })?;
        }
        if source.config.is_some() && source.folder.is_none() && !settings.labels.is_empty() {
            // The files beside it belong to other models, which the caller perhaps may not call.
            let reason = "a configuration names labels, and the model has no folder of its own for them";
            return Err(LoadError::Override(reason.into()).into());
        }
        for note in settings.not_honoured() {
            tracing::warn!(model = source.name, field = note.field, "config.pbtxt: not honoured: {}", note.note);
        }
        for skipped in &source.skipped {
            tracing::warn!(model = source.name, "{skipped}");
        }
        if source.form() == Form::Ensemble {
            return self.exchange_graph(slot, source).await;
        }
        let files = wanted(source, &settings)?;
        slot.keep(|number| files.iter().any(|file| file.number == number));
        let mut versions = Vec::with_capacity(files.len());
        for file in files {
            let prepared = self.prepare(slot, source, file, &settings).await;
            versions.push(prepared.map_err(|error| Failure { version: Some(file.number), error })?);
        }
        let is_new = slot.ready().is_empty();
        slot.forget_graph();
        let placed = self.place(slot, source, &versions, &settings).await;
        if placed.is_err() && is_new {
            // As Triton: of a model that cannot be loaded as a whole, nothing is served.
            for (version, model) in slot.ready() {
                slot.forget(version);
                // The error of the load is the one to report.
                if let Err(error) = self.unload_function(&model).await {
                    tracing::error!(model = source.name, version, %error, "not unloaded");
                }
            }
        }
        placed
    }

    /// Reads a version, and compiles it if necessary.
    async fn prepare(
        &self,
        slot: &Arc<Slot>,
        source: &Source,
        file: &VersionFile,
        settings: &Settings,
    ) -> Result<Prepared, LoadError> {
        let bundle = self.bundle(slot, source, file, settings).await?;
        self.check_rows(file, &bundle, settings).await?;
        let reshapes = reshapes(bundle.graph(), settings)
            .map_err(|reason| LoadError::Declared { path: file.path.clone(), reason })?;
        let (folder, files, read) = (source.files_folder().to_owned(), settings.labels.clone(), bundle.clone());
        let labels = blocking(move || labels::read(&folder, &files, &read)).await.ok_or(LoadError::Panicked)??;
        Ok(Prepared { number: file.number, bundle, labels, reshapes })
    }

    /// Refuses a `max_batch_size` for a model whose rows are not independent, with the reason. For a
    /// bundle the engine does it, and knows no reason.
    async fn check_rows(&self, file: &VersionFile, bundle: &Bundle, settings: &Settings) -> Result<(), LoadError> {
        let Some(rows) = settings.max_batch_size.filter(|_| bundle.graph().batch.is_none()) else { return Ok(()) };
        if file.form != Form::Onnx {
            return Ok(());
        }
        let (cache, path, options) = (self.cache.clone(), file.path.clone(), settings.of_model());
        let reason = blocking(move || cache.why_not_batched(&path, &options)).await.flatten();
        reason.map_or(Ok(()), |reason| Err(LoadError::NotBatched { path: file.path.clone(), rows: rows.get(), reason }))
    }

    /// The bundle of a version: its file, or the compiled ONNX file.
    async fn bundle(
        &self,
        slot: &Arc<Slot>,
        source: &Source,
        file: &VersionFile,
        settings: &Settings,
    ) -> Result<Arc<Bundle>, LoadError> {
        let (path, number) = (file.path.clone(), file.number);
        // A version that is ready stays so until it is replaced.
        let report = {
            let slot = slot.clone();
            move |stage: String| slot.set_unserved(number, State::Loading(stage))
        };
        report("reading".into());
        if file.form == Form::Bundle {
            let copies = self.copies.clone();
            return blocking(move || copies.open(&path)).await.ok_or(LoadError::Panicked)?;
        }
        let (cache, options) = (self.cache.clone(), settings.of_model());
        if let Some(bundle) = blocking(move || cache.find(&path, &options)).await.ok_or(LoadError::Panicked)?? {
            return Ok(bundle);
        }
        report("waiting for the compiler".into());
        // The semaphore is never closed.
        let _permit = self.compiling.acquire().await.ok();
        tracing::info!(model = source.name, version = number, "compiling");
        let (cache, path, options) = (self.cache.clone(), file.path.clone(), settings.of_model());
        let report = move |progress: CompileProgress| {
            report(format!("compiling: {} ({} of {})", progress.stage, progress.done + 1, progress.total));
        };
        blocking(move || cache.compile(&path, &options, &report)).await.ok_or(LoadError::Panicked)?
    }

    /// Serves these versions, the newest first, and no others.
    async fn place(
        &self,
        slot: &Slot,
        source: &Source,
        versions: &[Prepared],
        settings: &Settings,
    ) -> Result<(), Failure> {
        let old = slot.ready();
        let mut placed = self.put_all(slot, source, versions, settings, &old).await;
        if placed.is_ok() {
            let is_wanted = |number: &u64| versions.iter().any(|version| version.number == *number);
            old.keys().filter(|number| !is_wanted(number)).for_each(|number| slot.forget(*number));
        }
        // Functions that answer no requests any more, also after an error.
        let now = slot.ready();
        for model in old.values().filter(|model| !now.values().any(|other| other.key == model.key)) {
            placed = placed.and(self.unload_function(model).await.map_err(Failure::from));
        }
        placed
    }

    async fn put_all(
        &self,
        slot: &Slot,
        source: &Source,
        versions: &[Prepared],
        settings: &Settings,
        old: &BTreeMap<u64, Arc<Model>>,
    ) -> Result<(), Failure> {
        let Some((newest, others)) = versions.split_first() else { return Ok(()) };
        let plain = FunctionKey::local(&source.name);
        let has_plain = |version: &Prepared| old.get(&version.number).is_some_and(|model| model.key == plain);
        // The version that was the newest gets its own key before the new one takes its place.
        let (before, after): (Vec<_>, Vec<_>) = others.iter().partition(|version| has_plain(version));
        let places = before.into_iter().chain([newest]).chain(after);
        for version in places.collect::<Vec<_>>() {
            let is_newest = version.number == newest.number;
            let key = if is_newest { plain.clone() } else { key_of(&source.name, version.number) };
            // The instances that follow the load are those of the newest version.
            let scaling = settings.scaling.filter(|_| is_newest);
            let settings = Settings { scaling, ..settings.clone() };
            let put = self.put(slot, source, version, Place { key, settings }, old).await;
            put.map_err(|error| Failure { version: Some(version.number), error })?;
        }
        Ok(())
    }

    /// Serves a version at a place instead of what is there now, unless it is served so already.
    async fn put(
        &self,
        slot: &Slot,
        source: &Source,
        version: &Prepared,
        place: Place,
        old: &BTreeMap<u64, Arc<Model>>,
    ) -> Result<(), LoadError> {
        let Prepared { number, bundle, labels, reshapes } = version;
        let is_there = |model: &Model| {
            model.key == place.key && model.is_made_of(bundle, &place.settings) && model.has_labels(labels)
        };
        if slot.ready().get(number).is_some_and(|model| is_there(model)) {
            return Ok(());
        }
        let holder = slot.ready().into_iter().find(|(_, model)| model.key == place.key).map(|(holder, _)| holder);
        if let Some(holder) = holder {
            slot.set(holder, State::Unloading);
        }
        // Only what this model has loaded: a function of this name may have been deployed.
        if let Some(model) = old.values().find(|model| model.key == place.key) {
            // Where only settings change, requests that wait are served by the function that follows.
            if !model.is_version(*number, bundle) {
                model.retire();
            }
            self.unload_key(&model.key).await?;
        }
        if let Some(holder) = holder {
            slot.forget(holder);
        }
        slot.set_unserved(*number, State::Loading("loading weights and code onto the device".into()));
        let samples = place.settings.warmup.clone();
        let model = self.load_function(place, *number, bundle.clone()).await?.named(&source.name);
        let model = Arc::new(model.with_labels(labels.clone()).with_reshapes(reshapes.clone()));
        if let Err(error) = self.warm_up(&model, source, samples).await {
            self.unload_function(&model).await?;
            return Err(error);
        }
        slot.set(*number, State::Ready(model));
        Ok(())
    }

    /// Runs the samples of a model. One that fails is logged, as with Triton; one that does not fit
    /// the model is an error.
    async fn warm_up(&self, model: &Arc<Model>, source: &Source, samples: Vec<Warmup>) -> Result<(), LoadError> {
        for sample in samples {
            let (name, runs) = (sample.name.clone(), sample.runs);
            let (read, folder) = (model.clone(), source.files_folder().to_owned());
            let inputs =
                blocking(move || warmup::inputs(&read, &folder, &sample)).await.ok_or(LoadError::Panicked)??;
            for _ in 0..runs {
                let request = InvocationRequest {
                    function: model.key.clone(),
                    inputs: inputs.clone(),
                    class: Some(Class::BestEffort),
                    priority: 0,
                    instance: None,
                    deadline: None,
                };
                if let Err(error) = invoke(&self.engine, &Permit::of_daemon(), request.into()).await {
                    tracing::warn!(model = model.name, sample = name, %error, "a sample of model_warmup failed");
                    break;
                }
            }
            tracing::debug!(model = model.name, sample = name, runs, "warmed up");
        }
        Ok(())
    }

    async fn load_function(&self, place: Place, version: u64, bundle: Arc<Bundle>) -> Result<Model, LoadError> {
        let engine = self.engine.clone();
        let load = move || {
            let Place { key, settings } = place;
            let options = FunctionOptions {
                key: key.clone(),
                class: settings.class,
                queue_capacity: settings.queue_capacity.map(std::num::NonZeroUsize::get),
                lane: LaneId::DEFAULT,
                batching: settings.batching(),
            };
            let device = settings.device.clone().or_else(|| gpu_of(&settings, engine.devices()));
            let placed = engine.load(bundle.clone(), options, device.as_deref())?;
            tracing::debug!(
                model = %key,
                devices = ?placed.devices,
                target = placed.info.target,
                weights_bytes = placed.info.weights_bytes,
                "on the device"
            );
            Ok(Model::new(key, version.to_string(), &bundle, settings, placed.devices))
        };
        blocking(load).await.ok_or(LoadError::Panicked)?
    }

    /// Unloads the function of a model, which takes no requests any more. Returns when its last
    /// requests have ended.
    pub(super) async fn unload_function(&self, model: &Model) -> Result<(), LoadError> {
        model.retire();
        self.unload_key(&model.key).await
    }

    async fn unload_key(&self, key: &FunctionKey) -> Result<(), LoadError> {
        let (engine, key) = (self.engine.clone(), key.clone());
        match blocking(move || engine.unload(&key)).await.ok_or(LoadError::Panicked)? {
            // The model is already unloaded: nothing left to do.
            Ok(()) | Err(EngineError::NotLoaded(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
