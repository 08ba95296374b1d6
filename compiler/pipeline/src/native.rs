//! Native code of host targets and AMD GPUs. Needs LLVM.

use crate::error::CompileError;
use crate::targets::{AmdArchitecture, Target};
use atoll_kgraph::{AmdFacts, DiskCache, KernelFacts};
use atoll_proxy_kernels::{DkpModule, Proxy};
use atoll_ptx::Module;
use std::sync::Arc;

/// A kernel and its block shape.
pub(crate) type Shape<'a> = (&'a str, [u32; 3]);

/// Native code of a module.
pub(crate) struct Native {
    /// The ELF object.
    pub(crate) elf: Vec<u8>,
    /// Scratch memory that a block of each requested kernel needs, in bytes.
    pub(crate) scratch_bytes: Vec<u32>,
    /// Optimized LLVM IR of each kernel, if requested.
    pub(crate) ir: String,
}

#[cfg(feature = "host")]
pub use with::compile_amd;
#[cfg(feature = "host")]
pub(crate) use with::{compile, compile_amd_proxy};

/// A code object with a proxy kernel, and the resources of the proxy; or the index of a kernel that
/// does not fit into the proxy.
pub(crate) type Proxied = Result<(Vec<u8>, AmdFacts), usize>;

/// Compiles code for an AMD GPU and completes the facts of the kernels. Also returns the LLVM IR of
/// each kernel before optimisation, if requested.
#[cfg(not(feature = "host"))]
pub fn compile_amd(
    _: &Module,
    _: &mut [KernelFacts],
    architecture: AmdArchitecture,
    _: bool,
) -> Result<(Vec<u8>, String), CompileError> {
    Err(CompileError::NoNativeCode(Target::Amd(architecture)))
}

/// Compiles the kernels of a dkp module and their proxy kernel to one code object.
#[cfg(not(feature = "host"))]
pub(crate) fn compile_amd_proxy(
    _: &Module,
    _: &DkpModule,
    _: Proxy,
    architecture: AmdArchitecture,
) -> Result<Proxied, CompileError> {
    Err(CompileError::NoNativeCode(Target::Amd(architecture)))
}

#[cfg(not(feature = "host"))]
pub(crate) fn compile(
    _: &Module,
    _: &[Shape<'_>],
    target: Target,
    _: bool,
    _: Option<Arc<DiskCache>>,
) -> Result<Native, CompileError> {
    Err(CompileError::NoNativeCode(target))
}

#[cfg(feature = "host")]
mod with {
    use super::{
        AmdArchitecture, AmdFacts, Arc, CompileError, DiskCache, DkpModule, KernelFacts, Module, Native, Proxied,
        Proxy, Shape, Target,
    };
    use atoll_proxy_kernels::JumpTarget;
    use atoll_target_amd::{AmdError, Architecture};
    use atoll_target_host::{CpuLevel, KernelShape, Options};

    /// Compiles a module for a host target. Line numbers in the code are the lines recorded in the
    /// module's nodes.
    pub(crate) fn compile(
        module: &Module,
        kernels: &[Shape<'_>],
        target: Target,
        keep_ir: bool,
        cache: Option<Arc<DiskCache>>,
    ) -> Result<Native, CompileError> {
        let level = match target {
            Target::HostV3 => CpuLevel::V3,
            Target::HostV4 => CpuLevel::V4,
            Target::Nvidia(_) | Target::Amd(_) => return Err(CompileError::NoNativeCode(target)),
        };
        let shapes: Vec<KernelShape> =
            kernels.iter().map(|(name, block)| KernelShape { name: (*name).into(), block: *block }).collect();
        let options = Options { keep_ir, cache, ..Options::default() };
        let object = atoll_target_host::compile(module, &shapes, level, &options)?;
        let scratch_bytes = object.kernels.iter().map(|kernel| kernel.scratch_bytes).collect();
        let ir =
            object.kernels.iter().filter_map(|kernel| kernel.optimised_ir.as_deref()).collect::<Vec<_>>().join("\n");
        Ok(Native { elf: object.elf, scratch_bytes, ir })
    }

    /// Size of a register in bytes.
    const REGISTER_BYTES: u32 = 4;

    /// Compiles kernels, of which `facts` have the names and block shapes, to a code object for an AMD
    /// GPU, and completes the facts. Also returns the LLVM IR of each kernel before optimisation, if
    /// requested.
    ///
    /// # Errors
    /// The module has no such kernel, or the target refuses one.
    pub fn compile_amd(
        module: &Module,
        facts: &mut [KernelFacts],
        architecture: AmdArchitecture,
        keep_ir: bool,
    ) -> Result<(Vec<u8>, String), CompileError> {
        use atoll_target_amd::{KernelShape, Options};
        let architecture = compiled_for(architecture)?;
        let shapes: Vec<KernelShape> =
            facts.iter().map(|kernel| KernelShape { name: kernel.name.as_str().into(), block: kernel.block }).collect();
        let options = Options { keep_ir, ..Options::default() };
        let code = atoll_target_amd::compile(module, &shapes, architecture, &options)?;
        for (facts, found) in facts.iter_mut().zip(&code.kernels) {
            facts.registers = Some(found.vgprs);
            facts.spill_bytes = Some(found.vgpr_spills * REGISTER_BYTES);
            facts.amd = Some(resources(found));
        }
        Ok((code.elf, code.ir.unwrap_or_default()))
    }

    /// Like the function of this name without LLVM, which returns an error. `module` is that of
    /// `dkp` with line numbers.
    pub(crate) fn compile_amd_proxy(
        module: &Module,
        dkp: &DkpModule,
        proxy: Proxy,
        architecture: AmdArchitecture,
    ) -> Result<Proxied, CompileError> {
        use atoll_target_amd::{KernelShape, MAX_SHARED_BYTES, Options, compile_with_proxy};
        let architecture = compiled_for(architecture)?;
        let shape =
            |target: &JumpTarget| KernelShape { name: target.kernel.as_str().into(), block: [target.threads, 1, 1] };
        let shapes: Vec<KernelShape> = dkp.targets.iter().map(shape).collect();
        let options = Options { vgprs_max: Some(proxy.level.vgprs), ..Options::default() };
        let proxy = atoll_target_amd::Proxy {
            name: proxy.name,
            params_bytes: proxy.params_bytes,
            threads: proxy.threads,
            assembly: proxy.assembly,
            constraints: proxy.constraints,
        };
        match compile_with_proxy(module, &shapes, &proxy, architecture, &options) {
            Ok((code, facts)) => {
                // Every launch has the static shared memory of the proxy.
                let fits = |bytes: u32| bytes.saturating_add(facts.shared_static_bytes) <= MAX_SHARED_BYTES;
                let beyond = dkp.facts.candidates.iter().position(|candidate| !fits(candidate.shared_bytes));
                Ok(beyond.map_or_else(|| Ok((code.elf, resources(&facts))), Err))
            }
            Err(AmdError::NotInProxy { index, .. }) => Ok(Err(index)),
            Err(error) => Err(error.into()),
        }
    }

    /// The architecture of the target: it has the same name in a bundle.
    fn compiled_for(architecture: AmdArchitecture) -> Result<Architecture, CompileError> {
        architecture.name().parse().map_err(|_| CompileError::NoNativeCode(Target::Amd(architecture)))
    }

    fn resources(found: &atoll_target_amd::KernelFacts) -> AmdFacts {
        AmdFacts {
            vgprs: found.vgprs,
            sgprs: found.sgprs,
            agprs: found.agprs,
            wave_lanes: found.wave_lanes,
            private_bytes: found.scratch_bytes,
        }
    }
}
