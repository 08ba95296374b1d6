//! Checked graphs. Names are resolved to indices, and every connection fits.

use super::spec::{Compare, Cost, GraphSpec, Prefer};
use super::tensor::TensorSpec;
use crate::ids::Nanos;

/// A checked graph of functions: acyclic, in topological order, with all sources present and of the
/// right form.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(super) name: String,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) stages: Vec<Stage>,
    pub(super) outputs: Vec<GraphOutput>,
    pub(super) deadline: Option<Nanos>,
    pub(super) price_max: Option<Cost>,
    pub(super) prefer: Option<Prefer>,
}

/// A checked stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name in the graph.
    pub name: String,
    /// Its function.
    pub function: String,
    /// The source of each input of the function, in the function's order.
    pub inputs: Vec<Source>,
    /// When it runs; always if `None`.
    pub when: Option<Condition>,
    /// The substitute of each output, if the stage may be skipped and the output is used.
    pub otherwise: Vec<Option<Source>>,
    /// Largest number of requests that one run serves; at least 1.
    pub batch_max: u32,
    /// Whether it runs on CPUs only.
    pub cpu_only: bool,
    /// Indices of the stages that must have ended or been skipped before this one: the sources of
    /// its inputs, condition and substitutes. Ascending, without duplicates.
    pub needs: Vec<usize>,
    /// The stages that have this one in `needs`, ascending.
    pub needed_by: Vec<usize>,
}

/// An output of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOutput {
    /// Its name and form.
    pub tensor: TensorSpec,
    /// Its source.
    pub source: Source,
}

/// The source of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An input of the graph, by index.
    Input(usize),
    /// An output of a stage.
    Output {
        /// Index of the stage.
        stage: usize,
        /// Index of the output.
        output: usize,
    },
}

/// A condition on a tensor of one element. The threshold is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// The tensor.
    pub value: Source,
    /// How it is compared.
    pub compare: Compare,
    /// The number that it is compared with.
    pub threshold: f64,
}

/// The value of a condition is not a number, so the condition is neither true nor false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANumber;

impl Condition {
    /// Whether the stage runs if the tensor has this value.
    ///
    /// # Errors
    /// [`NotANumber`] if the value is NaN.
    pub fn holds(&self, value: f64) -> Result<bool, NotANumber> {
        if value.is_nan() {
            return Err(NotANumber);
        }
        Ok(match self.compare {
            Compare::Less => value < self.threshold,
            Compare::AtMost => value <= self.threshold,
            Compare::More => value > self.threshold,
            Compare::AtLeast => value >= self.threshold,
        })
    }
}

impl Graph {
    /// Checks a description.
    ///
    /// # Errors
    /// The first error found in the description.
    pub fn new(spec: GraphSpec) -> Result<Graph, super::GraphError> {
        super::check::check(spec)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The input tensors of a request.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The stages in topological order: a stage follows those in its [`Stage::needs`].
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The output tensors of a request.
    pub fn outputs(&self) -> &[GraphOutput] {
        &self.outputs
    }

    /// The default deadline of a request, relative to its arrival.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// The default price limit of a request.
    pub fn price_max(&self) -> Option<Cost> {
        self.price_max
    }

    /// How to choose among several plans of a request; `None` for the preference of the admission.
    pub fn prefer(&self) -> Option<Prefer> {
        self.prefer
    }

    /// Returns the graph with its function names mapped by `name`. Stages whose functions have the
    /// same name share constants, so an admission that serves several tenants needs distinct names.
    #[must_use]
    pub fn with_functions(mut self, name: impl Fn(&str) -> String) -> Graph {
        for stage in &mut self.stages {
            stage.function = name(&stage.function);
        }
        self
    }
}
