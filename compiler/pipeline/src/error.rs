//! What can go wrong in a compilation, and whose fault it is.

use crate::stage::Form;
use crate::targets::Target;

/// Why a model was not compiled. Import errors are the model's; everything after it is a limit of
/// this compiler or a bug in it.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model cannot be read or uses what is not supported.
    #[error(transparent)]
    Import(#[from] atoll_frontend::onnx::ImportError),
    /// A function's manifest, or a file it names, is wrong.
    #[error(transparent)]
    Pack(#[from] crate::PackError),
    /// A transformation of the tensor graph left it wrong: our bug.
    #[error(transparent)]
    Transform(#[from] atoll_frontend::transform::TransformError),
    /// Kernels could not be written.
    #[error(transparent)]
    Codegen(#[from] atoll_codegen::CodegenError),
    /// A pass failed.
    #[error(transparent)]
    Passes(#[from] atoll_passes::PassError),
    /// The kernels' own text cannot be read back: our bug.
    #[error("internal error: the text of the kernels cannot be read back: {0}")]
    Text(#[from] atoll_ptx::SyntaxErrors),
    /// The NVIDIA target failed.
    #[error(transparent)]
    Nvidia(#[from] atoll_target_nvidia::NvidiaError),
    /// The host target failed.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] atoll_target_host::HostError),
    /// A host target, and no LLVM to make its code.
    #[error(
        "code for {0} is made with LLVM, which this program was built without; name an NVIDIA target, such as nvidia:sm_75"
    )]
    NoNativeCode(Target),
    /// The bundle could not be written.
    #[error(transparent)]
    Bundle(#[from] atoll_kgraph::BundleError),
    /// A form that the target does not have.
    #[error("there is no {form} for {target}")]
    NoSuchForm {
        /// What was asked for.
        form: Form,
        /// Of which target.
        target: Target,
    },
}
