//! Folds a node that is affine per channel into the weights and bias of the convolution before it:
//! batch normalisation in every form, and plain scales and shifts.
//!
//! The node after the convolution is evaluated symbolically: each step of its program must give
//! `a * y + b` with one `a` and one `b` per channel, where `y` is the accumulated sum of the
//! convolution. If it does, the weights are multiplied by `a`, and `b` becomes the bias.

use super::uses::Uses;
use crate::program::{Applied, inline};
use crate::reference;
use crate::tensor::{Data, Tensor, is_float};
use crate::tensor_graph::{Conv, Op, PointArg, PointOp, PointProgram, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::Expr;

/// Handles chains: a convolution that absorbed one node may absorb the next.
pub fn fold_affine(graph: &mut TensorGraph) {
    let mut uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        let Some((producer, program)) = candidate(graph, &uses, index) else { continue };
        let Some(folded) = fold(graph, producer, index, &program) else { continue };
        let old = std::mem::replace(&mut graph.nodes[index], folded);
        uses = Uses::of_changed(uses, graph, index, &old.inputs);
    }
}

impl Uses {
    /// Updates the uses after the node at `index` has replaced its producer.
    fn of_changed(mut uses: Uses, graph: &TensorGraph, index: usize, old: &[ValueId]) -> Uses {
        uses.grow(graph.values.len());
        uses.change(old, &graph.nodes[index].inputs);
        uses
    }
}

/// The convolution before a pointwise node, and both as one program over the accumulated sum.
fn candidate(graph: &TensorGraph, uses: &Uses, index: usize) -> Option<(usize, Applied)> {
    let node = &graph.nodes[index];
    let Op::Pointwise(program) = &node.op else { return None };
    node.inputs.iter().find_map(|id| {
        let producer = uses.producer(*id)?;
        let Op::Conv(conv) = &graph.nodes[producer].op else { return None };
        let sizes_stay = crate::size::same_shape(&graph.value(*id).shape, &graph.value(node.outputs[0]).shape);
        if !uses.is_single(*id) || !sizes_stay || graph.value(*id).dtype != graph.value(node.outputs[0]).dtype {
            return None;
        }
        let extras = graph.nodes[producer].inputs[2..].iter().copied();
        let epilogue = Applied { program: conv.epilogue.clone(), inputs: std::iter::once(*id).chain(extras).collect() };
        Some((producer, inline(&epilogue, *id, &Applied { program: program.clone(), inputs: node.inputs.clone() })))
    })
}

/// The convolution with the program folded in; `None` if the program is not affine.
fn fold(graph: &mut TensorGraph, producer: usize, index: usize, applied: &Applied) -> Option<TensorNode> {
    let conv_node = graph.nodes[producer].clone();
    let Op::Conv(conv) = &conv_node.op else { return None };
    let weights = reference::constant(graph, conv_node.inputs[1]).filter(|w| is_float(w.dtype))?;
    let affine = evaluate(graph, applied, weights.shape[0], weights.shape.len())?;
    let dtype = weights.dtype;
    let mut inputs = vec![conv_node.inputs[0], conv_node.inputs[1]];
    if affine.a.iter().any(|a| *a != 1.0) {
        inputs[1] = add_constant(graph, &format!("{}.folded", conv_node.name), &scaled(&weights, &affine.a));
    }
    let mut epilogue = PointProgram::default();
    if affine.b.iter().any(|b| *b != 0.0) {
        let mut shape = vec![1; weights.shape.len()];
        shape[1] = affine.b.len();
        let bias = Tensor::floats(dtype, shape, affine.b);
        inputs.push(add_constant(graph, &format!("{}.bias", conv_node.name), &bias));
        epilogue = PointProgram::single(PointOp::Add, dtype, 2);
    }
    let op = Op::Conv(Conv { epilogue, ..conv.clone() });
    Some(TensorNode { name: conv_node.name, op, inputs, outputs: graph.nodes[index].outputs.clone() })
}

/// The weights with every filter multiplied by its factor.
fn scaled(weights: &Tensor, factors: &[f64]) -> Tensor {
    let per_filter: usize = weights.shape[1..].iter().product();
    let values = weights.to_f64();
    Tensor::floats(
        weights.dtype,
        weights.shape.clone(),
        values.iter().enumerate().map(|(i, w)| w * factors[i / per_filter.max(1)]),
    )
}

fn add_constant(graph: &mut TensorGraph, name: &str, tensor: &Tensor) -> ValueId {
    let shape = tensor.shape.iter().map(|d| Expr::Const(*d as i64)).collect();
    graph.add_value(Value { name: name.into(), dtype: tensor.dtype, shape, constant: Some(tensor.to_bytes()) })
}

/// `a[c] * y + b[c]` for every channel `c`.
#[derive(Clone)]
struct Affine {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Affine {
    fn constant(b: Vec<f64>) -> Affine {
        Affine { a: vec![0.0; b.len()], b }
    }

    fn is_constant(&self) -> bool {
        self.a.iter().all(|a| *a == 0.0)
    }

    fn zip(&self, other: &Affine, f: impl Fn(f64, f64) -> f64) -> Affine {
        let zip = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| f(*x, *y)).collect();
        Affine { a: zip(&self.a, &other.a), b: zip(&self.b, &other.b) }
    }

    /// Combines each coefficient with the constant of the same channel.
    fn scale(&self, constant: &Affine, f: impl Fn(f64, f64) -> f64) -> Affine {
        let zip = |x: &[f64]| x.iter().zip(&constant.b).map(|(x, y)| f(*x, *y)).collect();
        Affine { a: zip(&self.a), b: zip(&self.b) }
    }
}

fn evaluate(graph: &TensorGraph, applied: &Applied, channels: usize, rank: usize) -> Option<Affine> {
    let mut inputs = vec![Affine { a: vec![1.0; channels], b: vec![0.0; channels] }];
    for id in &applied.inputs[1..] {
        inputs.push(Affine::constant(channel_values(graph, *id, channels, rank)?));
    }
    let mut results: Vec<Affine> = Vec::new();
    for step in &applied.program.steps {
        let arg = |arg: &PointArg| match arg {
            PointArg::Input(i) => inputs[*i as usize].clone(),
            PointArg::Step(i) => results[*i as usize].clone(),
            PointArg::Const(number) => Affine::constant(vec![*number; channels]),
        };
        let args: Vec<Affine> = step.args.iter().map(arg).collect();
        results.push(match (step.op, &args[..]) {
            (PointOp::Identity, [x]) => x.clone(),
            (PointOp::Add, [x, y]) => x.zip(y, |x, y| x + y),
            (PointOp::Sub, [x, y]) => x.zip(y, |x, y| x - y),
            (PointOp::Mul, [x, y]) if y.is_constant() => x.scale(y, |x, y| x * y),
            (PointOp::Mul, [x, y]) if x.is_constant() => y.scale(x, |y, x| y * x),
            (PointOp::Div, [x, y]) if y.is_constant() && !y.b.contains(&0.0) => x.scale(y, |x, y| x / y),
            _ => return None,
        });
    }
    let result = results.pop()?;
    result.a.iter().chain(&result.b).all(|v| v.is_finite()).then_some(result)
}

/// The values per channel of a constant that broadcasts along the channels of a tensor
/// `[N, C, spatial…]` of `rank` dimensions.
fn channel_values(graph: &TensorGraph, id: ValueId, channels: usize, rank: usize) -> Option<Vec<f64>> {
    let tensor = reference::constant(graph, id)?;
    let mut shape = vec![1; rank.checked_sub(tensor.shape.len())?];
    shape.extend_from_slice(&tensor.shape);
    let Data::Float(values) = tensor.data else { return None };
    let of_channels = shape.iter().enumerate().all(|(axis, dim)| axis == 1 || *dim == 1);
    match shape[1] {
        1 if of_channels => Some(vec![values[0]; channels]),
        c if of_channels && c == channels => Some(values),
        _ => None,
    }
}
