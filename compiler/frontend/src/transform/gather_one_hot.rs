//! Replaces the product of a one-hot matrix and a constant by a lookup.
//!
//! Frameworks write embeddings as `cast(index == 0..K) x W`: K products per element instead of one
//! read. There, an index outside `0..K` gives a row of zeros; so the table gets one more row of
//! zeros at the end, which such indices select.

use super::uses::Uses;
use crate::program::ProgramBuilder;
use crate::reference;
use crate::size::same_shape;
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::{Op, PointArg, PointOp, PointProgram, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{DType, Expr};

/// Replaces products of a one-hot matrix that no other node reads with a constant matrix.
pub fn gather_one_hot(graph: &mut TensorGraph) {
    let mut index = 0;
    while index < graph.nodes.len() {
        if let Some(one_hot) = find(graph, index) {
            index += replace(graph, index, one_hot);
        }
        index += 1;
    }
}

/// A product that is equivalent to a lookup.
struct OneHot {
    /// Indices, with a last dimension of 1.
    indices: ValueId,
    /// `[K, N]`; all elements are finite.
    table: Tensor,
}

fn find(graph: &TensorGraph, index: usize) -> Option<OneHot> {
    let node = &graph.nodes[index];
    let Op::MatMul(product) = &node.op else { return None };
    let [matrix, weights] = node.inputs[..] else { return None };
    if product.transpose_a || product.transpose_b || !product.epilogue.is_identity() {
        return None;
    }
    let table = reference::constant(graph, weights).filter(|t| t.shape.len() == 2)?;
    let uses = Uses::of(graph);
    let maker = &graph.nodes[uses.producer(matrix).filter(|_| uses.is_single(matrix))?];
    let Op::Pointwise(program) = &maker.op else { return None };
    let (a, b) = compared(program)?;
    let (a, b) = (*maker.inputs.get(a)?, *maker.inputs.get(b)?);
    let (indices, classes) = if graph.value(b).constant.is_some() { (a, b) } else { (b, a) };
    let rows = &graph.value(matrix).shape[..graph.value(matrix).shape.len() - 1];
    let column = [rows, &[Expr::Const(1)]].concat();
    let fits = same_shape(&graph.value(indices).shape, &column) && is_count(graph, classes, table.shape[0]);
    let is_index = matches!(graph.value(indices).dtype, DType::I32 | DType::I64);
    (fits && is_index && table.to_f64().iter().all(|v| v.is_finite())).then_some(OneHot { indices, table })
}

/// The inputs that `cast(a == b)` compares.
fn compared(program: &PointProgram) -> Option<(usize, usize)> {
    let [equal, cast] = &program.steps[..] else { return None };
    match (equal.op, &equal.args[..], cast.op, &cast.args[..]) {
        (PointOp::Equal, [PointArg::Input(a), PointArg::Input(b)], PointOp::Cast, [PointArg::Step(0)]) => {
            Some((*a as usize, *b as usize))
        }
        _ => None,
    }
}

/// Whether a constant is `0..count` along the last axis, and has extent 1 on the others.
fn is_count(graph: &TensorGraph, id: ValueId, count: usize) -> bool {
    let tensor = reference::constant(graph, id);
    tensor.is_some_and(|t| {
        t.shape.last() == Some(&count)
            && matches!(&t.data, Data::Int(values) if values.iter().copied().eq(0..count as i64))
    })
}

/// Replaces the product by the lookup; returns the number of nodes inserted before it.
fn replace(graph: &mut TensorGraph, index: usize, one_hot: OneHot) -> usize {
    let TensorNode { name, outputs, .. } = graph.nodes[index].clone();
    let Value { dtype, shape, .. } = graph.value(one_hot.indices).clone();
    let rows = shape[..shape.len() - 1].to_vec();
    let count = one_hot.table.shape[0];
    let mut add = |suffix: &str, dtype: DType, shape: Vec<Expr>, constant| {
        graph.add_value(Value { name: format!("{name}.{suffix}"), dtype, shape, constant })
    };
    let table_shape = [count + 1, one_hot.table.shape[1]].map(|d| Expr::Const(d as i64)).to_vec();
    let mut rows_of_table = one_hot.table.to_f64();
    rows_of_table.resize(rows_of_table.len() + one_hot.table.shape[1], 0.0);
    let table = Tensor::floats(one_hot.table.dtype, vec![count + 1, one_hot.table.shape[1]], rows_of_table);
    let table = add("table", table.dtype, table_shape, Some(table.to_bytes()));
    let bounded = add("bounded", dtype, shape, None);
    let indices = add("indices", dtype, rows, None);
    let node = |suffix: &str, op: Op, input: ValueId, output: ValueId| TensorNode {
        name: format!("{name}.{suffix}"),
        op,
        inputs: vec![input],
        outputs: vec![output],
    };
    let bound = node("bounded", Op::Pointwise(bounding_program(dtype, count)), one_hot.indices, bounded);
    let reshape = node("indices", Op::Reshape, bounded, indices);
    let gather = TensorNode { name: name.clone(), op: Op::Gather { axis: 0 }, inputs: vec![table, indices], outputs };
    graph.nodes.splice(index..=index, [bound, reshape, gather]);
    2
}

/// `0 <= x && x < count ? x : count`
fn bounding_program(ty: DType, count: usize) -> PointProgram {
    let (mut p, x) = (ProgramBuilder::default(), PointArg::Input(0));
    let behind = PointArg::Const(count as f64);
    let below = p.step(PointOp::Less, ty, &[x, PointArg::Const(0.0)]);
    let above = p.step(PointOp::GreaterOrEqual, ty, &[x, behind]);
    let outside = p.step(PointOp::Or, DType::Bool, &[below, above]);
    p.step(PointOp::Where, ty, &[outside, behind, x]);
    p.finish()
}
