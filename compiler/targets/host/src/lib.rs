//! The host target: compiles transformed PTX to native x86-64 code.
//!
//! [`compile`] takes a module and the block shapes its kernels are launched with, and returns one
//! ELF shared object without undefined symbols that implements [`atoll_kgraph::host_abi`].
//!
//! Start at [`compile`]. `atoll_lower` reads a kernel and analyses its control flow and the shapes
//! of its registers; `emit` writes LLVM IR in which a warp is a vector of 32 lanes; `object`
//! optimises and compiles the IR; `link` links the objects of all kernels.
//!
//! *Numbers.* Every operation that PTX defines exactly is exact: all rounding modes, `.ftz`,
//! `.sat`, carries, halves rounded once. The payload of a NaN may differ from NVIDIA's. The table
//! shows the largest errors of approximate instructions, which the tests check, and the limits of
//! the ISA (ulp: units in the last place):
//!
//! | instruction | here | the ISA |
//! |---|---|---|
//! | `div.approx`, `div.full`, `rcp.approx`, `sqrt.approx` (f32) | ½ ulp | 2, 2, 1 ulp, 2⁻²³ |
//! | `rsqrt.approx.f32` | 1½ ulp, 2⁻²³ relative | 2⁻²²·⁹ relative |
//! | `ex2.approx.f32` | 1 ulp (2⁻¹⁴⁹ absolute if the result is subnormal) | 2 ulp |
//! | `lg2.approx.f32` | 1 ulp or 10⁻¹⁰ absolute | 2⁻²²·⁶ |
//! | `sin.approx.f32`, `cos.approx.f32` | 2 ulp or 2⁻²³ absolute, up to 10⁴ | see below |
//! | `tanh.approx.f32` | 6 ulp | 2⁻¹¹ relative |
//! | `ex2`, `tanh` of f16 and bf16 | as f32, then rounded | 2⁻⁹·⁹, 2⁻¹⁰·⁹; 2⁻⁷, 2⁻⁸ |
//! | `rcp`, `rsqrt.approx.ftz.f64` | 2⁻²⁰: 32 bits in, 32 out | as here |
//! | `mma`, `wmma` of floats | products added in ascending k, one rounding each | not specified |
//!
//! For `sin` and `cos` the ISA allows 2⁻²⁰·⁵ absolute up to 2π and 2⁻¹⁴·⁷ up to 100π; here,
//! arguments above 10⁴ give some number in −1..=1.
//!
//! Integer quotients and remainders by zero are all ones in every width, signed or not: the result
//! of the code that NVIDIA's assembler generates for them.
//!
//! Invariants:
//! - A kernel is specialised on its block shape, never on its grid or parameters.
//! - No floating-point operations are fused or reordered that PTX keeps separate.
//! - An unsupported construct is an error here, with its line, and never fails at run time.
//! - A launch has fewer than 2³¹ threads along each axis.
//!
//! This crate neither loads nor runs code, and does not change PTX.

mod cache;
mod emit;
mod error;
mod frame_size;
mod globals;
mod link;
mod object;
mod settings;

pub use atoll_lower::LowerError;
pub use error::HostError;

use atoll_kgraph::DiskCache;
use atoll_kgraph::host_abi::{HOST_ABI_SYMBOL, HOST_ABI_VERSION};
use atoll_lower::{Kernel, shape::BlockShape};
use atoll_ptx::{Function, FunctionKind, Module, Name};
use emit::EmittedKernel;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The name of this target in errors.
const TARGET: &str = "host";

/// Limit on the threads of a block, as everywhere in CUDA.
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// An x86-64 micro-architecture level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CpuLevel {
    /// AVX2, FMA, F16C.
    V3,
    /// AVX-512 (F, BW, CD, DQ, VL).
    V4,
}

impl CpuLevel {
    /// All levels.
    pub const ALL: [CpuLevel; 2] = [CpuLevel::V3, CpuLevel::V4];

    /// The name of the target image for this level.
    pub fn target_name(self) -> &'static str {
        match self {
            CpuLevel::V3 => "host-x86-64-v3",
            CpuLevel::V4 => "host-x86-64-v4",
        }
    }

    /// The highest level this machine supports; `None` below [`CpuLevel::V3`].
    pub fn of_this_machine() -> Option<CpuLevel> {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let v3 = has!("avx2")
                && has!("fma")
                && has!("f16c")
                && has!("bmi1")
                && has!("bmi2")
                && has!("lzcnt")
                && has!("movbe");
            let v4 = has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
            v3.then_some(if v4 { CpuLevel::V4 } else { CpuLevel::V3 })
        }
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    fn llvm_cpu(self) -> &'static str {
        match self {
            CpuLevel::V3 => "x86-64-v3",
            CpuLevel::V4 => "x86-64-v4",
        }
    }

    fn llvm_features(self) -> &'static str {
        match self {
            CpuLevel::V3 => "",
            // By default LLVM restricts this level to 256 bits; vectors of 32 lanes profit
            // from 512.
            CpuLevel::V4 => "-prefer-256-bit",
        }
    }

    fn vector_bits(self) -> u32 {
        match self {
            CpuLevel::V3 => 256,
            CpuLevel::V4 => 512,
        }
    }
}

/// A kernel to compile, and its block shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelShape {
    /// The kernel's name.
    pub name: Name,
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
}

impl KernelShape {
    /// The block shape from `.reqntid`, or else from `.maxntid`; `None` if the kernel has neither.
    pub fn of_directives(function: &Function) -> Option<KernelShape> {
        let find = |name: &str| function.attributes.iter().find(|a| a.name == name);
        let directive = find("reqntid").or_else(|| find("maxntid"))?;
        let numbers: Vec<u32> = directive.arguments.iter().filter_map(|a| a.parse().ok()).collect();
        let at = |i: usize| numbers.get(i).copied().unwrap_or(1);
        Some(KernelShape { name: function.name.clone(), block: [at(0), at(1), at(2)] })
    }
}

/// Options of [`compile`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keep LLVM IR, as generated and as optimised.
    pub keep_ir: bool,
    /// Number of compiler threads; 0 means one per CPU of the machine.
    pub threads: usize,
    /// Check every memory access at run time with
    /// [`HostHelpers::check`](atoll_kgraph::host_abi::HostHelpers::check); slow.
    pub check: bool,
    /// Cache of compiled kernels; not used if `keep_ir` is set.
    pub cache: Option<Arc<DiskCache>>,
}

/// Native code for one level.
#[derive(Clone, Debug)]
pub struct HostObject {
    /// The ELF shared object.
    pub elf: Vec<u8>,
    /// The kernels that were asked for, in the same order.
    pub kernels: Vec<CompiledKernel>,
}

/// Facts about one compiled kernel.
#[derive(Clone, Debug)]
pub struct CompiledKernel {
    /// Its name, and the name of its symbol.
    pub name: Name,
    /// The block shape.
    pub block: [u32; 3],
    /// Size of the parameter block in bytes.
    pub params_bytes: u32,
    /// Bytes of scratch memory that one compute unit needs to run a block.
    pub scratch_bytes: u32,
    /// Bytes of static shared memory; a launch adds its dynamic shared memory.
    pub shared_static_bytes: u32,
    /// LLVM IR as generated, if [`Options::keep_ir`] is set.
    pub ir: Option<String>,
    /// LLVM IR after optimisation, if [`Options::keep_ir`] is set.
    pub optimised_ir: Option<String>,
}

/// Compiles kernels of a module to one native object.
///
/// # Errors
/// [`HostError`], if the module has no such kernel, a block shape is not possible, a kernel is
/// malformed or uses something unsupported, or LLVM fails.
pub fn compile(
    module: &Module,
    kernels: &[KernelShape],
    level: CpuLevel,
    options: &Options,
) -> Result<HostObject, HostError> {
    let globals = globals::definitions(module)?;
    let jobs: Vec<Job<'_>> = kernels.iter().map(|k| Job::new(module, k)).collect::<Result<_, _>>()?;
    let results = in_parallel(&jobs, options.threads, |job| job.run(&globals, level, options))?;
    let mut objects = vec![shared_object(&globals, level)?];
    let mut compiled = Vec::new();
    for (object, kernel) in results {
        objects.push(object);
        compiled.push(kernel);
    }
    if let Some(cache) = &options.cache {
        cache.remove_unused();
    }
    Ok(HostObject { elf: link::link(&objects)?, kernels: compiled })
}

/// One kernel to be compiled.
struct Job<'a> {
    module: &'a Module,
    function: &'a Function,
    block: BlockShape,
}

impl<'a> Job<'a> {
    fn new(module: &'a Module, kernel: &KernelShape) -> Result<Job<'a>, HostError> {
        let function = module.function(&kernel.name).filter(|f| f.kind == FunctionKind::Entry);
        let function = function.ok_or_else(|| HostError::NoSuchKernel {
            name: kernel.name.to_string(),
            available: module.kernels().map(|k| format!("`{}`", k.name)).collect::<Vec<_>>().join(", "),
        })?;
        let refuse = |reason| HostError::BlockShape { kernel: kernel.name.to_string(), block: kernel.block, reason };
        let threads =
            kernel.block.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).ok_or_else(|| refuse("it is too large"))?;
        match threads {
            0 => Err(refuse("it is empty")),
            1..=MAX_BLOCK_THREADS => Ok(Job { module, function, block: BlockShape { dims: kernel.block } }),
            _ => Err(refuse("a block has at most 1024 threads")),
        }
    }

    fn run(
        &self,
        globals: &globals::Globals,
        level: CpuLevel,
        options: &Options,
    ) -> Result<(Vec<u8>, CompiledKernel), HostError> {
        let Kernel { program, analysis } = Kernel::of(self.module, self.function, self.block, TARGET)?;
        let emitted = emit::emit_kernel(&program, &analysis, level, options.check)?;
        let ir = kernel_ir(&emitted, globals, level);
        let compiled = match &options.cache {
            Some(cache) if !options.keep_ir => cache::compile_ir(&program.name, &ir, level, cache)?,
            _ => object::compile_ir(&program.name, &ir, level, options.keep_ir)?,
        };
        let kernel = CompiledKernel {
            name: program.name.clone(),
            block: self.block.dims,
            params_bytes: program.params_bytes,
            scratch_bytes: scratch_bytes(&emitted, &compiled)?,
            shared_static_bytes: program.shared_bytes,
            ir: options.keep_ir.then_some(ir),
            optimised_ir: compiled.optimised,
        };
        Ok((compiled.object, kernel))
    }
}

/// Scratch memory of a kernel, with the stacks of its fibers.
fn scratch_bytes(kernel: &EmittedKernel, compiled: &object::Compiled) -> Result<u32, HostError> {
    if kernel.fibers == 0 {
        return Ok(kernel.scratch_bytes);
    }
    let untold = || HostError::Llvm { kernel: "a warp".into(), message: "the stack size was not reported".into() };
    let frame = compiled.frame_bytes.ok_or_else(untold)?;
    let stack = (frame + emit::FIBER_RESERVE_BYTES).next_multiple_of(emit::FIBER_ALIGN);
    Ok(kernel.scratch_bytes + kernel.fibers * stack)
}

/// The LLVM module of one kernel: the function, the routines it calls, and declarations of the
/// variables it uses.
fn kernel_ir(kernel: &EmittedKernel, globals: &globals::Globals, level: CpuLevel) -> String {
    let mut text = header();
    for name in &kernel.globals {
        text.push_str(&globals.declaration(name));
    }
    text.push_str(&kernel.text);
    for routine in &kernel.math {
        text.push_str(&routine.definition());
    }
    text.push_str(&attributes(level));
    text.push_str(&kernel.lines);
    text
}

/// The object with the definitions shared by all kernels. A module without variables always gives
/// the same object, so that object is compiled once and kept.
fn shared_object(globals: &globals::Globals, level: CpuLevel) -> Result<Vec<u8>, HostError> {
    static WITHOUT_VARIABLES: [OnceLock<Vec<u8>>; CpuLevel::ALL.len()] =
        [const { OnceLock::new() }; CpuLevel::ALL.len()];
    let compile = || Ok(object::compile_ir("module", &shared_ir(globals, level), level, false)?.object);
    if !globals.is_empty() {
        return compile();
    }
    let kept = &WITHOUT_VARIABLES[level as usize];
    kept.get().map_or_else(compile, |object| Ok(object.clone())).map(|object| kept.get_or_init(|| object).clone())
}

/// The LLVM module with the definitions shared by all kernels: variables, and the version of the
/// ABI.
fn shared_ir(globals: &globals::Globals, level: CpuLevel) -> String {
    let mut text = header();
    let _ = writeln!(text, "@{HOST_ABI_SYMBOL} = constant i32 {HOST_ABI_VERSION}, align 4");
    text.push_str(&globals.all_definitions());
    text.push_str(&attributes(level));
    text
}

fn header() -> String {
    format!("target triple = \"{}\"\n", object::TRIPLE)
}

fn attributes(level: CpuLevel) -> String {
    let bits = level.vector_bits();
    // An access through a null pointer faults; LLVM must not treat it as undefined behaviour.
    let common = format!(
        "null_pointer_is_valid \"prefer-vector-width\"=\"{bits}\" \"min-legal-vector-width\"=\"{bits}\" \"no-builtins\""
    );
    format!(
        "attributes #0 = {{ nounwind {common} }}\nattributes #1 = {{ nounwind alwaysinline {common} }}\n!0 = !{{}}\n"
    )
}

/// Runs jobs on several threads; returns their results in order, or the first error.
fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    run: impl Fn(&J) -> Result<R, HostError> + Sync,
) -> Result<Vec<R>, HostError> {
    let wanted = if threads == 0 { std::thread::available_parallelism().map_or(1, |n| n.get()) } else { threads };
    if wanted.min(jobs.len()) == 1 {
        // A single job runs in the calling thread: a new thread would first have to map its memory.
        return jobs.iter().map(run).collect();
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..wanted.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((index, job)) = take(jobs, &next) {
                    let result = run(job);
                    results.lock().unwrap_or_else(|e| e.into_inner()).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|r| r.0);
    results.into_iter().map(|r| r.1).collect()
}

fn take<'j, J>(jobs: &'j [J], next: &AtomicUsize) -> Option<(usize, &'j J)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}
