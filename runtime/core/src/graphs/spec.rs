//! Descriptions of graphs as clients give them, unchecked. [`Graph::new`](super::Graph::new) checks
//! them.

use super::tensor::TensorSpec;
use crate::ids::Nanos;

/// A graph of functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphSpec {
    /// Its name.
    pub name: String,
    /// The input tensors of a request.
    pub inputs: Vec<TensorSpec>,
    /// The stages in topological order: a stage follows all stages whose outputs it uses.
    pub stages: Vec<StageSpec>,
    /// The output tensors of a request, each with its source.
    pub outputs: Vec<Link>,
    /// The default deadline of a request, relative to its arrival.
    pub deadline: Option<Nanos>,
    /// The default price limit of a request.
    pub price_max: Option<Cost>,
    /// How to choose among several plans; `None` for the preference of the admission.
    pub prefer: Option<Prefer>,
}

/// How to choose among several plans of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// The cheapest plan; among equally cheap ones, the plan that ends first.
    #[default]
    Cost,
    /// The plan that ends first; among those that end at the same time, the cheapest.
    Speed,
    /// A random plan, as in the thesis.
    Random,
}

/// A stage: one call of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageSpec {
    /// Its name in the graph.
    pub name: String,
    /// The function that it calls, or a built-in one. The name is only compared: stages with the
    /// same function name share constants and batches.
    pub function: String,
    /// The function's inputs.
    pub inputs: Vec<TensorSpec>,
    /// The function's outputs.
    pub outputs: Vec<TensorSpec>,
    /// The source of each input of the function.
    pub from: Vec<Link>,
    /// When the stage runs; always if `None`.
    pub when: Option<ConditionSpec>,
    /// The tensors that replace its outputs if the stage does not run.
    pub otherwise: Vec<Link>,
    /// Largest number of requests that one run of the function may serve; 0 and 1 mean no batches.
    pub batch_max: u32,
    /// Whether the stage runs on CPUs only.
    pub cpu_only: bool,
}

/// The source of a named tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The tensor: an input of a function, or an output of the graph or of a stage.
    pub name: String,
    /// Its source.
    pub from: SourceName,
}

/// A source by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// An input of the graph.
    Input(String),
    /// An output of a stage.
    Output {
        /// Name of the stage.
        stage: String,
        /// Name of the output.
        output: String,
    },
}

/// A condition on a tensor of one element.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionSpec {
    /// The tensor.
    pub value: SourceName,
    /// How it is compared.
    pub compare: Compare,
    /// The number that it is compared with.
    pub threshold: f64,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Less than the threshold.
    Less,
    /// At most the threshold.
    AtMost,
    /// More than the threshold.
    More,
    /// At least the threshold.
    AtLeast,
}

/// A price: nanoseconds on a device times the device's price per second in millionths of the unit
/// of account. One unit of account is 10^15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl Cost {
    /// In units of account, for reports.
    pub fn units(self) -> f64 {
        self.0 as f64 / 1e15
    }
}
