//! The compiler interface of the server. The program that starts the daemon supplies an
//! implementation; a daemon without one serves bundles only.

use atoll_kgraph::ModelOptions;
use std::path::Path;

/// Compiles models.
pub trait CompilerService: Send + Sync + 'static {
    /// Identifies the compiler: versions, targets and options. Changes whenever the same model
    /// would compile to a different bundle. Part of the cache key.
    fn identity(&self) -> String;

    /// Compiles a model file into a bundle. The file `destination` appears complete or not at all.
    /// `options` come from the model's settings. Blocks; calls `progress` at the beginning of each
    /// stage.
    fn compile(
        &self,
        source: &Path,
        destination: &Path,
        options: &ModelOptions,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<(), CompileFailure>;
}

/// Progress of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileProgress {
    /// The stage that begins.
    pub stage: String,
    /// Number of finished stages.
    pub done: usize,
    /// Number of stages in total.
    pub total: usize,
}

/// Why a model could not be compiled, as a message for its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileFailure(pub String);
