//! Why a model was not loaded or unloaded.

use super::labels::LabelsError;
use super::settings::SettingsError;
use crate::compiler::CompileFailure;
use crate::limits::MODELS_MAX;
use crate::names::BadName;
use atoll_engine::EngineError;
use atoll_kgraph::BundleError;
use std::io;
use std::path::PathBuf;

/// Why a model was not loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(
        "failed to load '{0}', failed to poll from model repository: there is no model `{0}` in the repository; add \
        {0}.kg, {0}.onnx or {0}/1/model.onnx"
    )]
    Unknown(String),
    #[error("failed to load '{name}', failed to poll from model repository: `{name}` is no model: {why}")]
    NoModel { name: String, why: String },
    #[error("failed to unload '{0}': there is no model `{0}` in the repository")]
    NotServed(String),
    #[error("the repository holds more than {MODELS_MAX} models")]
    TooManyModels,
    #[error(
        "no version is available as the version policy `{policy}` wants it: version {missing} is missing in {folder}, \
        which has {found}; add the folder, or change the policy"
    )]
    NoVersion { policy: String, missing: String, folder: PathBuf, found: String },
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
        "max_batch_size is {rows}, but the rows of {path} are not independent: {reason}; remove max_batch_size and put \
        the rows into `dims`, or change the model"
    )]
    NotBatched { path: PathBuf, rows: u32, reason: String },
    #[error("the ensemble cannot be served: {0}")]
    Ensemble(String),
    /// A load brought along what it may not; the text is the reason.
    #[error("{0}")]
    Override(String),
    /// A file that a load brought along could not be written.
    #[error("the file parameter '{name}' cannot be written: {source}")]
    Brought { name: String, source: io::Error },
    #[error("the configuration does not fit {path}: {reason}")]
    Declared { path: PathBuf, reason: String },
    #[error("the sample `{sample}` of model_warmup: {reason}")]
    Warmup { sample: String, reason: String },
    #[error("internal error: loading panicked; please report this bug, with the model")]
    Panicked,
}
