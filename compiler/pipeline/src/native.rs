//! Native code of host targets. Needs LLVM.

use crate::error::CompileError;
use crate::targets::Target;
use atoll_kgraph::DiskCache;
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
pub(crate) use with::compile;

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
    use super::{Arc, CompileError, DiskCache, Module, Native, Shape, Target};
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
            Target::Nvidia(_) => return Err(CompileError::NoNativeCode(target)),
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
}
