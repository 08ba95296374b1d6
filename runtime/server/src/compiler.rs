//! The compiler interface of the server. The program that starts the daemon supplies an
//! implementation; a daemon without one serves bundles only.

use atoll_kgraph::{Bundle, ModelOptions, TargetContents};
use serde::{Deserialize, Serialize};
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

    /// Reads a CUDA program's module in PTX: its kernels and variables. The PTX is not trusted.
    /// Blocks for at most `limits.time`.
    fn read_module(&self, _ptx: &str, _limits: CompileLimits) -> Result<ModuleContents, CompileFailure> {
        Err(no_modules())
    }

    /// Reads one kernel of such a module for a launch shape. The PTX is not trusted. Blocks for at
    /// most `limits.time`.
    fn launch_source(
        &self,
        _ptx: &str,
        _shape: LaunchShape<'_>,
        _limits: CompileLimits,
    ) -> Result<LaunchSource, CompileFailure> {
        Err(no_modules())
    }

    /// Writes a bundle with the PTX of that kernel, which is not read, for devices of a kind: `host` or
    /// `cuda`. The bundle has no code; [`CompilerService::recompile`] compiles it. Blocks.
    fn pack_launch(
        &self,
        _kernel: &LaunchSource,
        _shape: LaunchShape<'_>,
        _kind: &str,
        _destination: &Path,
    ) -> Result<(), CompileFailure> {
        Err(no_modules())
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

fn no_modules() -> CompileFailure {
    CompileFailure("this compiler does not take modules of CUDA programs".into())
}

/// A kernel of a CUDA program's module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleKernel {
    /// Its name.
    pub name: String,
    /// Offset and size of each parameter in the parameter block, in bytes.
    pub params: Vec<(u32, u32)>,
    /// Shared memory that it declares, in bytes.
    pub shared_bytes: u32,
    /// Maximum number of threads of a block.
    pub threads_max: u32,
}

/// A variable of a CUDA program's module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleVariable {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its alignment in bytes.
    pub align: u32,
    /// The bytes of its initializer; the rest is 0.
    pub content: Vec<u8>,
    /// Addresses of variables in its initializer: the offset in this variable, the name of the
    /// other variable, and the offset in that one.
    pub addresses: Vec<(usize, String, i64)>,
}

/// The contents of a CUDA program's module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleContents {
    /// Its kernels.
    pub kernels: Vec<ModuleKernel>,
    /// Its variables in global and constant memory.
    pub variables: Vec<ModuleVariable>,
}

/// A kernel of a CUDA program with its launch shape.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Shared memory of a launch besides what the kernel declares, in bytes.
    pub dynamic_shared_bytes: u32,
    /// The address of each variable of the module.
    pub variables: &'a [(String, u64)],
}

/// One kernel of a CUDA program's module, read for a launch shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSource {
    /// PTX of the kernel and of the functions of its module, with the addresses of variables.
    pub source: String,
    /// Size and alignment of each parameter in bytes.
    pub params: Vec<(u32, u32)>,
    /// Shared memory that the kernel declares, in bytes.
    pub shared_bytes: u32,
    /// The GPUs that the module is for: 80 for `sm_80`.
    pub sm: u32,
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
