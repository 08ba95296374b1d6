//! Checked graphs. Names are resolved to indices, and every connection fits.

use super::spec::{Compare, Cost, GraphSpec, Prefer};
use super::tensor::TensorSpec;
use crate::ids::Nanos;

/// A checked graph of functions: acyclic, in order, with all sources present and of the right form.
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
    /// Most requests that one run serves; at least 1.
    pub batch_max: u32,
    /// Whether it runs on CPUs only.
    pub cpu_only: bool,
    /// The stages that have to be settled before this one, without repetition, ascending: the
    /// sources of its inputs, condition and substitutes.
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
    /// The first cause for which the description is refused.
    pub fn new(spec: GraphSpec) -> Result<Graph, super::GraphError> {
        super::check::check(spec)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensors that a request brings.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The stages; each comes after those that it needs.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The tensors that a request gets back.
    pub fn outputs(&self) -> &[GraphOutput] {
        &self.outputs
    }

    /// The deadline of requests that state none, relative to their arrival.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// The price limit of requests that state none.
    pub fn price_max(&self) -> Option<Cost> {
        self.price_max
    }

    /// Which of several plans its requests take, if it says.
    pub fn prefer(&self) -> Option<Prefer> {
        self.prefer
    }

    /// The graph with other names of functions, for an admission that several tenants share: stages
    /// whose functions have one name share constants.
    #[must_use]
    pub fn with_functions(mut self, name: impl Fn(&str) -> String) -> Graph {
        for stage in &mut self.stages {
            stage.function = name(&stage.function);
        }
        self
    }
}
