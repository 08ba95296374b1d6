//! Merges pairs of reshapes, transpositions and slices, turns transpositions that move only
//! dimensions of 1 into reshapes, and removes nodes that do nothing.

use super::uses::replace_uses;
use crate::size::{canonical, same_shape};
use crate::tensor_graph::{Op, TensorGraph, ValueId};
use atoll_kgraph::Expr;

/// Works from front to back, so that a chain of any length becomes one node.
pub fn merge_moves(graph: &mut TensorGraph) {
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let Some(source) = moved(graph, index) else { continue };
        if keeps_memory_order(graph, index) {
            graph.nodes[index].op = Op::Reshape;
        }
        if let Some(before) = producers[source.0 as usize]
            && let Some(op) = joined(&graph.nodes[before].op, &graph.nodes[index].op)
        {
            graph.nodes[index].inputs = graph.nodes[before].inputs.clone();
            graph.nodes[index].op = op;
        }
        let (source, result) = (graph.nodes[index].inputs[0], graph.nodes[index].outputs[0]);
        if is_no_op(&graph.nodes[index].op)
            && same_shape(&graph.value(source).shape, &graph.value(result).shape)
            && !graph.outputs.contains(&result)
        {
            replace_uses(graph, result, source);
        }
    }
}

/// The operand of a node that only moves elements.
fn moved(graph: &TensorGraph, index: usize) -> Option<ValueId> {
    let node = &graph.nodes[index];
    matches!(node.op, Op::Reshape | Op::Transpose { .. } | Op::Slice { .. }).then(|| node.inputs[0])
}

/// Whether a transposition leaves all elements in memory order.
fn keeps_memory_order(graph: &TensorGraph, index: usize) -> bool {
    let node = &graph.nodes[index];
    let Op::Transpose { permutation } = &node.op else { return false };
    let shape = &graph.value(node.inputs[0]).shape;
    permutation.iter().filter(|axis| shape[**axis] != Expr::Const(1)).is_sorted()
}

/// The operator that is equivalent to two consecutive ones, if there is one.
fn joined(first: &Op, second: &Op) -> Option<Op> {
    match (first, second) {
        (Op::Reshape, Op::Reshape) => Some(Op::Reshape),
        (Op::Transpose { permutation: inner }, Op::Transpose { permutation: outer }) => {
            Some(Op::Transpose { permutation: outer.iter().map(|i| inner[*i]).collect() })
        }
        (Op::Slice { starts, steps }, Op::Slice { starts: outer_starts, steps: outer_steps }) => Some(Op::Slice {
            starts: starts
                .iter()
                .zip(steps)
                .zip(outer_starts)
                .map(|((s, step), o)| canonical(&(s.clone() + o.clone() * *step)))
                .collect(),
            steps: steps.iter().zip(outer_steps).map(|(a, b)| a.checked_mul(*b)).collect::<Option<_>>()?,
        }),
        _ => None,
    }
}

/// Whether the operator is the identity if the shape does not change.
fn is_no_op(op: &Op) -> bool {
    match op {
        Op::Reshape => true,
        Op::Transpose { permutation } => permutation.iter().enumerate().all(|(i, p)| i == *p),
        Op::Slice { starts, steps } => starts.iter().all(|s| *s == Expr::Const(0)) && steps.iter().all(|s| *s == 1),
        _ => false,
    }
}
