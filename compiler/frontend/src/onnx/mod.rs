//! ONNX (opset 7 to 27) to a verified tensor graph.
//!
//! [`import`] reads a file once and checks everything once. The steps: decode ([`proto`], `read`), bind dimensions to symbols, order the nodes that the outputs need, lower
//! each node through the table in `ops`, verify. Lowering infers shapes, folds constants and resolves arithmetic on shapes as it goes (`lowering`).
//!
//! Functions are inlined (`functions`), subgraphs are taken or unrolled (`subgraph`), sequences and optionals are lists that exist at compile time only (`sequence`): what
//! comes out has no control flow. A graph input that has an initialiser (IR version 3) is a constant: the client cannot override it.

mod call;
mod error;
mod functions;
mod lowering;
mod nodes;
mod ops;
mod order;
pub mod proto;
mod read;
mod scope;
mod sequence;
mod sizes;
mod subgraph;

pub use error::ImportError;
pub use ops::supported_operators;
pub use read::{MODEL_BYTES_MAX, RANK_MAX, TENSOR_BYTES_MAX};

use crate::tensor_graph::{TensorGraph, ValueId};
use atoll_kgraph::{Expr, SymbolId, SymbolSpec};
use functions::Functions;
use lowering::Lowering;
use nodes::Failure;
use prost::bytes::Bytes;
use proto::{DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use scope::{Body, Found, Item, Scope, Scopes};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Oldest operator set that is read: the first with today's broadcasting.
pub const OPSET_MIN: i64 = 7;
/// Newest operator set whose changes were read and followed.
pub const OPSET_MAX: i64 = 27;
/// Most nodes of a graph, with functions inlined and loops unrolled; the largest known models have a few ten thousand.
pub const NODES_MAX: usize = 1 << 18;
/// Largest dimension that an input may have: sizes then stay far from overflowing.
pub const DIMENSION_MAX: i64 = (1 << 31) - 1;
/// Largest value of a symbol unless the options say otherwise. Generous for a batch or a sequence, and small enough for 32-bit indices in most models.
pub const SYMBOL_MAX: i64 = 1024;

/// Legal values of a named dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRange {
    /// Smallest.
    pub min: i64,
    /// Largest; equal to `min` to fix the dimension.
    pub max: i64,
}

/// What the user decides about an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Ranges of named dimensions (`dim_param`, or `<input>_dim_<axis>` where the model gives no name). The others are `1..=symbol_max`.
    pub symbols: BTreeMap<String, SymbolRange>,
    /// Largest value of a dimension that `symbols` does not name.
    pub symbol_max: i64,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions { symbols: BTreeMap::new(), symbol_max: SYMBOL_MAX }
    }
}

/// Imports a model file. External data is looked for beside it.
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

/// Imports a decoded model. `folder` is where external data may lie; `name` names the graph where the model does not.
pub fn import_model(model: &ModelProto, name: &str, folder: Option<&Path>, options: &ImportOptions) -> Result<TensorGraph, ImportError> {
    let graph = model.graph.as_ref().ok_or_else(|| ImportError::Malformed { reason: "there is no graph in it".into() })?;
    if let Some(version) = opset_of(model) {
        check_opset(version)?;
    }
    // Lowering may find that two symbols must be one; then it starts again with that knowledge. Each round removes a symbol.
    let mut aliases = BTreeMap::new();
    loop {
        let mut import = Import::new(model, graph, folder);
        match import.run(name, options, &aliases)? {
            Outcome::Done(graph) => {
                graph.verify()?;
                return Ok(graph);
            }
            Outcome::OneSymbol { name, is } => aliases.insert(name, is),
        };
    }
}

/// Reads a stored tensor, such as an input of ONNX's backend tests.
pub fn read_tensor_proto(tensor: &proto::TensorProto) -> Result<crate::tensor::Tensor, ImportError> {
    let literal = read::read_tensor(tensor, &tensor.name, None)?;
    crate::tensor::Tensor::from_bytes(literal.dtype, &literal.shape, &literal.bytes)
        .ok_or_else(|| ImportError::Malformed { reason: "the tensor's bytes do not fit its shape".into() })
}

/// The version of the default domain's operators; a model of other domains names none. One that names nothing at all is from before there were versions.
fn opset_of(model: &ModelProto) -> Option<i64> {
    let default = model.opset_import.iter().filter(|o| is_default_domain(&o.domain)).map(|o| o.version).max();
    if model.opset_import.is_empty() { Some(1) } else { default }
}

fn check_opset(version: i64) -> Result<(), ImportError> {
    if (OPSET_MIN..=OPSET_MAX).contains(&version) { Ok(()) } else { Err(ImportError::Opset { version, min: OPSET_MIN, max: OPSET_MAX }) }
}

fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

enum Outcome {
    Done(TensorGraph),
    OneSymbol { name: String, is: String },
}

struct Import<'m> {
    graph: &'m GraphProto,
    folder: Option<&'m Path>,
    functions: Functions<'m>,
    lowering: Lowering,
    scopes: Scopes<'m>,
    /// Value of each initialiser that was decoded.
    literals: HashMap<*const TensorProto, ValueId>,
    /// Nodes of the model lowered so far, each as often as it was.
    nodes: usize,
}

impl<'m> Import<'m> {
    fn new(model: &'m ModelProto, graph: &'m GraphProto, folder: Option<&'m Path>) -> Import<'m> {
        let (functions, scopes) = (Functions::of(model), Scopes::new(&model.opset_import));
        Import { graph, folder, functions, lowering: Lowering::default(), scopes, literals: HashMap::new(), nodes: 0 }
    }

    fn run(&mut self, name: &str, options: &ImportOptions, aliases: &BTreeMap<String, String>) -> Result<Outcome, ImportError> {
        let model_name = if self.graph.name.is_empty() { name } else { &self.graph.name };
        self.lowering.graph.name = model_name.to_owned();
        let body = Body::of_graph(self.graph)?;
        if body.outputs.is_empty() {
            return Err(ImportError::Malformed { reason: "the graph has no outputs".into() });
        }
        self.scopes.enter(Scope { initializers: body.initializers.clone(), ..Scope::default() })?;
        self.bind_inputs(options, aliases)?;
        match self.lower_nodes(&body).and_then(|()| self.bind_outputs()) {
            Ok(()) => {}
            Err(Failure::Import(error)) => return Err(error),
            Err(Failure::Lower(error)) => return Err(error.at("of an output", "Identity")),
            Err(Failure::MustEqual { node, symbol, other }) => return self.unify(&node, symbol, &other),
        }
        let mut graph = std::mem::take(&mut self.lowering.graph);
        crate::transform::eliminate_dead(&mut graph);
        Ok(Outcome::Done(graph))
    }

    fn bind_inputs(&mut self, options: &ImportOptions, aliases: &BTreeMap<String, String>) -> Result<(), ImportError> {
        let graph = self.graph;
        for input in &graph.input {
            if self.scopes.find(&input.name).is_some_and(|found| matches!(found, Found::Initializer(_))) {
                continue;
            }
            let (dtype, shape) = self.input_type(input, options, aliases)?;
            let value = crate::tensor_graph::Value { name: input.name.clone(), dtype, shape, constant: None };
            let id = self.lowering.graph.add_value(value);
            self.lowering.graph.inputs.push(id);
            if self.scopes.define(&input.name, Item::Tensor(id)).is_some() {
                return Err(ImportError::Invalid { place: format!("input {}", input.name), reason: "two inputs have this name".into() });
            }
        }
        Ok(())
    }

    fn input_type(
        &mut self,
        input: &ValueInfoProto,
        options: &ImportOptions,
        aliases: &BTreeMap<String, String>,
    ) -> Result<lowering::Type, ImportError> {
        let place = || format!("input {}", input.name);
        let invalid = |reason: String| ImportError::Invalid { place: place(), reason };
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let tensor = tensor.ok_or_else(|| ImportError::DType { what: place(), dtype: "no tensor (a sequence, map or optional)".into() })?;
        let dtype = read::dtype_of(tensor.elem_type)
            .ok_or_else(|| ImportError::DType { what: place(), dtype: read::dtype_name(tensor.elem_type) })?;
        let shape = tensor
            .shape
            .as_ref()
            .ok_or_else(|| invalid("its number of dimensions is not given; run shape inference on the model first".into()))?;
        if shape.dim.len() > RANK_MAX {
            return Err(read::too_large(&place(), format!("{} dimensions", shape.dim.len()), RANK_MAX.to_string()));
        }
        let mut dims = Vec::with_capacity(shape.dim.len());
        for (axis, dim) in shape.dim.iter().enumerate() {
            dims.push(match &dim.value {
                Some(DimensionValue::DimValue(value)) if *value > DIMENSION_MAX => {
                    return Err(read::too_large(&place(), format!("{value} in dimension {axis}"), DIMENSION_MAX.to_string()));
                }
                // Some exporters write -1 or 0 for "any".
                Some(DimensionValue::DimValue(value)) if *value > 0 => Expr::Const(*value),
                Some(DimensionValue::DimParam(name)) if !name.is_empty() => self.symbol(name, options, aliases)?,
                _ => self.symbol(&format!("{}_dim_{axis}", input.name), options, aliases)?,
            });
        }
        Ok((dtype, dims))
    }

    /// The size a named dimension has.
    fn symbol(&mut self, name: &str, options: &ImportOptions, aliases: &BTreeMap<String, String>) -> Result<Expr, ImportError> {
        let mut name = name;
        while let Some(other) = aliases.get(name) {
            name = other;
        }
        let range = options.symbols.get(name).copied().unwrap_or(SymbolRange { min: 1, max: options.symbol_max });
        if range.min < 1 || range.max < range.min || range.max > DIMENSION_MAX {
            let reason = format!("its range {}..={} is not within 1..={DIMENSION_MAX}", range.min, range.max);
            return Err(ImportError::Invalid { place: format!("size {name}"), reason });
        }
        if range.min == range.max {
            return Ok(Expr::Const(range.min));
        }
        let symbols = &mut self.lowering.graph.symbols;
        let known = symbols.iter().position(|s| s.name == name);
        let index = known.unwrap_or_else(|| {
            symbols.push(SymbolSpec { name: name.into(), min: range.min, max: range.max });
            symbols.len() - 1
        });
        Ok(Expr::Symbol(SymbolId(index as u32)))
    }

    fn unify(&self, node: &str, symbol: SymbolId, other: &Expr) -> Result<Outcome, ImportError> {
        let name = |id: SymbolId| self.lowering.graph.symbols[id.0 as usize].name.clone();
        match other {
            Expr::Symbol(other) => Ok(Outcome::OneSymbol { name: name(*other.max(&symbol)), is: name(*other.min(&symbol)) }),
            other => Err(ImportError::SizesDiffer { node: node.into(), left: name(symbol), right: other.to_string() }),
        }
    }

    /// Makes every output a value of its own, computed by a node and named as in the model.
    fn bind_outputs(&mut self) -> Result<(), Failure> {
        let graph = self.graph;
        for output in &graph.output {
            let place = format!("output {}", output.name);
            let id = match self.item(&output.name, &place)? {
                Item::Tensor(id) => id,
                Item::Sequence(_) => return Err(ImportError::DType { what: place, dtype: "sequence".into() }.into()),
                Item::Nothing => return Err(ImportError::DType { what: place, dtype: "optional".into() }.into()),
            };
            if self.lowering.is_size(id) {
                let (node, operator) = (place, "Shape".into());
                return Err(ImportError::Unsupported { node, operator, reason: "a symbolic size as a result".into() }.into());
            }
            let graph = &self.lowering.graph;
            let is_own = graph.value(id).constant.is_none() && !graph.inputs.contains(&id) && !graph.outputs.contains(&id);
            let id = if is_own { id } else { self.lowering.copy(&output.name, id) };
            self.lowering.graph.values[id.0 as usize].name.clone_from(&output.name);
            self.lowering.graph.outputs.push(id);
        }
        Ok(())
    }
}

/// The node's name, or its operator and place.
fn node_name(node: &NodeProto, index: usize) -> String {
    if node.name.is_empty() { format!("{}_{index}", node.op_type) } else { node.name.clone() }
}
