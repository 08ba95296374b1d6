//! The compiler interface of the server. The program that starts the daemon supplies an
//! implementation; a daemon without one serves bundles only.

use atoll_kgraph::{Bundle, ModelOptions, TargetContents};
use std::path::Path;
use std::time::Duration;

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

    /// Why requests of a model cannot be batched: the tensor or node at which the proof fails that
    /// its rows are independent. `None` if the rows are independent, or if the compiler does not
    /// know. Blocks.
    fn why_not_batched(&self, _source: &Path, _options: &ModelOptions) -> Option<String> {
        None
    }

    /// Recompiles the kernels of an untrusted bundle from the PTX that they had before the passes
    /// ([`Bundle::source`]). On devices that isolate tenants, bounds every access to the tenant's
    /// memory; a kernel whose accesses cannot be bounded is an error. Blocks for at most
    /// `limits.time`; calls `progress` at the beginning of each stage.
    fn recompile(
        &self,
        bundle: &Bundle,
        limits: CompileLimits,
        progress: &dyn Fn(CompileProgress),
    ) -> Result<Vec<TargetContents>, CompileFailure>;
}

/// Limits of one compilation for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Longest time from its start.
    pub time: Duration,
    /// Most private memory, in bytes.
    pub memory_bytes: u64,
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
