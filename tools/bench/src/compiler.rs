//! The compiler, if this program was built with it.

use crate::device_name::DeviceName;
use anyhow::Result;
use atoll_kgraph::{ModelOptions, SizeRanges};
use atoll_server::CompilerService;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "native")]
pub(crate) use with::options;
#[cfg(feature = "compiler")]
pub use with::{ProgressBars, padding_service, service};

/// The compiler for a daemon with these devices; `None` without the feature.
#[cfg(not(feature = "compiler"))]
pub fn service(
    _devices: &[DeviceName],
    _common_symbols: SizeRanges,
    _fences_nvidia: bool,
) -> Option<Arc<dyn CompilerService>> {
    None
}

/// The compiler of padding modules; `None` without the feature.
#[cfg(not(feature = "compiler"))]
pub fn padding_service() -> Option<Arc<dyn atoll_engine::PaddingService>> {
    None
}

/// Compiles a model for a device of this machine, with a progress bar.
#[cfg_attr(not(feature = "compiler"), expect(unused_variables, reason = "there is nothing to do with them"))]
pub fn compile_for(device: DeviceName, model: &Path, of_model: &ModelOptions, bundle: &Path) -> Result<()> {
    #[cfg(feature = "compiler")]
    return with::compile_for(device, model, of_model, bundle);
    #[cfg(not(feature = "compiler"))]
    Err(without())
}

/// The error of a program without the compiler.
#[cfg(not(feature = "compiler"))]
pub fn without() -> anyhow::Error {
    crate::failure::user_error("this program was built without the compiler (cargo feature `compiler`); use a .kg file")
}

#[cfg(feature = "compiler")]
mod with {
    use super::{Arc, CompilerService, DeviceName, ModelOptions, Path, Result, SizeRanges};
    use crate::cache;
    use crate::failure::OrUserError;
    use crate::output::progress;
    use crate::recompiler::Question;
    use crate::{profiler, recompiler};
    use anyhow::Context;
    use atoll_engine::{PaddingModule, PaddingService};
    use atoll_kgraph::{Bundle, Profile, TargetContents};
    use atoll_pipeline::{
        CompileError, CompileOptions, Fences, Observer, PRODUCER, PaddedKernels, Stage, Target, UnknownTarget, compile,
        pad_bundles,
    };
    use atoll_server::{
        CompileFailure, CompileLimits, CompileProgress, LaunchShape, LaunchSource, ModuleContents, ModuleKernel,
        ModuleVariable,
    };
    use indicatif::{ProgressBar, ProgressStyle};

    /// The compiler as used by the daemon; compiles for the daemon's devices only.
    struct Service {
        options: CompileOptions,
        /// The targets for which kernels of tenants are fenced.
        fences: Fences,
    }

    /// The compiler for a daemon with these devices. `fences_nvidia`: kernels of tenants are fenced for
    /// NVIDIA GPUs as well.
    pub fn service(
        devices: &[DeviceName],
        common_symbols: SizeRanges,
        fences_nvidia: bool,
    ) -> Option<Arc<dyn CompilerService>> {
        let fences = if fences_nvidia { Fences::All } else { Fences::NotNvidia };
        Some(Arc::new(Service { options: CompileOptions { common_symbols, ..options(devices) }, fences }))
    }

    /// The default options for code of these devices.
    pub(crate) fn options(devices: &[DeviceName]) -> CompileOptions {
        let mut targets = Vec::new();
        for device in devices {
            let target = match device {
                DeviceName::Host => Target::this_host(),
                // PTX that the driver of every supported GPU accepts.
                DeviceName::Cuda(_) => Target::NVIDIA,
                DeviceName::Hip(index) => match amd_target(*index) {
                    Some(target) => target,
                    // Starting the device reports the reason.
                    None => continue,
                },
            };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        CompileOptions { targets, kernel_cache: cache::kernels(), ..CompileOptions::default() }
    }

    /// The target for an AMD GPU of this machine: code for an AMD GPU runs on one architecture
    /// only.
    #[cfg(feature = "hip")]
    fn amd_target(index: u32) -> Option<Target> {
        let config = atoll_device_hip::HipConfig { index, ..atoll_device_hip::HipConfig::default() };
        atoll_device_hip::target(&config).ok()?.parse().ok()
    }

    #[cfg(not(feature = "hip"))]
    fn amd_target(_index: u32) -> Option<Target> {
        None
    }

    fn failure(error: CompileError) -> CompileFailure {
        CompileFailure(format!("{:#}", anyhow::Error::new(error)))
    }

    impl CompilerService for Service {
        fn identity(&self) -> String {
            // The location of the kernel cache does not affect the result.
            let options = CompileOptions { kernel_cache: None, ..self.options.clone() };
            format!("{PRODUCER} {options:?} {:?}", self.fences)
        }

        fn compile(
            &self,
            source: &Path,
            destination: &Path,
            of_model: &ModelOptions,
            progress: &dyn Fn(CompileProgress),
        ) -> Result<(), CompileFailure> {
            let bars = ProgressBars::new(source);
            let observer = Both { bars: &bars, progress };
            let ModelOptions { symbols, states } = of_model.clone();
            let options = CompileOptions { symbols, states, ..self.options.clone() };
            let compiled = compile(source, destination, &options, &observer);
            bars.finish();
            compiled.map(drop).map_err(failure)
        }

        fn why_not_batched(&self, source: &Path, of_model: &ModelOptions) -> Option<String> {
            let ModelOptions { symbols, states } = of_model.clone();
            let options = CompileOptions { symbols, states, ..self.options.clone() };
            atoll_pipeline::why_not_batched(source, &options).ok()?
        }

        fn read_module(&self, ptx: &str, limits: CompileLimits) -> Result<ModuleContents, CompileFailure> {
            let contents: atoll_pipeline::ModuleContents = recompiler::ask(&Question::Module, ptx, limits)?;
            let kernel = |kernel: atoll_pipeline::ModuleKernel| {
                let atoll_pipeline::ModuleKernel { name, params, shared_bytes, threads_max } = kernel;
                ModuleKernel { name, params, shared_bytes, threads_max }
            };
            let variable = |variable: atoll_pipeline::ModuleVariable| {
                let atoll_pipeline::ModuleVariable { name, bytes, align, content, addresses } = variable;
                ModuleVariable { name, bytes, align, content, addresses }
            };
            Ok(ModuleContents {
                kernels: contents.kernels.into_iter().map(kernel).collect(),
                variables: contents.variables.into_iter().map(variable).collect(),
            })
        }

        fn launch_source(
            &self,
            ptx: &str,
            shape: LaunchShape<'_>,
            limits: CompileLimits,
        ) -> Result<LaunchSource, CompileFailure> {
            let LaunchShape { kernel, block, dynamic_shared_bytes, variables } = shape;
            let (kernel, variables) = (kernel.to_owned(), variables.to_vec());
            let question = Question::Launch { kernel, block, dynamic_shared_bytes, variables };
            let found: atoll_pipeline::LaunchSource = recompiler::ask(&question, ptx, limits)?;
            let atoll_pipeline::LaunchSource { source, params, shared_bytes, sm } = found;
            Ok(LaunchSource { source, params, shared_bytes, sm })
        }

        fn pack_launch(
            &self,
            kernel: &LaunchSource,
            shape: LaunchShape<'_>,
            kind: &str,
            destination: &Path,
        ) -> Result<(), CompileFailure> {
            let LaunchSource { source, params, shared_bytes, sm } = kernel.clone();
            let source = atoll_pipeline::LaunchSource { source, params, shared_bytes, sm };
            let LaunchShape { kernel, block, dynamic_shared_bytes, variables } = shape;
            let shape = atoll_pipeline::LaunchShape { kernel, block, dynamic_shared_bytes, variables };
            let is_of_kind = |target: &&Target| matches!(target, Target::Nvidia(_)) == (kind == "cuda");
            let targets: Vec<Target> = self.options.targets.iter().filter(is_of_kind).copied().collect();
            atoll_pipeline::pack_launch(&source, shape, &targets, destination).map_err(failure)
        }

        fn recompile(
            &self,
            bundle: &Bundle,
            limits: CompileLimits,
            progress: &dyn Fn(CompileProgress),
        ) -> Result<Vec<TargetContents>, CompileFailure> {
            recompiler::in_process(bundle, &self.options.targets, self.fences, limits, progress)
        }
    }

    /// The compiler as used by the engine for padding, with the profiles measured on this machine.
    #[derive(Debug)]
    struct Padding;

    /// The compiler of padding modules.
    pub fn padding_service() -> Option<Arc<dyn PaddingService>> {
        Some(Arc::new(Padding))
    }

    impl PaddingService for Padding {
        fn profile(&self, bundle: &Bundle, device: &str, compute_units: u32) -> Option<Profile> {
            // Modules are compiled inside the daemon, without a jail. So kernels of untrusted tenants
            // are not padded.
            if bundle.is_recompiled() {
                return None;
            }
            let path = profiler::place(bundle, device, compute_units)?;
            let profile = path.exists().then(|| Profile::read(&path))?;
            profile
                .inspect_err(
                    |error| tracing::warn!(model = bundle.graph().name, %error, "ignoring an unreadable profile"),
                )
                .ok()
        }

        fn compile(&self, target: &str, bundles: &[Arc<Bundle>]) -> Result<Vec<PaddingModule>, String> {
            let target: Target = target.parse().map_err(|error: UnknownTarget| error.to_string())?;
            let padded = pad_bundles(target, bundles, cache::kernels())
                .map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
            let module =
                |PaddedKernels { code, kernels, facts, candidates }| PaddingModule { code, kernels, facts, candidates };
            let modules: Vec<PaddingModule> = padded.into_iter().map(module).collect();
            if modules.is_empty() { Err("no kernel can be padded".to_owned()) } else { Ok(modules) }
        }
    }

    pub(super) fn compile_for(device: DeviceName, model: &Path, of_model: &ModelOptions, bundle: &Path) -> Result<()> {
        let bars = ProgressBars::new(model);
        let ModelOptions { symbols, states } = of_model.clone();
        let options = CompileOptions { symbols, states, ..options(&[device]) };
        let compiled = compile(model, bundle, &options, &bars);
        bars.finish();
        compiled.with_context(|| format!("cannot compile {}", model.display())).or_user_error()?;
        Ok(())
    }

    /// A progress bar on standard error, if that is a terminal.
    pub struct ProgressBars {
        bar: ProgressBar,
    }

    impl ProgressBars {
        /// The progress bar of a compilation.
        pub fn new(model: &Path) -> ProgressBars {
            let style = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len} {msg} {elapsed}");
            let bar =
                progress(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.set_prefix(model.file_name().unwrap_or_default().to_string_lossy().into_owned());
            ProgressBars { bar }
        }

        /// Removes the bar.
        pub fn finish(&self) {
            self.bar.finish_and_clear();
        }
    }

    impl Observer for ProgressBars {
        fn stage(&self, stage: Stage, done: usize, total: usize) {
            self.bar.set_length(total as u64);
            self.bar.set_position(done as u64);
            self.bar.set_message(stage.to_string());
        }
    }

    /// Reports progress to the terminal and to the daemon.
    struct Both<'a> {
        bars: &'a ProgressBars,
        progress: &'a dyn Fn(CompileProgress),
    }

    impl Observer for Both<'_> {
        fn stage(&self, stage: Stage, done: usize, total: usize) {
            self.bars.stage(stage, done, total);
            (self.progress)(CompileProgress { stage: stage.to_string(), done, total });
        }
    }
}
