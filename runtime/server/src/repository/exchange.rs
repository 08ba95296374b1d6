//! Replaces the versions of a model that are served by those that its folder has and its policy
//! wants.
//!
//! All wanted versions are read and compiled here before anything changes; then `place.rs` serves
//! them.

use super::Repository;
use super::error::LoadError;
use super::labels::{self, Labels};
use super::scan::{Form, Source, VersionFile};
use super::settings::{self, Settings};
use super::slot::{Slot, State};
use super::versions::listed;
use crate::compiler::CompileProgress;
use crate::generation::Decoder;
use crate::graphs::Functions;
use crate::inference::blocking;
use crate::model::Model;
use crate::names::check_name;
use crate::reshape::{Reshapes, reshapes};
use crate::sequences::control::{self, ControlInput};
use crate::tensors::tensor_metadata;
use atoll_kgraph::{BufferKind, Bundle, KernelGraph};
use std::sync::Arc;

/// Why a load failed, and at which version if it was one.
pub(super) struct Failure {
    pub(super) version: Option<u64>,
    pub(super) error: LoadError,
}

/// A version that was read, and compiled if necessary.
pub(super) struct Prepared {
    pub(super) number: u64,
    pub(super) bundle: Arc<Bundle>,
    pub(super) labels: Labels,
    pub(super) controls: Vec<ControlInput>,
    pub(super) reshapes: Reshapes,
    pub(super) decoder: Option<Arc<Decoder>>,
}

impl Prepared {
    /// Whether a model that is served is this version with these settings.
    pub(super) fn is_served_by(&self, model: &Model, settings: &Settings) -> bool {
        model.is_made_of(&self.bundle, settings) && model.has_labels(&self.labels)
    }
}

/// How a model generates tokens; `None` if its settings do not say so.
///
/// # Errors
/// If it cannot generate, with the reason.
fn decoder(graph: &KernelGraph, settings: &Settings) -> Result<Option<Arc<Decoder>>, String> {
    let Some(generation) = settings.generation else { return Ok(None) };
    if graph.buffers_of(BufferKind::State).next().is_none() {
        return Err(
            "generation needs a model that keeps its past keys and values as state; set `state`, or compile it \
                    with --state"
                .into(),
        );
    }
    if !settings.controls.is_empty() {
        return Err("a model that generates has no control_input: each request is a sequence of its own".into());
    }
    if !settings.warmup.is_empty() {
        return Err("model_warmup has no samples for a model that generates; remove one of the two".into());
    }
    let tensors = |kind| tensor_metadata(graph, kind);
    let (inputs, outputs) = (tensors(BufferKind::Input), tensors(BufferKind::Output));
    Decoder::of(generation, &inputs, &outputs, &graph.symbols).map(|it| Some(Arc::new(it)))
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure { version: None, error }
    }
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
    /// Serves the wanted versions of a model, and no others. If one of them is refused, everything
    /// stays as it was.
    pub(super) async fn exchange(
        &self,
        slot: &Arc<Slot>,
        source: &Source,
        functions: &dyn Functions,
    ) -> Result<(), Failure> {
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
            return self.exchange_graph(slot, source, settings, functions).await;
        }
        let files = wanted(source, &settings)?;
        slot.keep(|number| files.iter().any(|file| file.number == number));
        let mut versions = Vec::with_capacity(files.len());
        for file in files {
            let prepared = self.prepare(slot, source, file, &settings).await;
            versions.push(prepared.map_err(|error| Failure { version: Some(file.number), error })?);
        }
        self.place(slot, source, &versions, &settings).await
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
        let declared = |reason| LoadError::Declared { path: file.path.clone(), reason };
        let inputs = tensor_metadata(bundle.graph(), BufferKind::Input);
        let controls = control::find(&settings.controls, &inputs).map_err(declared)?;
        let reshapes = reshapes(bundle.graph(), settings).map_err(declared)?;
        let decoder = decoder(bundle.graph(), settings).map_err(declared)?;
        let (folder, files) = (source.files_folder().to_owned(), settings.labels.clone());
        let outputs = labels::outputs(&bundle);
        let labels = blocking(move || labels::read(&folder, &files, &outputs)).await.ok_or(LoadError::Panicked)??;
        Ok(Prepared { number: file.number, bundle, labels, controls, reshapes, decoder })
    }

    /// Refuses a `max_batch_size` for a model whose rows are not independent, with the reason. For a
    /// bundle the engine does it, and knows no reason.
    async fn check_rows(&self, file: &VersionFile, bundle: &Bundle, settings: &Settings) -> Result<(), LoadError> {
        let Some(rows) = settings.max_batch_size.filter(|_| bundle.graph().batch.is_none()) else { return Ok(()) };
        // Steps whose rows may depend on each other run alone.
        if file.form != Form::Onnx || settings.runs_sequences {
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
}
