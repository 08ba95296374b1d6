//! The stages of a compilation, and the intermediate forms of a model.

use crate::targets::Target;
use std::fmt;
use std::time::Duration;

/// A stage of the compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reads a model into a tensor graph, or PTX files and their manifest.
    Import,
    /// Fuses and simplifies the tensor graph.
    Transform,
    /// Determines kernel nodes, buffers and the memory plan.
    Schedule,
    /// Generates kernels in PTX.
    Emit(Target),
    /// Analyses the kernels before the passes.
    Analyse(Target),
    /// Runs the PTX passes.
    Passes(Target),
    /// Lowers PTX to the target's code.
    Lower(Target),
    /// Writes the bundle.
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

/// The duration of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageTime {
    /// The stage.
    pub stage: Stage,
    /// Its duration.
    pub time: Duration,
}

/// An intermediate form of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The tensor graph.
    Graph,
    /// Kernels before the passes.
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
