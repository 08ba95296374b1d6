//! Compiles IR text to an ELF object with LLVM.

use crate::architecture::Architecture;
use crate::emit::{EmittedKernel, print_definitions, quoted};
use crate::error::AmdError;
use crate::globals::Globals;
use crate::proxy::{self, Proxy};
use crate::{Options, abi};
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};
use std::collections::BTreeSet;

const TRIPLE: &str = "amdgcn-amd-amdhsa";

/// Optimisation passes. They do not include the passes that infer attributes of kernels: those
/// would drop inputs that a kernel does not use, which changes the registers at its entry.
const PIPELINE: &str = "always-inline,globaldce,function(infer-address-spaces,sroa,early-cse,simplifycfg,\
    instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),gvn,loop-unroll,\
    infer-address-spaces,sroa,instcombine<no-verify-fixpoint>,simplifycfg,adce)";

/// The passes, without unrolling, for modules with a kernel of more than [`MAX_UNROLLED_BLOCKS`]
/// basic blocks.
const PIPELINE_OF_LARGE: &str = "always-inline,globaldce,function(infer-address-spaces,sroa,early-cse,simplifycfg,\
    instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),gvn,instsimplify,simplifycfg,adce)";

/// The attribute number of the first kernel; lower numbers are taken.
const FIRST_ATTRIBUTES: usize = 2;

/// Maximum number of basic blocks of a kernel whose loops are unrolled.
const MAX_UNROLLED_BLOCKS: usize = 1500;

/// The LLVM module of the kernels, of their proxy and of the variables.
pub(crate) fn module_text(
    globals: &Globals,
    kernels: &[EmittedKernel],
    proxy: Option<&Proxy>,
    architecture: Architecture,
    options: &Options,
) -> String {
    let mut text = format!("target triple = \"{TRIPLE}\"\n") + &globals.text();
    for (number, kernel) in kernels.iter().enumerate() {
        text += &format!(
            "define protected amdgpu_kernel void \
             @{}(ptr addrspace(4) noundef byref([{} x i8]) align 16 %kernarg) #{} {{\n{}}}\n",
            quoted(&kernel.name),
            abi::kernarg_bytes(kernel.params_bytes),
            FIRST_ATTRIBUTES + number,
            kernel.body
        );
    }
    let math: BTreeSet<_> = kernels.iter().flat_map(|kernel| &kernel.math).collect();
    math.iter().for_each(|routine| text.push_str(&routine.definition()));
    if kernels.iter().any(|kernel| kernel.prints) {
        text += &print_definitions();
    }
    // The attributes of these functions.
    text += "attributes #1 = { nounwind alwaysinline \"no-builtins\" }\n";
    for (number, kernel) in kernels.iter().enumerate() {
        let threads = kernel.block.threads();
        text += &attributes(FIRST_ATTRIBUTES + number, [threads, threads], kernel.shared_bytes, options);
    }
    if let Some(proxy) = proxy {
        let number = FIRST_ATTRIBUTES + kernels.len();
        text += &proxy.definition(number);
        text += &attributes(number, [1, proxy.threads], proxy::shared_bytes(kernels), &Options::default());
    }
    text + &flags(architecture)
}

/// Module flags, and the metadata that instructions refer to: `!0` is empty, `!1` marks
/// non-temporal accesses. LLVM counts the version of the code-object ABI in hundredths.
fn flags(architecture: Architecture) -> String {
    format!(
        "!llvm.module.flags = !{{!2}}\n!0 = !{{}}\n!1 = !{{i32 1}}\n\
         !2 = !{{i32 1, !\"amdhsa_code_object_version\", i32 {}}}\n",
        100 * architecture.code_object_version()
    )
}

/// The attributes of a kernel. They fix the registers at its entry: the kernarg segment and all
/// workgroup ids are inputs, no other input of the runtime is. `threads` are the least and the most
/// of a block.
fn attributes(number: usize, threads: [u32; 2], shared_bytes: u32, options: &Options) -> String {
    const NO_INPUTS: [&str; 10] = [
        "dispatch-ptr",
        "queue-ptr",
        "dispatch-id",
        "implicitarg-ptr",
        "hostcall-ptr",
        "heap-ptr",
        "default-queue",
        "completion-action",
        "multigrid-sync-arg",
        "lds-kernel-id",
    ];
    let none: String = NO_INPUTS.iter().map(|input| format!(" \"amdgpu-no-{input}\"")).collect();
    let [least, most] = threads;
    let vgprs = options.vgprs_max.map(|vgprs| format!(" \"amdgpu-num-vgpr\"=\"{vgprs}\""));
    let waves = options.waves_per_simd.map(|(least, most)| format!(" \"amdgpu-waves-per-eu\"=\"{least},{most}\""));
    format!(
        "attributes #{number} = {{ nounwind convergent norecurse null_pointer_is_valid \"no-builtins\" \
         \"denormal-fp-math\"=\"ieee,ieee\" \"denormal-fp-math-f32\"=\"ieee,ieee\" \
         \"amdgpu-flat-work-group-size\"=\"{least},{most}\" \"amdgpu-lds-size\"=\"{shared_bytes}\" \
         \"amdgpu-implicitarg-num-bytes\"=\"0\" \"uniform-work-group-size\"=\"true\"{none}{}{} }}\n",
        waves.unwrap_or_default(),
        vgprs.unwrap_or_default()
    )
}

/// Optimises and compiles the IR text of kernels.
pub(crate) fn compile_ir(
    text: &str,
    kernels: &[EmittedKernel],
    architecture: Architecture,
) -> Result<Vec<u8>, AmdError> {
    let failure = |message: String| AmdError::Llvm {
        kernels: kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(", "),
        architecture: architecture.name(),
        message,
    };
    let context = Context::create();
    // LLVM 22 no longer takes ownership of the buffer, but inkwell 0.11 still forgets it, so a copy
    // of the text would leak. The parser reads one byte past the end, hence the zero byte.
    let text = format!("{text}\0");
    let buffer = MemoryBuffer::create_from_memory_range(&text.as_bytes()[..text.len() - 1], "kernels");
    let module = context.create_module_from_ir(buffer).map_err(|e| failure(e.to_string()))?;
    let machine = target_machine(architecture)?;
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    if cfg!(debug_assertions) {
        module.verify().map_err(|e| failure(e.to_string()))?;
    }
    let options = PassBuilderOptions::create();
    options.set_loop_vectorization(false);
    options.set_loop_slp_vectorization(false);
    module.run_passes(pipeline_for(kernels), &machine, options).map_err(|e| failure(e.to_string()))?;
    let object = machine.write_to_memory_buffer(&module, FileType::Object).map_err(|e| failure(e.to_string()))?;
    Ok(object.as_slice().to_vec())
}

fn pipeline_for(kernels: &[EmittedKernel]) -> &'static str {
    let labels = |kernel: &EmittedKernel| kernel.body.lines().filter(|line| line.ends_with(':')).count();
    if kernels.iter().any(|kernel| labels(kernel) > MAX_UNROLLED_BLOCKS) { PIPELINE_OF_LARGE } else { PIPELINE }
}

fn target_machine(architecture: Architecture) -> Result<TargetMachine, AmdError> {
    Target::initialize_amd_gpu(&InitializationConfig::default());
    let triple = TargetTriple::create(TRIPLE);
    let target = Target::from_triple(&triple).map_err(|e| AmdError::NoTarget(e.to_string()))?;
    let machine = target.create_target_machine(
        &triple,
        architecture.name(),
        architecture.llvm_features(),
        OptimizationLevel::Default,
        RelocMode::PIC,
        CodeModel::Default,
    );
    machine.ok_or_else(|| AmdError::NoTarget(format!("no machine for {architecture}")))
}
