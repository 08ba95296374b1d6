//! Watching a compilation: stages, times, intermediate forms.

use crate::error::CompileError;
use crate::stage::{Form, Stage, StageTime};
use std::cell::RefCell;
use std::time::Instant;

/// Who watches. Both methods may be left out.
pub trait Observer {
    /// A stage begins; `done` of `total` stages are behind it.
    fn stage(&self, stage: Stage, done: usize, total: usize) {
        let _ = (stage, done, total);
    }

    /// A form exists, made by the step `by`; `text` writes it, which costs time only if it is
    /// called.
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
