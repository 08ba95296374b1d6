//! The compiler as the server sees it (design D6: plugged in by whoever starts the daemon, so that
//! one without a compiler serves bundles).

use atoll_kgraph::ModelOptions;
use std::path::Path;

/// Compiles models.
pub trait CompilerService: Send + Sync + 'static {
    /// What changes whenever the same model would be compiled into something else: versions,
    /// targets, options. Part of the cache's keys.
    fn identity(&self) -> String;

    /// Compiles a model file into a bundle, which appears at `destination` whole or not at all.
    /// `options` are those of the model's settings. Blocks; `progress` is called when a stage
    /// begins.
    fn compile(
        &self,
        source: &Path,
        destination: &Path,
        options: &ModelOptions,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<(), CompileFailure>;
}

/// Where a compilation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileProgress {
    /// The stage that begins.
    pub stage: String,
    /// Stages behind it.
    pub done: usize,
    /// Stages there are.
    pub total: usize,
}

/// Why a model was not compiled, in words for its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileFailure(pub String);
