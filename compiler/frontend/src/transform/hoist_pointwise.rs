//! Hoists pointwise nodes over reshapes that only add or drop dimensions of 1.
//!
//! A 1-D convolution is a 2-D one between two such reshapes. Its activation stands behind the second, where no epilogue can reach it: `conv, reshape, relu` becomes
//! `conv, relu, reshape`.

use super::Uses;
use crate::size::{same, same_shape};
use crate::tensor_graph::{Op, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::Expr;

/// Repeats until nothing changes; every step moves a pointwise node one place up.
pub fn hoist_pointwise(graph: &mut TensorGraph) {
    while let Some(hoist) = find(graph) {
        apply(graph, hoist);
    }
}

/// A pointwise node that can be hoisted.
struct Hoist {
    /// The node.
    index: usize,
    /// Its operand that a reshape makes.
    reshaped: ValueId,
    /// The reshape's operand.
    source: ValueId,
    /// For every axis of the source the axis of the pointwise result it is; `None` for a dimension of 1 that the reshape drops.
    axes: Vec<Option<usize>>,
}

fn find(graph: &TensorGraph) -> Option<Hoist> {
    let uses = Uses::of(graph);
    graph.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, Op::Pointwise(_))).find_map(|(index, node)| {
        let shape = &graph.value(node.outputs[0]).shape;
        node.inputs.iter().find_map(|reshaped| {
            let reshape = &graph.nodes[uses.producer(*reshaped)?];
            let source = *reshape.inputs.first()?;
            let maker = &graph.nodes[uses.producer(source)?];
            let worth_it = matches!(maker.op, Op::Conv(_) | Op::MatMul(_) | Op::Pointwise(_));
            let alone = uses.is_single(*reshaped) && uses.is_single(source);
            let fits = reshape.op == Op::Reshape && same_shape(&graph.value(*reshaped).shape, shape);
            // The same constant may be read elsewhere, but other operands must not need a node of their own.
            let others_are_constant = node.inputs.iter().all(|id| id == reshaped || graph.value(*id).constant.is_some());
            if !(worth_it && alone && fits && others_are_constant) {
                return None;
            }
            let axes = align(&graph.value(source).shape, shape)?;
            Some(Hoist { index, reshaped: *reshaped, source, axes })
        })
    })
}

/// Which axis of `to` each axis of `from` is, where they differ in dimensions of 1 only.
fn align(from: &[Expr], to: &[Expr]) -> Option<Vec<Option<usize>>> {
    let one = Expr::Const(1);
    let mut rest = (0..to.len()).filter(|i| to[*i] != one);
    let axes = from
        .iter()
        .map(|dim| if *dim == one { Some(None) } else { rest.next().filter(|i| same(dim, &to[*i])).map(Some) })
        .collect::<Option<Vec<Option<usize>>>>()?;
    rest.next().is_none().then_some(axes)
}

fn apply(graph: &mut TensorGraph, hoist: Hoist) {
    let node = graph.nodes[hoist.index].clone();
    let result = node.outputs[0];
    let inputs = node
        .inputs
        .iter()
        .map(|id| if *id == hoist.reshaped { hoist.source } else { realigned(graph, *id, result, &hoist.axes) })
        .collect();
    let Value { name, dtype, .. } = graph.value(result).clone();
    let shape = graph.value(hoist.source).shape.clone();
    let hoisted = graph.add_value(Value { name: format!("{name}.hoisted"), dtype, shape, constant: None });
    graph.nodes[hoist.index] = TensorNode { inputs, outputs: vec![hoisted], ..node };
    let name = format!("{}.reshaped", graph.nodes[hoist.index].name);
    graph.nodes.insert(hoist.index + 1, TensorNode { name, op: Op::Reshape, inputs: vec![hoisted], outputs: vec![result] });
}

/// A constant that broadcasts to the pointwise result, as one that broadcasts to the source in the same way.
fn realigned(graph: &mut TensorGraph, id: ValueId, result: ValueId, axes: &[Option<usize>]) -> ValueId {
    let rank = graph.value(result).shape.len();
    let mut value = graph.value(id).clone();
    let surplus = rank - value.shape.len();
    let dim = |axis: usize| axis.checked_sub(surplus).map_or(Expr::Const(1), |i| value.shape[i].clone());
    value.shape = axes.iter().map(|axis| axis.map_or(Expr::Const(1), dim)).collect();
    value.name = format!("{}.realigned", value.name);
    graph.add_value(value)
}
