//! Watching a compilation: stages, times, intermediate forms.

use crate::error::CompileError;
use crate::targets::Target;
use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

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

/// Who watches. Both methods may be left out.
pub trait Observer {
    /// A stage begins; `done` of `total` stages are behind it.
    fn stage(&self, stage: Stage, done: usize, total: usize) {
        let _ = (stage, done, total);
    }

    /// A form exists, made by the step `by`; `text` writes it, which costs time only if it is called.
    fn form(&self, form: Form, by: &str, text: &dyn Fn() -> String) {
        let _ = (form, by, text);
    }

    /// Whether a form will be looked at: some are not made otherwise.
    fn wants(&self, form: Form) -> bool {
        let _ = form;
        false
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {}

/// Keeps the last text of one form.
pub(crate) struct Keep {
    form: Form,
    text: RefCell<Option<String>>,
}

impl Keep {
    pub(crate) fn new(form: Form) -> Keep {
        Keep { form, text: RefCell::new(None) }
    }

    pub(crate) fn take(self) -> Option<String> {
        self.text.into_inner()
    }
}

impl Observer for Keep {
    fn form(&self, form: Form, _by: &str, text: &dyn Fn() -> String) {
        if form == self.form {
            *self.text.borrow_mut() = Some(text());
        }
    }

    fn wants(&self, form: Form) -> bool {
        form == self.form
    }
}

/// Times stages and tells the observer.
pub(crate) struct Clock<'a> {
    observer: &'a dyn Observer,
    total: usize,
    times: Vec<StageTime>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, total: usize) -> Clock<'a> {
        Clock { observer, total, times: Vec::new() }
    }

    pub(crate) fn stage<T>(&mut self, stage: Stage, run: impl FnOnce() -> Result<T, CompileError>) -> Result<T, CompileError> {
        self.observer.stage(stage, self.times.len(), self.total);
        let start = Instant::now();
        let result = run();
        self.times.push(StageTime { stage, time: start.elapsed() });
        result
    }

    pub(crate) fn finish(self) -> Vec<StageTime> {
        self.times
    }
}
