//! ONNX (opset 7 to 22) to a verified tensor graph.
//!
//! [`import`] reads a file once and checks everything once. The steps: decode ([`proto`], `read`), bind dimensions to symbols, order the nodes that the outputs need, lower
//! each node through the table in `ops`, verify. Lowering infers shapes, folds constants and resolves arithmetic on shapes as it goes (`lowering`).
//!
//! A graph input that has an initialiser (IR version 3) is a constant: the client cannot override it. Subgraphs (`If`, `Loop`, `Scan`) and model-local functions are refused.

mod call;
mod error;
mod lowering;
mod ops;
mod order;
pub mod proto;
mod read;
mod sizes;

pub use error::ImportError;
pub use ops::supported_operators;
pub use read::{MODEL_BYTES_MAX, RANK_MAX, TENSOR_BYTES_MAX};

use crate::tensor_graph::{TensorGraph, ValueId};
use atoll_kgraph::{Expr, SymbolId, SymbolSpec};
use call::Call;
use error::LowerError;
use lowering::Lowering;
use prost::bytes::Bytes;
use proto::{DimensionValue, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Oldest operator set that is read: the first with today's broadcasting.
pub const OPSET_MIN: i64 = 7;
/// Newest operator set whose changes were read and followed.
pub const OPSET_MAX: i64 = 22;
/// Most nodes of a graph; the largest known models have a few ten thousand.
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
    let opset = opset_of(model)?;
    // Lowering may find that two symbols must be one; then it starts again with that knowledge. Each round removes a symbol.
    let mut aliases = BTreeMap::new();
    loop {
        let mut import = Import::new(model, graph, opset, folder);
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

fn opset_of(model: &ModelProto) -> Result<i64, ImportError> {
    let default = model.opset_import.iter().filter(|o| is_default_domain(&o.domain));
    let version = default.map(|o| o.version).max().unwrap_or(1);
    if (OPSET_MIN..=OPSET_MAX).contains(&version) {
        Ok(version)
    } else {
        Err(ImportError::Opset { version, min: OPSET_MIN, max: OPSET_MAX })
    }
}

fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

enum Outcome {
    Done(TensorGraph),
    OneSymbol { name: String, is: String },
}

struct Import<'m> {
    model: &'m ModelProto,
    graph: &'m GraphProto,
    opset: i64,
    folder: Option<&'m Path>,
    lowering: Lowering,
    /// Value of each ONNX name defined so far.
    values: HashMap<&'m str, ValueId>,
    initializers: HashMap<&'m str, &'m proto::TensorProto>,
}

impl<'m> Import<'m> {
    fn new(model: &'m ModelProto, graph: &'m GraphProto, opset: i64, folder: Option<&'m Path>) -> Import<'m> {
        let initializers = graph.initializer.iter().map(|t| (t.name.as_str(), t)).collect();
        Import { model, graph, opset, folder, lowering: Lowering::default(), values: HashMap::new(), initializers }
    }

    fn run(&mut self, name: &str, options: &ImportOptions, aliases: &BTreeMap<String, String>) -> Result<Outcome, ImportError> {
        let model_name = if self.graph.name.is_empty() { name } else { &self.graph.name };
        self.lowering.graph.name = model_name.to_owned();
        self.check_graph()?;
        self.bind_inputs(options, aliases)?;
        let order = order::needed_nodes(self.graph, &self.outer_names())?;
        let consumed: HashSet<&str> = order
            .iter()
            .flat_map(|i| self.graph.node[*i].input.iter().map(String::as_str))
            .chain(self.graph.output.iter().map(|o| o.name.as_str()))
            .collect();
        for index in order {
            let node = &self.graph.node[index];
            let node_name = node_name(node, index);
            match self.lower(node, &node_name, &consumed) {
                Ok(()) => {}
                Err(Failure::Import(error)) => return Err(error),
                Err(Failure::Lower(LowerError::MustEqual(symbol, other))) => return self.unify(&node_name, symbol, &other),
                Err(Failure::Lower(error)) => return Err(describe(error, node, node_name)),
            }
        }
        self.bind_outputs()?;
        let mut graph = std::mem::take(&mut self.lowering.graph);
        crate::transform::eliminate_dead(&mut graph);
        Ok(Outcome::Done(graph))
    }

    fn check_graph(&self) -> Result<(), ImportError> {
        if self.graph.node.len() > NODES_MAX {
            return Err(read::too_large("the number of nodes", self.graph.node.len().to_string(), NODES_MAX.to_string()));
        }
        if self.graph.output.is_empty() {
            return Err(ImportError::Malformed { reason: "the graph has no outputs".into() });
        }
        if !self.graph.sparse_initializer.is_empty() {
            let what = self.graph.sparse_initializer[0].values.as_ref().map_or_else(String::new, |t| t.name.clone());
            return Err(ImportError::DType { what: format!("initializer {what}"), dtype: "sparse".into() });
        }
        Ok(())
    }

    /// Names defined outside of nodes.
    fn outer_names(&self) -> HashSet<&'m str> {
        self.initializers.keys().copied().chain(self.graph.input.iter().map(|i| i.name.as_str())).collect()
    }

    fn bind_inputs(&mut self, options: &ImportOptions, aliases: &BTreeMap<String, String>) -> Result<(), ImportError> {
        let graph = self.graph;
        for input in &graph.input {
            if self.initializers.contains_key(input.name.as_str()) {
                continue;
            }
            let (dtype, shape) = self.input_type(input, options, aliases)?;
            let value = crate::tensor_graph::Value { name: input.name.clone(), dtype, shape, constant: None };
            let id = self.lowering.graph.add_value(value);
            self.lowering.graph.inputs.push(id);
            if self.values.insert(&input.name, id).is_some() {
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

    fn lower(&mut self, node: &'m NodeProto, node_name: &str, consumed: &HashSet<&str>) -> Result<(), Failure> {
        let lower = self.lookup(node, node_name)?;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            inputs.push(if name.is_empty() { None } else { Some(self.operand(name, node_name)?) });
        }
        let call = Call { node, name: node_name.into(), opset: self.opset, inputs };
        let results = lower(&mut self.lowering, &call).map_err(Failure::Lower)?;
        for (index, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match results.get(index) {
                Some(id) => {
                    self.values.insert(name, *id);
                }
                None if consumed.contains(name.as_str()) => {
                    return Err(Failure::Lower(LowerError::Unsupported(format!("result {index} ({name})"))));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn lookup(&self, node: &NodeProto, node_name: &str) -> Result<ops::Lower, Failure> {
        let known = if is_default_domain(&node.domain) { ops::find(&node.op_type) } else { None };
        known.ok_or_else(|| {
            let opset = self.model.opset_import.iter().find(|o| o.domain == node.domain).map_or(self.opset, |o| o.version);
            let is_local = self.model.functions.iter().any(|f| f.name == node.op_type && f.domain == node.domain);
            let domain = match (node.domain.as_str(), is_local) {
                ("", false) => "ai.onnx".to_owned(),
                (domain, false) => domain.to_owned(),
                (domain, true) => format!("{domain} (a function of the model itself)"),
            };
            Failure::Import(ImportError::UnsupportedOperator {
                node: node_name.into(),
                operator: node.op_type.clone(),
                domain,
                opset,
                nearest: ops::nearest(&node.op_type),
            })
        })
    }

    /// The value of a name; an initialiser is decoded when it is first used.
    fn operand(&mut self, name: &'m str, node_name: &str) -> Result<ValueId, Failure> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        let Some(tensor) = self.initializers.get(name) else {
            let reason = format!("it reads {name}, which nothing defines");
            return Err(Failure::Import(ImportError::Invalid { place: format!("node {node_name}"), reason }));
        };
        let literal = read::read_tensor(tensor, name, self.folder).map_err(Failure::Import)?;
        let id = self.lowering.literal(name, literal);
        self.values.insert(name, id);
        Ok(id)
    }

    /// Makes every output a value of its own, computed by a node and named as in the model.
    fn bind_outputs(&mut self) -> Result<(), ImportError> {
        for output in &self.graph.output {
            let place = format!("output {}", output.name);
            let id = self.operand(&output.name, &place).map_err(|failure| match failure {
                Failure::Import(error) => error,
                Failure::Lower(_) => ImportError::Invalid { place: place.clone(), reason: "it is not defined".into() },
            })?;
            if self.lowering.is_size(id) {
                let (node, operator) = (place, "Shape".into());
                return Err(ImportError::Unsupported { node, operator, reason: "a symbolic size as a result".into() });
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

enum Failure {
    Import(ImportError),
    Lower(LowerError),
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        Failure::Import(error)
    }
}

/// The node's name, or its operator and place.
fn node_name(node: &NodeProto, index: usize) -> String {
    if node.name.is_empty() { format!("{}_{index}", node.op_type) } else { node.name.clone() }
}

fn describe(error: LowerError, node: &NodeProto, node_name: String) -> ImportError {
    let operator = node.op_type.clone();
    match error {
        LowerError::Unsupported(reason) => ImportError::Unsupported { node: node_name, operator, reason },
        LowerError::Invalid(reason) => ImportError::Invalid { place: format!("node {node_name} ({operator})"), reason },
        LowerError::TooLarge { what, found, limit } => {
            ImportError::TooLarge { what: format!("{what} of node {node_name} ({operator})"), found, limit }
        }
        LowerError::MustEqual(..) => ImportError::Invalid { place: node_name, reason: "two sizes differ".into() },
    }
}
