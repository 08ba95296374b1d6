//! Fuses a square into the sum of it.

use super::uses::{Uses, operand, single_step};
use crate::tensor_graph::{Op, PointOp, ReduceKind, TensorGraph};

/// `reduce Sum (x * x)` becomes `reduce SumSquare (x)`, if no other node reads the square.
pub fn fuse_square(graph: &mut TensorGraph) {
    let uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Op::Reduce(reduce) = &node.op else { continue };
        let square = node.inputs[0];
        let Some(producer) = uses.producer(square).map(|p| &graph.nodes[p]) else { continue };
        let Some(step) = single_step(producer).filter(|s| s.op == PointOp::Mul && s.args[0] == s.args[1]) else {
            continue;
        };
        let Some(x) = operand(producer, step.args[0]) else { continue };
        let same_size = graph.value(x).shape == graph.value(square).shape;
        if reduce.kind == ReduceKind::Sum && uses.is_single(square) && same_size {
            let mut reduce = reduce.clone();
            reduce.kind = ReduceKind::SumSquare;
            graph.nodes[index].op = Op::Reduce(reduce);
            graph.nodes[index].inputs = vec![x];
        }
    }
}
