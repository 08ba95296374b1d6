//! Compiles IR text to an ELF object with LLVM.

use crate::CpuLevel;
use crate::error::HostError;
use crate::frame_size::largest_frame;
use crate::settings;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};

/// The target triple: host code runs on x86-64 Linux only.
pub(crate) const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Optimisation passes for a kernel. The IR is already vectorised; what remains is to simplify and
/// unroll. Compared with `default<O2>` this takes less than two thirds of the time, and the code is
/// as fast (`atoll bench kernel`).
const PIPELINE: &str = "always-inline,globaldce,function(sroa,early-cse,simplifycfg,\
    instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),\
    gvn,loop-unroll,instsimplify,simplifycfg,adce)";

/// The passes for a kernel with more than [`MAX_UNROLLED_BLOCKS`] basic blocks, without unrolling:
/// for each loop that LLVM unrolls, or considers to unroll, it visits the code after the loop,
/// which is quadratic in the number of loops.
const PIPELINE_OF_LARGE: &str = "always-inline,globaldce,function(sroa,early-cse,simplifycfg,\
    instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),\
    gvn,instsimplify,simplifycfg,adce)";

/// Limit on the basic blocks of a kernel whose loops are unrolled. Kernels of models have some
/// hundreds.
const MAX_UNROLLED_BLOCKS: usize = 1500;

/// The passes for an IR text.
pub(crate) fn pipeline_for(text: &str) -> &'static str {
    let labels = text.lines().filter(|line| line.ends_with(':')).count();
    if labels > MAX_UNROLLED_BLOCKS { PIPELINE_OF_LARGE } else { PIPELINE }
}

/// The result of compiling one IR module.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) object: Vec<u8>,
    /// Optimised IR, if it was asked for.
    pub(crate) optimised: Option<String>,
    /// The largest stack frame of the functions with the attribute `warn-stack-size`.
    pub(crate) frame_bytes: Option<u32>,
}

/// Optimises and compiles one module of IR text.
pub(crate) fn compile_ir(name: &str, text: &str, level: CpuLevel, keep_ir: bool) -> Result<Compiled, HostError> {
    let failure = |message: String| HostError::Llvm { kernel: name.to_owned(), message };
    let context = Context::create();
    // LLVM 22 no longer takes ownership of the buffer, but inkwell 0.11 still forgets it: a copy of
    // the text would leak. The parser reads the byte after the end, hence the zero byte.
    let text = format!("{text}\0");
    let buffer = MemoryBuffer::create_from_memory_range(&text.as_bytes()[..text.len() - 1], name);
    let module = context.create_module_from_ir(buffer).map_err(|e| failure(e.to_string()))?;
    let machine = target_machine(level)?;
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    if cfg!(debug_assertions) {
        module.verify().map_err(|e| failure(e.to_string()))?;
    }
    optimise(&module, &machine, pipeline_for(&text)).map_err(failure)?;
    let (object, frame_bytes) = largest_frame(&context, || machine.write_to_memory_buffer(&module, FileType::Object));
    let object = object.map_err(|e| failure(e.to_string()))?;
    let optimised = keep_ir.then(|| module.print_to_string().to_string());
    Ok(Compiled { object: object.as_slice().to_vec(), optimised, frame_bytes })
}

fn optimise(module: &Module<'_>, machine: &TargetMachine, pipeline: &str) -> Result<(), String> {
    let options = PassBuilderOptions::create();
    options.set_loop_vectorization(false);
    options.set_loop_slp_vectorization(false);
    options.set_loop_interleaving(false);
    module.run_passes(pipeline, machine, options).map_err(|e| e.to_string())
}

fn target_machine(level: CpuLevel) -> Result<TargetMachine, HostError> {
    settings::set_options();
    Target::initialize_x86(&InitializationConfig::default());
    let triple = TargetTriple::create(TRIPLE);
    let target = Target::from_triple(&triple).map_err(|e| HostError::NoTarget(e.to_string()))?;
    let machine = target.create_target_machine(
        &triple,
        level.llvm_cpu(),
        level.llvm_features(),
        OptimizationLevel::Default,
        RelocMode::PIC,
        CodeModel::Small,
    );
    machine.ok_or_else(|| HostError::NoTarget(format!("no machine for {}", level.llvm_cpu())))
}
