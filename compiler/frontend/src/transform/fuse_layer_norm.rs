//! Finds layer normalisation that an exporter decomposed, and fuses it into one node.
//!
//! The pattern, over trailing axes: `d = x - mean(x)`, `y = d / sqrt(mean(d * d) + epsilon)`,
//! optionally followed by `y * scale` and `+ bias` with constants.

use super::uses::{Uses, operand, single_step};
use crate::size::static_shape;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointArg, PointOp, ReduceKind, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{DType, Expr};

/// Replaces the last node of each pattern; the other nodes are dead unless another node reads them.
pub fn fuse_layer_norm(graph: &mut TensorGraph) {
    let uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        if let Some(core) = find_core(graph, &uses, index) {
            replace(graph, &uses, index, core);
        }
    }
}

/// The normalisation of `x` over the axes from `axis` on.
struct Core {
    x: ValueId,
    axis: usize,
    epsilon: f64,
}

/// Matches the pattern backwards from the division.
fn find_core(graph: &TensorGraph, uses: &Uses, index: usize) -> Option<Core> {
    let producer = |id: ValueId| uses.producer(id).map(|p| &graph.nodes[p]);
    let two = |node: &TensorNode, op: PointOp| {
        let step = single_step(node).filter(|s| s.op == op)?;
        Some((operand(node, step.args[0])?, operand(node, step.args[1])?))
    };
    let division = &graph.nodes[index];
    let (centred, deviation) = two(division, PointOp::Div)?;
    let (x, mean) = two(producer(centred)?, PointOp::Sub)?;
    let root = producer(deviation)?;
    let raised = operand(root, single_step(root).filter(|s| s.op == PointOp::Sqrt)?.args[0])?;
    let (variance, epsilon) = plus_number(producer(raised)?)?;
    let square = mean_of(producer(variance)?)?;
    let (a, b) = two(producer(square.0)?, PointOp::Mul)?;
    let mean = mean_of(producer(mean)?)?;
    let rank = graph.value(x).shape.len();
    let axes: Vec<usize> = mean.1.to_vec();
    let axis = *axes.first()?;
    let matches =
        a == centred && b == centred && mean.0 == x && axes == square.1 && axes.iter().copied().eq(axis..rank);
    // The layer-norm kernel computes in f32.
    (matches && is_float(graph.value(x).dtype) && graph.value(x).dtype != DType::F64).then_some(Core {
        x,
        axis,
        epsilon,
    })
}

/// `value + number`, in either order.
fn plus_number(node: &TensorNode) -> Option<(ValueId, f64)> {
    match single_step(node).filter(|s| s.op == PointOp::Add)?.args[..] {
        [value, PointArg::Const(number)] | [PointArg::Const(number), value] => Some((operand(node, value)?, number)),
        _ => None,
    }
}

/// The operand and the axes of a mean.
fn mean_of(node: &TensorNode) -> Option<(ValueId, &[usize])> {
    match &node.op {
        Op::Reduce(reduce) if reduce.kind == ReduceKind::Mean && reduce.keep_dims => {
            Some((node.inputs[0], &reduce.axes))
        }
        _ => None,
    }
}

/// Replaces the last node of the pattern by the layer normalisation.
fn replace(graph: &mut TensorGraph, uses: &Uses, division: usize, core: Core) {
    let row = graph.value(core.x).shape[core.axis..].to_vec();
    let Some(extents) = static_shape(&row) else { return };
    let (mut last, mut scale, mut bias) = (division, None, None);
    if let Some((index, id)) = next(graph, uses, last, PointOp::Mul, &row) {
        (last, scale) = (index, Some(id));
    }
    if let Some((index, id)) = next(graph, uses, last, PointOp::Add, &row) {
        (last, bias) = (index, Some(id));
    }
    let name = graph.nodes[division].name.clone();
    let dtype = graph.value(core.x).dtype;
    let scale = match scale {
        Some(id) => shaped(graph, id, &row),
        None => {
            let ones = Tensor::floats(dtype, extents.clone(), vec![1.0; extents.iter().product()]);
            graph.add_value(Value {
                name: format!("{name}.ones"),
                dtype,
                shape: row.clone(),
                constant: Some(ones.to_bytes()),
            })
        }
    };
    let mut inputs = vec![core.x, scale];
    if let Some(id) = bias {
        inputs.push(shaped(graph, id, &row));
    }
    let outputs = graph.nodes[last].outputs.clone();
    graph.nodes[last] = TensorNode {
        name: format!("{name}.norm"),
        op: Op::LayerNorm { axis: core.axis, epsilon: core.epsilon as f32 },
        inputs,
        outputs,
    };
}

/// The only reader of a node's result, and the constant of the row's shape with which it combines
/// the result.
fn next(graph: &TensorGraph, uses: &Uses, index: usize, op: PointOp, row: &[Expr]) -> Option<(usize, ValueId)> {
    let result = graph.nodes[index].outputs[0];
    if !uses.is_single(result) {
        return None;
    }
    let reader = (index + 1..graph.nodes.len()).find(|i| graph.nodes[*i].inputs.contains(&result))?;
    let node = &graph.nodes[reader];
    let step = single_step(node).filter(|s| s.op == op)?;
    let other = step.args.iter().filter_map(|arg| operand(node, *arg)).find(|id| *id != result)?;
    let constant = graph.value(other);
    let fits = constant.constant.is_some()
        && trimmed(&constant.shape) == trimmed(row)
        && constant.shape.len() <= graph.value(result).shape.len();
    fits.then_some((reader, other))
}

/// The shape without leading dimensions of 1.
fn trimmed(shape: &[Expr]) -> &[Expr] {
    let ones = shape.iter().take_while(|d| **d == Expr::Const(1)).count();
    &shape[ones..]
}

/// The constant, reshaped to the row's shape.
fn shaped(graph: &mut TensorGraph, id: ValueId, row: &[Expr]) -> ValueId {
    if graph.value(id).shape == row {
        return id;
    }
    let value = Value { shape: row.to_vec(), ..graph.value(id).clone() };
    graph.add_value(value)
}
