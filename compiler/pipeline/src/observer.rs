//! Observation of a compilation: stages, durations, intermediate forms.

use crate::error::CompileError;
use crate::stage::{Form, Stage, StageTime};
use std::cell::RefCell;
use std::time::Instant;

/// Receives progress and intermediate forms. All methods have defaults that do nothing.
pub trait Observer {
    /// A stage begins; `done` of `total` stages are complete.
    fn stage(&self, stage: Stage, done: usize, total: usize) {
        let _ = (stage, done, total);
    }

    /// The step `by` has produced a form; `text` prints it, which takes time only if it is called.
    fn form(&self, form: Form, by: &str, text: &dyn Fn() -> String) {
        let _ = (form, by, text);
    }

    /// Whether the observer needs a form. Some forms are produced only if they are needed.
    fn wants(&self, form: Form) -> bool {
        let _ = form;
        false
    }
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {}

/// An observer that keeps the last text of one form.
pub(crate) struct FormRecorder {
    form: Form,
    text: RefCell<Option<String>>,
}

impl FormRecorder {
    pub(crate) fn new(form: Form) -> FormRecorder {
        FormRecorder { form, text: RefCell::new(None) }
    }

    pub(crate) fn take(self) -> Option<String> {
        self.text.into_inner()
    }
}

impl Observer for FormRecorder {
    fn form(&self, form: Form, _by: &str, text: &dyn Fn() -> String) {
        if form == self.form {
            *self.text.borrow_mut() = Some(text());
        }
    }

    fn wants(&self, form: Form) -> bool {
        form == self.form
    }
}

/// Measures stages and reports them to the observer.
pub(crate) struct Clock<'a> {
    observer: &'a dyn Observer,
    total: usize,
    times: Vec<StageTime>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, total: usize) -> Clock<'a> {
        Clock { observer, total, times: Vec::new() }
    }

    pub(crate) fn stage<T>(
        &mut self,
        stage: Stage,
        run: impl FnOnce() -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
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
