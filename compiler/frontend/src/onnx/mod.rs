//! Imports ONNX as a verified tensor graph: opset 7 to 27, and older models whose operators have
//! not changed since.
//!
//! [`import`] reads a file and decodes the protobuf ([`proto`], `read`). It binds the dimensions of
//! inputs to symbols, orders the nodes that the outputs need, lowers each node through the table in
//! `ops`, and verifies the graph. Lowering infers shapes, folds constants and evaluates arithmetic
//! on shapes (`lowering`). If a node needs a fact about sizes that is not known yet, the import of
//! the decoded model restarts with that fact (`known_sizes`).
//!
//! Functions are inlined (`functions`). Subgraphs are selected or unrolled where that is possible
//! (`subgraph`), and otherwise become the bodies of nodes that decide at run time (`control`).
//! Sequences and optionals are lists that exist only at compile time (`sequence`, `lists`). A graph
//! input that has an initialiser (IR version 3) is a constant: the client cannot override it.

mod call;
mod control;
mod error;
mod failure;
mod fit;
mod functions;
mod import;
mod known_sizes;
mod lists;
mod lowering;
mod nodes;
mod ops;
mod options;
mod order;
mod packed;
pub mod proto;
mod read;
mod region;
mod required;
mod scope;
mod selection;
mod sequence;
mod sizes;
mod speculation;
mod states;
mod strings;
mod subgraph;

pub use control::{LOOP_ROWS_MAX, LOOP_TRIPS_MAX};
pub use error::ImportError;
pub use ops::supported_operators;
pub use options::{DIMENSION_MAX, ImportOptions, NODES_MAX, OPSET_MAX, OPSET_MIN, SYMBOL_MAX};
pub use read::{MODEL_BYTES_MAX, RANK_MAX, SIZE_TERMS_MAX, TENSOR_BYTES_MAX};

use crate::size::canonical;
use crate::tensor_graph::{TensorGraph, ValueId};
use atoll_kgraph::{DType, Expr};
use error::{LowerError, SizeFact};
use failure::Failure;
use import::Import;
use known_sizes::KnownSizes;
use lists::Form;
use options::{check_opset, is_default_domain};
use prost::bytes::Bytes;
use proto::{Dimension, DimensionValue, ModelProto, TensorTypeProto, ValueInfoProto};
use scope::{Body, Found, Item, Scope};
use std::collections::HashSet;
use std::path::Path;

/// Values that exporters write for a dimension without a name.
const NO_NAMES: [&str; 4] = ["", "?", "-1", "None"];

/// Imports a model file. External data is looked up in the file's folder.
pub fn import(path: &Path, options: &ImportOptions) -> Result<TensorGraph, ImportError> {
    let model = read::read_model(path)?;
    let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    import_model(&model, &name, folder, options)
}

/// Imports a model from memory; it cannot have external data.
pub fn import_bytes(bytes: impl Into<Bytes>, name: &str, options: &ImportOptions) -> Result<TensorGraph, ImportError> {
    let model = read::decode_model(bytes.into())?;
    import_model(&model, name, None, options)
}

/// Imports a decoded model. `folder` is the folder of external data; `name` is the graph's name if
/// the model has none.
pub fn import_model(
    model: &ModelProto,
    name: &str,
    folder: Option<&Path>,
    options: &ImportOptions,
) -> Result<TensorGraph, ImportError> {
    let graph = model.graph.as_ref().ok_or_else(|| ImportError::Malformed { reason: "it has no graph".into() })?;
    if let Some(version) = opset_of(model) {
        check_opset(version, &graph.node)?;
    }
    let mut known_sizes = KnownSizes::new(options);
    loop {
        let mut import = Import::new(model, graph, folder);
        match import.run(name, &mut known_sizes)? {
            Outcome::Done(graph) => {
                graph.verify()?;
                return Ok(*graph);
            }
            Outcome::Restart { place, fact } => known_sizes.add(&import.lowering.graph, &place, fact)?,
        }
    }
}

/// Reads a stored tensor, such as an input of ONNX's backend tests.
pub fn read_tensor_proto(tensor: &proto::TensorProto) -> Result<crate::tensor::Tensor, ImportError> {
    let literal = read::read_tensor(tensor, &tensor.name, None)?;
    crate::tensor::Tensor::from_bytes(literal.dtype, &literal.shape, &literal.bytes).ok_or_else(|| {
        ImportError::Malformed { reason: "the tensor's number of bytes does not match its shape".into() }
    })
}

/// The version of the default domain's operators. `None` if the model names only other domains; 1
/// if it names no domain, as files from before operator sets do.
fn opset_of(model: &ModelProto) -> Option<i64> {
    let default = model.opset_import.iter().filter(|o| is_default_domain(&o.domain)).map(|o| o.version).max();
    if model.opset_import.is_empty() { Some(1) } else { default }
}

enum Outcome {
    Done(Box<TensorGraph>),
    /// A node needs a fact about sizes; the import restarts with it.
    Restart {
        place: String,
        fact: SizeFact,
    },
}

impl Import<'_> {
    fn run(&mut self, name: &str, known_sizes: &mut KnownSizes<'_>) -> Result<Outcome, ImportError> {
        let model_name = if self.graph.name.is_empty() { name } else { &self.graph.name };
        self.lowering.graph.name = model_name.to_owned();
        let body = Body::of_graph(self.graph)?;
        if body.outputs.is_empty() {
            return Err(ImportError::Malformed { reason: "the graph has no outputs".into() });
        }
        self.scopes.enter(Scope { initializers: body.initializers.clone(), ..Scope::default() })?;
        self.bind_inputs(known_sizes)?;
        match self.lower_nodes(&body).and_then(|()| self.bind_outputs()) {
            Ok(()) => {}
            Err(Failure::Import(error)) => return Err(error),
            Err(Failure::Lower(error)) => return Err(error.at("that computes an output", "Identity")),
            Err(Failure::Restart { place, fact }) => return Ok(Outcome::Restart { place, fact }),
        }
        let mut graph = std::mem::take(&mut self.lowering.graph);
        graph.conditions = self.lowering.conditions.take();
        let is_run_time = |size: &Expr| graph.run_time_sizes.iter().any(|known| size.depends_on(known.symbol));
        if let Some(condition) =
            graph.conditions.iter().find(|condition| is_run_time(&condition.left) || is_run_time(&condition.right))
        {
            return Err(known_sizes::run_time_size(&condition.place));
        }
        states::find(&mut graph, known_sizes.options())?;
        crate::transform::eliminate_dead(&mut graph);
        Ok(Outcome::Done(Box::new(graph)))
    }

    fn bind_inputs(&mut self, known_sizes: &mut KnownSizes<'_>) -> Result<(), ImportError> {
        let graph = self.graph;
        let is_constant = |input: &&ValueInfoProto| {
            self.scopes.find(&input.name).is_some_and(|found| matches!(found, Found::Initializer(_)))
        };
        let inputs: Vec<&ValueInfoProto> = graph.input.iter().filter(|input| !is_constant(input)).collect();
        let params: HashSet<&str> = inputs.iter().flat_map(|input| dimensions(input)).filter_map(named).collect();
        for input in inputs {
            let item = match lists::form(input, known_sizes)? {
                Form::Tensor(tensor) => Item::Tensor(self.bind_input(&input.name, tensor, known_sizes, &params)?),
                Form::Sequence(tensor, length) => {
                    let ids = (0..length).map(|index| {
                        // The tensors of a sequence may differ in named dimensions.
                        let tensor = unnamed(tensor);
                        self.bind_input(&format!("{}.{index}", input.name), &tensor, known_sizes, &params)
                    });
                    Item::Sequence(ids.collect::<Result<_, _>>()?)
                }
                Form::Nothing => Item::Nothing,
            };
            if self.scopes.define(&input.name, item).is_some() {
                return Err(twice(&input.name));
            }
        }
        known_sizes.check_options(&self.lowering.graph)
    }

    /// Adds a tensor that the client sends.
    fn bind_input(
        &mut self,
        name: &str,
        tensor: &TensorTypeProto,
        known_sizes: &mut KnownSizes<'_>,
        params: &HashSet<&str>,
    ) -> Result<ValueId, ImportError> {
        let (dtype, shape) = self.input_type(name, tensor, known_sizes, params)?;
        let count = crate::size::static_shape(&shape).map_or(0, |shape| shape.iter().product());
        let graph = &mut self.lowering.graph;
        if graph.inputs.iter().any(|id| graph.value(*id).name == name) {
            return Err(twice(name));
        }
        let position = graph.inputs.len() as u32;
        let id = graph.add_value(crate::tensor_graph::Value { name: name.into(), dtype, shape, constant: None });
        graph.inputs.push(id);
        if let Some(sizes) = known_sizes.elements(graph, position, name, count) {
            self.lowering.name_elements(id, sizes);
        }
        Ok(id)
    }

    fn input_type(
        &mut self,
        name: &str,
        tensor: &TensorTypeProto,
        known_sizes: &mut KnownSizes<'_>,
        params: &HashSet<&str>,
    ) -> Result<lowering::Type, ImportError> {
        let place = || format!("input {name}");
        let invalid = |reason: String| ImportError::Invalid { place: place(), reason };
        let dtype = read::input_dtype_of(tensor.elem_type)
            .ok_or_else(|| ImportError::DType { what: place(), dtype: read::dtype_name(tensor.elem_type) })?;
        if dtype == DType::Strings {
            self.lowering.use_strings();
        }
        let shape = tensor.shape.as_ref().ok_or_else(|| {
            invalid("its shape is missing; run shape inference on the model, for example onnx.shape_inference".into())
        })?;
        if shape.dim.len() > RANK_MAX {
            return Err(read::too_large(&place(), format!("{} dimensions", shape.dim.len()), RANK_MAX.to_string()));
        }
        let mut dims = Vec::with_capacity(shape.dim.len());
        for (axis, dim) in shape.dim.iter().enumerate() {
            dims.push(match &dim.value {
                Some(DimensionValue::DimValue(value)) if *value > DIMENSION_MAX => {
                    return Err(read::too_large(
                        &place(),
                        format!("{value} in dimension {axis}"),
                        DIMENSION_MAX.to_string(),
                    ));
                }
                Some(DimensionValue::DimValue(value)) if *value > 0 => Expr::Const(*value),
                value => {
                    // Exporters write -1 for a dimension of any size; some write 0, which may also
                    // mean an empty dimension. Nodes narrow the range later.
                    let least = i64::from(!matches!(value, Some(DimensionValue::DimValue(0))));
                    let name = named(dim).map_or_else(|| generated_name(name, axis, params), str::to_owned);
                    match states::sum(&name, params) {
                        Some((a, b)) => {
                            let graph = &mut self.lowering.graph;
                            canonical(
                                &(known_sizes.dimension(graph, a, least)? + known_sizes.dimension(graph, b, least)?),
                            )
                        }
                        None => known_sizes.dimension(&mut self.lowering.graph, &name, least)?,
                    }
                }
            });
        }
        Ok((dtype, dims))
    }

    /// Makes every output a distinct value that a node computes, with the output's name.
    fn bind_outputs(&mut self) -> Result<(), Failure> {
        let graph = self.graph;
        for output in &graph.output {
            let place = format!("output {}", output.name);
            match self.item(&output.name, &place)? {
                Item::Tensor(id) => self.bind_output(&output.name, id)?,
                Item::Sequence(ids) => {
                    for (index, id) in ids.into_iter().enumerate() {
                        self.bind_output(&format!("{}.{index}", output.name), id)?;
                    }
                }
                Item::Nothing => {
                    return Err(
                        ImportError::DType { what: place, dtype: "an optional without an element".into() }.into()
                    );
                }
            }
        }
        match self.lowering.graph.outputs.is_empty() {
            true => Err(LowerError::Unsupported("all outputs of the model are empty sequences".into()).into()),
            false => Ok(()),
        }
    }

    /// Makes an output a distinct value that a node computes, with this name.
    fn bind_output(&mut self, name: &str, id: ValueId) -> Result<(), Failure> {
        let id = self.lowering.computed(id)?;
        let graph = &self.lowering.graph;
        let is_own = graph.value(id).constant.is_none() && !graph.inputs.contains(&id) && !graph.outputs.contains(&id);
        let id = if is_own { id } else { self.lowering.copy(name, id) };
        self.lowering.graph.values[id.0 as usize].name = name.into();
        self.lowering.graph.outputs.push(id);
        Ok(())
    }
}

fn twice(name: &str) -> ImportError {
    ImportError::Invalid { place: format!("input {name}"), reason: "two inputs have this name".into() }
}

/// The type with dimensions that have no names.
fn unnamed(tensor: &TensorTypeProto) -> TensorTypeProto {
    let mut tensor = tensor.clone();
    for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
        dim.value = dim.value.take().filter(|value| matches!(value, DimensionValue::DimValue(_)));
    }
    tensor
}

fn dimensions(input: &ValueInfoProto) -> &[Dimension] {
    let shape = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()).and_then(|t| t.shape.as_ref());
    shape.map_or(&[], |shape| &shape.dim)
}

/// The name of a dimension, if the model gives one.
fn named(dim: &Dimension) -> Option<&str> {
    match &dim.value {
        Some(DimensionValue::DimParam(name)) if !NO_NAMES.contains(&name.as_str()) => Some(name),
        _ => None,
    }
}

/// A unique name for a dimension without one.
fn generated_name(input: &str, axis: usize, params: &HashSet<&str>) -> String {
    let mut name = format!("{input}_dim_{axis}");
    while params.contains(name.as_str()) {
        name.push('_');
    }
    name
}
