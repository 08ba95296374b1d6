//! A reference interpreter of the tensor graph: simple rather than fast. It is the oracle for
//! kernels, and evaluates operators in constant folding.
//!
//! Sums of floats are accumulated in `f64` and rounded once; a pointwise step rounds to its own
//! type.

mod control;
mod convert;
mod linear;
mod movement;
mod nest;
mod pointwise;
mod recurrent;
mod reduce;
mod window;

use crate::tensor::Tensor;
use crate::tensor_graph::{Op, TensorGraph, TensorNode, ValueId};
use atoll_kgraph::expr::EvalError;
use atoll_kgraph::{DType, Expr, InputError, InputForm, InputSpec, Signature};

/// Why a graph or an operator could not be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// The inputs do not match the graph.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A shape cannot be computed for the given inputs.
    #[error("the shape of {value} cannot be computed: {source}")]
    Size {
        /// Name of the tensor.
        value: String,
        /// The reason.
        source: EvalError,
    },
    /// An index of a gather is outside the axis.
    #[error("index {index} is outside an axis of {extent} elements")]
    IndexOutOfRange {
        /// The index.
        index: i64,
        /// Number of elements of the axis.
        extent: usize,
    },
    /// A nest encountered a value that its operator does not accept.
    #[error("{text} {numbers:?}")]
    Refused {
        /// The message; each `{}` stands for the next number.
        text: String,
        /// The numbers.
        numbers: Vec<i64>,
    },
    /// An integer is divided by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// The graph is invalid; [`TensorGraph::verify`] reports that as well.
    #[error("the graph is not valid: {0}")]
    Invalid(String),
}

/// Type and shape of a result.
pub type OutputType = (DType, Vec<usize>);

/// Evaluates one operator. `symbols` are the values of the graph's symbols.
pub fn evaluate(
    op: &Op,
    inputs: &[&Tensor],
    outputs: &[OutputType],
    symbols: &[i64],
) -> Result<Vec<Tensor>, ReferenceError> {
    let (dtype, shape) = outputs.first().ok_or_else(|| ReferenceError::Invalid("an operator has no results".into()))?;
    let input =
        |i: usize| inputs.get(i).copied().ok_or_else(|| ReferenceError::Invalid(format!("operand {i} is missing")));
    let extras = |from: usize| inputs.get(from..).unwrap_or(&[]);
    Ok(vec![match op {
        Op::Pointwise(program) => pointwise::run(program, inputs, *dtype, shape)?,
        Op::Conv(conv) => linear::conv(conv, input(0)?, input(1)?, extras(2), *dtype, shape)?,
        Op::MatMul(matmul) => linear::matmul(matmul, input(0)?, input(1)?, extras(2), *dtype, shape)?,
        Op::Pool(pool) => window::pool(pool, input(0)?, shape),
        Op::Resize(resize) => window::resize(resize, input(0)?, shape),
        Op::Reduce(reduce) => reduce::reduce(reduce, input(0)?, shape),
        Op::Softmax { axis, log } => reduce::softmax(*axis, *log, input(0)?),
        Op::LayerNorm { axis, epsilon } => {
            reduce::layer_norm(*axis, *epsilon, input(0)?, input(1)?, inputs.get(2).copied())
        }
        Op::Gather { axis } => movement::gather(*axis, input(0)?, input(1)?, shape)?,
        Op::Transpose { permutation } => movement::transpose(permutation, input(0)?, shape),
        Op::Reshape => input(0)?.reshaped(shape.clone()),
        Op::Slice { starts, steps } => movement::slice(&sizes(starts, symbols, "a slice")?, steps, input(0)?, shape),
        Op::Concat { axis } => movement::concat(*axis, inputs, shape),
        Op::Pad { before, mode } => movement::pad(&sizes(before, symbols, "a pad")?, *mode, input(0)?, shape),
        Op::Nest(nest) => return nest::run(nest, inputs, outputs, symbols),
        Op::If { then, otherwise } => return control::choose([then, otherwise], inputs, symbols),
        Op::Loop { body, spec } => return control::repeat(body, spec, inputs, outputs, symbols),
        Op::Recurrent { cell, hidden, direction } => {
            return recurrent::run(*cell, *hidden, *direction, inputs, outputs);
        }
    }])
}

/// Runs a verified graph. The shapes of `inputs` determine the symbols.
pub fn run(graph: &TensorGraph, inputs: &[Tensor]) -> Result<Vec<Tensor>, ReferenceError> {
    let symbols = bind_symbols(graph, inputs)?;
    run_with(graph, inputs.to_vec(), symbols)
}

/// Runs a graph, or a body, with known symbols.
fn run_with(graph: &TensorGraph, inputs: Vec<Tensor>, mut symbols: Vec<i64>) -> Result<Vec<Tensor>, ReferenceError> {
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (id, tensor) in graph.inputs.iter().zip(inputs) {
        values[id.0 as usize] = Some(tensor);
    }
    let last_use = last_uses(graph);
    for (index, node) in graph.nodes.iter().enumerate() {
        let results = run_node(graph, node, &values, &symbols)?;
        for (id, tensor) in node.outputs.iter().zip(results) {
            bind_size(graph, *id, &tensor, &mut symbols)?;
            values[id.0 as usize] = Some(tensor);
        }
        for id in node.inputs.iter().filter(|id| last_use[id.0 as usize] == index) {
            values[id.0 as usize] = None;
        }
    }
    graph.outputs.iter().map(|id| fetch(graph, &values, *id)).collect()
}

fn run_node(
    graph: &TensorGraph,
    node: &TensorNode,
    values: &[Option<Tensor>],
    symbols: &[i64],
) -> Result<Vec<Tensor>, ReferenceError> {
    let owned: Vec<Option<Tensor>> = node.inputs.iter().map(|id| constant(graph, *id)).collect();
    let inputs: Vec<&Tensor> = node
        .inputs
        .iter()
        .zip(&owned)
        .map(|(id, owned)| owned.as_ref().or(values[id.0 as usize].as_ref()).ok_or_else(|| missing(graph, *id)))
        .collect::<Result<_, _>>()?;
    let outputs: Vec<OutputType> = node
        .outputs
        .iter()
        .map(|id| Ok((graph.value(*id).dtype, sizes_of(graph, *id, symbols)?)))
        .collect::<Result<_, ReferenceError>>()?;
    evaluate(&node.op, &inputs, &outputs, symbols)
}

/// Sets the symbols whose value this node computed.
fn bind_size(graph: &TensorGraph, id: ValueId, tensor: &Tensor, symbols: &mut [i64]) -> Result<(), ReferenceError> {
    for size in graph.run_time_sizes.iter().filter(|size| size.value == id) {
        let name = &graph.value(id).name;
        let most = sizes(std::slice::from_ref(&size.most), symbols, name)?[0];
        let value = match &tensor.data {
            crate::tensor::Data::Int(values) => values.first().copied().filter(|value| (0..=most).contains(value)),
            crate::tensor::Data::Float(_) => None,
        };
        symbols[size.symbol.0 as usize] =
            value.ok_or_else(|| ReferenceError::Invalid(format!("{name} is not a size in 0..={most}")))?;
    }
    Ok(())
}

/// For every value, the index of the node that reads it last; outputs of the graph are never
/// dropped.
fn last_uses(graph: &TensorGraph) -> Vec<usize> {
    let mut last = vec![usize::MAX; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.inputs {
            last[id.0 as usize] = index;
        }
    }
    for id in &graph.outputs {
        last[id.0 as usize] = usize::MAX;
    }
    last
}

fn fetch(graph: &TensorGraph, values: &[Option<Tensor>], id: ValueId) -> Result<Tensor, ReferenceError> {
    constant(graph, id).or_else(|| values[id.0 as usize].clone()).ok_or_else(|| missing(graph, id))
}

fn missing(graph: &TensorGraph, id: ValueId) -> ReferenceError {
    ReferenceError::Invalid(format!("{} is read before it is produced", graph.value(id).name))
}

/// The content of a constant.
pub(crate) fn constant(graph: &TensorGraph, id: ValueId) -> Option<Tensor> {
    let value = graph.value(id);
    let shape = crate::size::static_shape(&value.shape)?;
    Tensor::from_bytes(value.dtype, &shape, value.constant.as_ref()?)
}

/// Symbol values from the inputs, with the same checks as for an invocation.
fn bind_symbols(graph: &TensorGraph, inputs: &[Tensor]) -> Result<Vec<i64>, ReferenceError> {
    let spec = |id: &ValueId| {
        let value = graph.value(*id);
        InputSpec { name: &value.name, dtype: value.dtype, shape: &value.shape }
    };
    let signature = Signature {
        symbols: &graph.symbols,
        inputs: graph.inputs.iter().map(spec).collect(),
        elements: &graph.elements,
        conditions: &graph.conditions,
        // States are ordinary inputs and outputs here.
        session: Vec::new(),
        run_time: graph.run_time_sizes.iter().map(|size| (size.symbol, Some(&size.most))).collect(),
    };
    let shapes: Vec<Vec<i64>> =
        inputs.iter().map(|tensor| tensor.shape.iter().map(|dim| *dim as i64).collect()).collect();
    let is_read = |input: usize| graph.elements.iter().any(|element| element.input as usize == input);
    let data: Vec<Option<_>> =
        inputs.iter().enumerate().map(|(i, tensor)| is_read(i).then(|| tensor.to_bytes())).collect();
    let forms: Vec<InputForm<'_>> = inputs
        .iter()
        .zip(&shapes)
        .zip(&data)
        .map(|((tensor, shape), data)| InputForm {
            dtype: Some(tensor.dtype),
            shape,
            bytes: tensor.len() as u64 * tensor.dtype.bytes(),
            data: data.as_deref(),
        })
        .collect();
    Ok(signature.bind(&forms)?)
}

fn sizes_of(graph: &TensorGraph, id: ValueId, symbols: &[i64]) -> Result<Vec<usize>, ReferenceError> {
    let value = graph.value(id);
    let sizes = sizes(&value.shape, symbols, &value.name)?;
    sizes
        .into_iter()
        .map(|dim| {
            usize::try_from(dim)
                .map_err(|_| ReferenceError::Size { value: value.name.clone(), source: EvalError::Overflow })
        })
        .collect()
}

fn sizes(exprs: &[Expr], symbols: &[i64], of: &str) -> Result<Vec<i64>, ReferenceError> {
    exprs.iter().map(|e| e.eval(symbols).map_err(|source| ReferenceError::Size { value: of.into(), source })).collect()
}

/// Row-major strides, in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Calls `visit` with every index of `shape`, in row-major order.
fn for_each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        visit(&index);
        let Some(axis) = (0..shape.len()).rev().find(|axis| index[*axis] + 1 < shape[*axis]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// For every element of `output`, the linear index of the element of `input` that NumPy's rule
/// broadcasts to it.
pub(crate) fn broadcast_indices(input: &[usize], output: &[usize]) -> Vec<usize> {
    let own = strides(input);
    let surplus = output.len() - input.len();
    let steps: Vec<usize> = (0..output.len())
        .map(|axis| if axis < surplus || input[axis - surplus] == 1 { 0 } else { own[axis - surplus] })
        .collect();
    let mut indices = Vec::with_capacity(output.iter().product());
    for_each_index(output, |index| indices.push(index.iter().zip(&steps).map(|(i, s)| i * s).sum()));
    indices
}
