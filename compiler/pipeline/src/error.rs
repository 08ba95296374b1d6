//! Errors of a compilation.

use crate::stage::Form;
use crate::targets::Target;

/// Why a model was not compiled. Import and pack errors are caused by the input; all others are
/// limits of this compiler, or bugs in it.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model cannot be read, or uses something unsupported.
    #[error(transparent)]
    Import(#[from] atoll_frontend::onnx::ImportError),
    /// A function's manifest, or a file it names, is wrong.
    #[error(transparent)]
    Pack(#[from] crate::PackError),
    /// A transformation made the tensor graph invalid: a bug in this compiler.
    #[error(transparent)]
    Transform(#[from] atoll_frontend::transform::TransformError),
    /// Code generation failed.
    #[error(transparent)]
    Codegen(#[from] atoll_codegen::CodegenError),
    /// A pass failed.
    #[error(transparent)]
    Passes(#[from] atoll_passes::PassError),
    /// The generated kernels do not parse: a bug in this compiler.
    #[error("internal error: the text of the kernels cannot be read back: {0}")]
    Text(#[from] atoll_ptx::SyntaxErrors),
    /// The NVIDIA target failed.
    #[error(transparent)]
    Nvidia(#[from] atoll_target_nvidia::NvidiaError),
    /// The host target failed.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] atoll_target_host::HostError),
    /// Code for an AMD GPU could not be compiled.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Amd(#[from] atoll_target_amd::AmdError),
    /// The target needs LLVM, and this program was built without it.
    #[error(
        "code for {0} needs LLVM, and this program was built without it; choose an NVIDIA target, such as nvidia:sm_75"
    )]
    NoNativeCode(Target),
    /// A kernel has an access that cannot be bounded to the memory of a tenant.
    #[error("kernel `{kernel}` cannot be fenced: {reason}")]
    NotFenced {
        /// The kernel.
        kernel: String,
        /// The reason.
        reason: atoll_passes::NotFenced,
    },
    /// The bundle cannot be recompiled.
    #[error(transparent)]
    Recompile(#[from] crate::RecompileError),
    /// The bundle could not be written.
    #[error(transparent)]
    Bundle(#[from] atoll_kgraph::BundleError),
    /// The target has no such intermediate form.
    #[error("there is no {form} for {target}")]
    NoSuchForm {
        /// The requested form.
        form: Form,
        /// The target.
        target: Target,
    },
}
