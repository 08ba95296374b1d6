//! Hoists pointwise nodes above nodes that only move elements, to where they can become an
//! epilogue.
//!
//! A 1-D convolution is a 2-D one between two reshapes, and attention splits heads between a
//! product and its scaling: `conv, reshape, relu` becomes `conv, relu, reshape`. A pointwise node
//! with one operand can be hoisted above any reshape or transposition. A node with constant
//! operands can be hoisted only above a reshape that adds or removes dimensions of 1, so that the
//! constants still broadcast.

use super::uses::Uses;
use crate::size::{same, same_shape};
use crate::tensor_graph::{Op, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::Expr;

/// Repeats until nothing changes; each step hoists one pointwise node above one node.
pub fn hoist_pointwise(graph: &mut TensorGraph) {
    while let Some(hoist) = find(graph) {
        apply(graph, hoist);
    }
}

/// A pointwise node that can be hoisted.
struct Hoist {
    /// The node.
    index: usize,
    /// The operand that the mover produces.
    moved: ValueId,
    /// The mover: a reshape or a transposition.
    mover: usize,
    /// The mover's operand.
    source: ValueId,
    /// For every axis of the source, the corresponding axis of the pointwise result; `None` for a
    /// dimension of 1 that the mover removes. Used only if there are constants.
    axes: Vec<Option<usize>>,
}

fn find(graph: &TensorGraph) -> Option<Hoist> {
    let uses = Uses::of(graph);
    graph.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, Op::Pointwise(_))).find_map(|(index, node)| {
        let shape = &graph.value(node.outputs[0]).shape;
        node.inputs.iter().find_map(|moved| {
            let mover = uses.producer(*moved)?;
            let source = mover_operand(&graph.nodes[mover])?;
            let alone = uses.is_single(*moved) && uses.is_single(source) && leads_to_epilogue(graph, &uses, source);
            // The same constant may be read by other nodes, but other operands must not need a node
            // of their own.
            let others_are_constant = node.inputs.iter().all(|id| id == moved || graph.value(*id).constant.is_some());
            if !(alone && others_are_constant && same_shape(&graph.value(*moved).shape, shape)) {
                return None;
            }
            let axes = match (&graph.nodes[mover].op, node.inputs.len()) {
                (_, 1) => Vec::new(),
                (Op::Reshape, _) => align(&graph.value(source).shape, shape)?,
                _ => return None,
            };
            Some(Hoist { index, moved: *moved, mover, source, axes })
        })
    })
}

fn mover_operand(node: &TensorNode) -> Option<ValueId> {
    matches!(node.op, Op::Reshape | Op::Transpose { .. }).then(|| node.inputs[0])
}

/// Whether a value comes from a node that can absorb a pointwise one, possibly through further
/// movers that no other node reads.
fn leads_to_epilogue(graph: &TensorGraph, uses: &Uses, mut id: ValueId) -> bool {
    while let Some(maker) = uses.producer(id).filter(|_| uses.is_single(id)).map(|p| &graph.nodes[p]) {
        match mover_operand(maker) {
            Some(operand) => id = operand,
            None => return matches!(maker.op, Op::Conv(_) | Op::MatMul(_) | Op::Pointwise(_)),
        }
    }
    false
}

/// The axis of `to` for each axis of `from`, if the shapes differ only in dimensions of 1.
fn align(from: &[Expr], to: &[Expr]) -> Option<Vec<Option<usize>>> {
    let one = Expr::Const(1);
    let mut rest = (0..to.len()).filter(|i| to[*i] != one);
    let axes = from
        .iter()
        .map(|dim| if *dim == one { Some(None) } else { rest.next().filter(|i| same(dim, &to[*i])).map(Some) })
        .collect::<Option<Vec<Option<usize>>>>()?;
    rest.next().is_none().then_some(axes)
}

/// Swaps the two nodes. All other operands are constants, so the pointwise node can take the
/// mover's position.
fn apply(graph: &mut TensorGraph, hoist: Hoist) {
    let node = graph.nodes[hoist.index].clone();
    let result = node.outputs[0];
    let inputs = node
        .inputs
        .iter()
        .map(|id| if *id == hoist.moved { hoist.source } else { realigned(graph, *id, result, &hoist.axes) })
        .collect();
    let Value { name, dtype, .. } = graph.value(result).clone();
    let shape = graph.value(hoist.source).shape.clone();
    let hoisted = graph.add_value(Value { name: format!("{name}.hoisted"), dtype, shape, constant: None });
    let mover = graph.nodes[hoist.mover].clone();
    graph.nodes[hoist.mover] = TensorNode { inputs, outputs: vec![hoisted], ..node };
    graph.nodes[hoist.index] = TensorNode { inputs: vec![hoisted], outputs: vec![result], ..mover };
}

/// Reshapes a constant that broadcasts to the pointwise result, so that it broadcasts to the source
/// in the same way.
fn realigned(graph: &mut TensorGraph, id: ValueId, result: ValueId, axes: &[Option<usize>]) -> ValueId {
    let rank = graph.value(result).shape.len();
    let mut value = graph.value(id).clone();
    let surplus = rank - value.shape.len();
    let dim = |axis: usize| axis.checked_sub(surplus).map_or(Expr::Const(1), |i| value.shape[i].clone());
    value.shape = axes.iter().map(|axis| axis.map_or(Expr::Const(1), dim)).collect();
    value.name = format!("{}.realigned", value.name);
    graph.add_value(value)
}
