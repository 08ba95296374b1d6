//! What a compilation goes through: its stages, and the forms that a model has between them.

use crate::targets::Target;
use std::fmt;
use std::time::Duration;

/// A step of the compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// ONNX to tensor graph.
    Import,
    /// Fusion and clean-up of the tensor graph.
    Transform,
    /// Kernel nodes, buffers, memory plan.
    Schedule,
    /// Kernels in PTX.
    Emit(Target),
    /// What is true of the kernels as they were written.
    Analyse(Target),
    /// PTX to PTX.
    Passes(Target),
    /// PTX to the target's code.
    Lower(Target),
    /// The bundle.
    Write,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Import => f.write_str("import"),
            Stage::Transform => f.write_str("fuse"),
            Stage::Schedule => f.write_str("schedule"),
            Stage::Emit(target) => write!(f, "emit {target}"),
            Stage::Analyse(target) => write!(f, "analyse {target}"),
            Stage::Passes(target) => write!(f, "passes {target}"),
            Stage::Lower(target) => write!(f, "lower {target}"),
            Stage::Write => f.write_str("write"),
        }
    }
}

/// How long a stage took.
#[derive(Clone, Copy, Debug)]
pub struct StageTime {
    /// Which.
    pub stage: Stage,
    /// How long.
    pub time: Duration,
}

/// An intermediate form of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The tensor graph.
    Graph,
    /// Kernels as code generation wrote them.
    Ptx,
    /// Kernels after the passes.
    PtxFinal,
    /// LLVM IR of a native target.
    Llvm,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Graph => "graph",
            Form::Ptx => "ptx",
            Form::PtxFinal => "ptx-final",
            Form::Llvm => "llvm",
        })
    }
}
