//! Calls from Python, and their answers.

use crate::elements::Elements;
use crate::errors::{exception, invalid};
use crate::inputs::{Given, Input};
use atoll_client::{Answer, Call, Class, Content, Digest, GraphCall, Value};
use pyo3::prelude::*;
use std::time::Duration;

/// An input that refers to a tensor in the daemon: its name, its kind, and two strings whose meaning
/// depends on the kind. `object`: a digest, and an empty string. `output`: the index of an earlier
/// function of the call, and the name of its output. `future`: the names of a future and its output.
pub(crate) type Reference = (String, String, String, String);

/// A function of a call: its name, the inputs whose elements are sent, the inputs by reference, and
/// the requested outputs. Each output has a name, and a flag whether it is stored as an object. If no
/// function requests outputs, all outputs of the last one are sent.
pub(crate) type Stage<'py> = (String, Vec<Given<'py>>, Vec<Reference>, Option<Vec<(String, bool)>>);

/// The answer to a call. The tensors: index of the function, name, type, shape and elements. The
/// objects: index of the function, name and digest. The nanoseconds spent in queues, on inputs, on the
/// device and on outputs. The number of preemptions.
pub(crate) type Answered =
    (Vec<(usize, String, &'static str, Vec<i64>, Elements)>, Vec<(usize, String, String)>, (u64, u64, u64, u64), u32);

/// Class and deadline of a call.
pub(crate) struct Terms {
    pub(crate) real_time: Option<bool>,
    pub(crate) deadline_us: Option<u64>,
}

impl Terms {
    pub(crate) fn class(&self) -> Option<Class> {
        class(self.real_time)
    }

    fn deadline(&self) -> Option<Duration> {
        self.deadline_us.map(Duration::from_micros)
    }
}

/// The class for the argument `real_time` of Python. `None` selects the function's own class.
pub(crate) fn class(real_time: Option<bool>) -> Option<Class> {
    real_time.map(|real_time| if real_time { Class::RealTime } else { Class::BestEffort })
}

/// Parses a digest.
pub(crate) fn digest(py: Python<'_>, text: &str) -> PyResult<Digest> {
    text.parse().map_err(|_| invalid(py, format!("`{text}` is not the digest of an object")))
}

fn content(py: Python<'_>, kind: &str, of: &str, name: String) -> PyResult<Content> {
    match kind {
        "object" => digest(py, of).map(Content::Object),
        "output" => match of.parse() {
            Ok(stage) => Ok(Content::Output(stage, name)),
            Err(_) => Err(invalid(py, format!("`{of}` is not the index of a function"))),
        },
        "future" => Ok(Content::Future(of.to_owned(), name)),
        _ => Err(exception(py, "InternalError", format!("inputs of the kind `{kind}` do not exist"))),
    }
}

/// All inputs of a function or graph, by name. Elements are copied.
fn contents(py: Python<'_>, given: Vec<Given<'_>>, references: Vec<Reference>) -> PyResult<Vec<(String, Content)>> {
    let mut contents = Vec::with_capacity(given.len() + references.len());
    for input in Input::all(given)? {
        contents.push((input.name.clone(), Content::Tensor(input.tensor(py))));
    }
    for (name, kind, of, output) in references {
        contents.push((name, content(py, &kind, &of, output)?));
    }
    Ok(contents)
}

/// A call of functions.
pub(crate) fn call(py: Python<'_>, stages: Vec<Stage<'_>>, terms: &Terms, instance: Option<String>) -> PyResult<Call> {
    let mut call: Option<Call> = None;
    for (function, given, references, outputs) in stages {
        let mut next = match call {
            None => Call::of(function),
            Some(call) => call.then(function),
        };
        for (name, content) in contents(py, given, references)? {
            next = next.input(name, content);
        }
        for (name, is_kept) in outputs.into_iter().flatten() {
            next = if is_kept { next.keep(name) } else { next.send(name) };
        }
        call = Some(next);
    }
    let mut call = call.ok_or_else(|| invalid(py, "a call needs a function"))?;
    if let Some(class) = terms.class() {
        call = call.class(class);
    }
    if let Some(deadline) = terms.deadline() {
        call = call.deadline(deadline);
    }
    if let Some(instance) = instance {
        call = call.instance(instance);
    }
    Ok(call)
}

/// Checks a price limit. JSON would send numbers that are not finite as null, which means no limit.
pub(crate) fn price(py: Python<'_>, price_max: Option<f64>) -> PyResult<Option<f64>> {
    match price_max {
        Some(price) if !price.is_finite() => Err(invalid(py, format!("`price_max` must be finite, and is {price}"))),
        _ => Ok(price_max),
    }
}

/// A call of a graph.
pub(crate) fn graph_call(
    py: Python<'_>,
    graph: String,
    (given, references): (Vec<Given<'_>>, Vec<Reference>),
    terms: &Terms,
    price_max: Option<f64>,
    id: Option<String>,
) -> PyResult<GraphCall> {
    let mut call = GraphCall::of(graph);
    for (name, content) in contents(py, given, references)? {
        call = call.input(name, content);
    }
    if let Some(class) = terms.class() {
        call = call.class(class);
    }
    if let Some(deadline) = terms.deadline() {
        call = call.deadline(deadline);
    }
    if let Some(price_max) = price(py, price_max)? {
        call = call.price_max(price_max);
    }
    if let Some(id) = id {
        call = call.id(id);
    }
    Ok(call)
}

/// An answer, without a copy of its elements.
pub(crate) fn answered(answer: Answer) -> Answered {
    let (mut tensors, mut objects) = (Vec::new(), Vec::new());
    for (stage, name, value) in answer.outputs {
        match value {
            Value::Tensor(tensor) => {
                tensors.push((stage, name, tensor.datatype.name(), tensor.shape, Elements::new(tensor.bytes)));
            }
            Value::Object(digest) => objects.push((stage, name, digest.to_string())),
        }
    }
    let timing = answer.timing;
    let times = (timing.queue_ns, timing.input_ns, timing.compute_ns, timing.output_ns);
    (tensors, objects, times, answer.preemptions)
}
