//! The AMD target: compiles transformed PTX to code objects for AMD GPUs.
//!
//! [`compile`] takes a module and the block shapes of its kernels, and returns one ELF shared
//! object of the amdhsa ABI, of the version that the architecture's loaders know
//! ([`Architecture::code_object_version`]), with a kernel descriptor `NAME.kd` for each kernel.
//! [`abi`] defines the memory that a launch must provide.
//!
//! Start at [`compile`]. `atoll_lower` parses a kernel. `emit` writes LLVM IR in which a thread is
//! a lane with its own control flow, and LLVM's AMDGPU back end turns divergent branches into
//! masks. `object` optimises and compiles the IR, `link` runs `ld.lld`, and `facts` reads registers
//! and memory from the metadata of the result. All kernels are in one LLVM module: a linker does
//! not merge the metadata of several objects, and loaders read only one.
//!
//! *Warps.* In a wave of 64 lanes, each half is a warp of PTX. Instructions that exchange data
//! between lanes stay within their half.
//!
//! *Numbers.* Every operation that PTX defines exactly is exact, in all rounding modes. Approximate
//! instructions are within the limits of the ISA: `div`, `rcp`, `sqrt` and `rsqrt` as on the host
//! target; `ex2` and `lg2` of f32 use the processor's instructions (1 ulp); `sin`, `cos` and `tanh`
//! are the polynomials of `atoll_emit::math`.
//!
//! Invariants:
//! - A kernel is specialised on its block shape, never on its grid or parameters.
//! - The registers at the entry depend on the architecture only ([`abi`]).
//! - An unsupported construct is an error here, with its line, and never fails at run time.
//!
//! This crate neither loads nor runs code, and does not change PTX.

mod architecture;
mod emit;
mod error;
mod facts;
mod globals;
mod link;
mod message_pack;
mod object;
mod proxy;

pub use architecture::{Architecture, MAX_BLOCK_THREADS, MAX_SHARED_BYTES, UnknownArchitecture, WARP_LANES};
pub use atoll_kgraph::amd_abi as abi;
pub use atoll_lower::LowerError;
pub use error::AmdError;
pub use facts::KernelFacts;
pub use proxy::Proxy;

use atoll_lower::{Kernel, shape::BlockShape};
use atoll_ptx::{Function, FunctionKind, Module, Name};
use emit::EmittedKernel;

/// The name of this target in errors.
const TARGET: &str = "AMD";

/// A kernel to compile, and its block shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelShape {
    /// The kernel's name.
    pub name: Name,
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
}

/// Options of [`compile`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keep the LLVM IR, as generated.
    pub keep_ir: bool,
    /// The least and the most waves per SIMD that the compiler should plan for. It limits registers
    /// to reach the least. The compiler chooses if absent.
    pub waves_per_simd: Option<(u32, u32)>,
    /// Maximum number of vector registers of a lane; the compiler spills to stay below it.
    pub vgprs_max: Option<u32>,
}

/// Code for one architecture.
#[derive(Clone, Debug)]
pub struct CodeObject {
    /// The ELF shared object.
    pub elf: Vec<u8>,
    /// Facts about the requested kernels, in the same order.
    pub kernels: Vec<KernelFacts>,
    /// The LLVM IR of all kernels before optimisation, if [`Options::keep_ir`] is set.
    pub ir: Option<String>,
}

/// Compiles kernels of a module to one code object.
///
/// # Errors
/// [`AmdError`], if the module has no such kernel, a block shape is not possible, a kernel is
/// malformed, uses something unsupported or needs too much shared memory, or the linker is absent.
pub fn compile(
    module: &Module,
    kernels: &[KernelShape],
    architecture: Architecture,
    options: &Options,
) -> Result<CodeObject, AmdError> {
    linked(module, kernels, None, architecture, options).map(|(code, _)| code)
}

/// Compiles kernels of a module, and a proxy kernel that jumps to them, to one code object. Also
/// returns facts about the proxy. The kernels use the registers of the proxy.
///
/// # Errors
/// As [`compile`], and [`AmdError::NotInProxy`] if a kernel needs more registers than the proxy has,
/// accumulators, or scratch memory.
pub fn compile_with_proxy(
    module: &Module,
    kernels: &[KernelShape],
    proxy: &Proxy,
    architecture: Architecture,
    options: &Options,
) -> Result<(CodeObject, KernelFacts), AmdError> {
    let (code, facts) = linked(module, kernels, Some(proxy), architecture, options)?;
    let facts = facts.iter().find(|facts| facts.name == proxy.name);
    let facts = facts.ok_or_else(|| AmdError::CodeObject(format!("it lacks proxy `{}`", proxy.name)))?;
    proxy::check(&code.kernels, facts)?;
    let facts = KernelFacts { block: [proxy.threads, 1, 1], params_bytes: proxy.params_bytes, ..facts.clone() };
    Ok((code, facts))
}

/// The code object, and the facts about everything in it.
fn linked(
    module: &Module,
    kernels: &[KernelShape],
    proxy: Option<&Proxy>,
    architecture: Architecture,
    options: &Options,
) -> Result<(CodeObject, Vec<KernelFacts>), AmdError> {
    let emitted = emitted(module, kernels, architecture)?;
    let text = object::module_text(&globals::definitions(module)?, &emitted, proxy, architecture, options);
    let object = object::compile_ir(&text, &emitted, architecture)?;
    let elf = link::link(&object)?;
    let found = facts::read(&elf)?;
    let facts = |kernel: &EmittedKernel| {
        let facts = found.iter().find(|f| f.name == kernel.name.as_str()).cloned();
        let facts = facts.ok_or_else(|| AmdError::CodeObject(format!("it lacks kernel `{}`", kernel.name)))?;
        Ok(KernelFacts { block: kernel.block.dims, params_bytes: kernel.params_bytes, ..facts })
    };
    let kernels = emitted.iter().map(facts).collect::<Result<Vec<_>, AmdError>>()?;
    Ok((CodeObject { elf, kernels, ir: options.keep_ir.then_some(text) }, found))
}

/// The LLVM IR of kernels, as [`compile`] generates it.
///
/// # Errors
/// As [`compile`].
pub fn llvm_ir(
    module: &Module,
    kernels: &[KernelShape],
    architecture: Architecture,
    options: &Options,
) -> Result<String, AmdError> {
    let emitted = emitted(module, kernels, architecture)?;
    Ok(object::module_text(&globals::definitions(module)?, &emitted, None, architecture, options))
}

fn emitted(
    module: &Module,
    kernels: &[KernelShape],
    architecture: Architecture,
) -> Result<Vec<EmittedKernel>, AmdError> {
    kernels.iter().map(|kernel| emit(module, kernel, architecture)).collect()
}

fn emit(module: &Module, kernel: &KernelShape, architecture: Architecture) -> Result<EmittedKernel, AmdError> {
    let (function, block) = function_of(module, kernel)?;
    let Kernel { program, analysis } = Kernel::of(module, function, block, TARGET)?;
    let emitted = emit::emit_kernel(&program, &analysis, architecture)?;
    if emitted.shared_bytes > MAX_SHARED_BYTES {
        return Err(AmdError::SharedMemory {
            kernel: program.name.to_string(),
            bytes: emitted.shared_bytes,
            limit: MAX_SHARED_BYTES,
        });
    }
    Ok(emitted)
}

fn function_of<'m>(module: &'m Module, kernel: &KernelShape) -> Result<(&'m Function, BlockShape), AmdError> {
    let function = module.function(&kernel.name).filter(|f| f.kind == FunctionKind::Entry);
    let function = function.ok_or_else(|| AmdError::NoSuchKernel {
        name: kernel.name.to_string(),
        available: module.kernels().map(|k| format!("`{}`", k.name)).collect::<Vec<_>>().join(", "),
    })?;
    let refuse = |reason| AmdError::BlockShape { kernel: kernel.name.to_string(), block: kernel.block, reason };
    let threads =
        kernel.block.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).ok_or_else(|| refuse("it is too large"))?;
    match threads {
        0 => Err(refuse("it is empty")),
        1..=MAX_BLOCK_THREADS => Ok((function, BlockShape { dims: kernel.block })),
        _ => Err(refuse("a block has at most 1024 threads")),
    }
}
