//! Fuses a pointwise node into the epilogue of the convolution or matrix product before it: bias,
//! activation, residual sum.
//!
//! The fused node takes the position of the pointwise node, so all its other operands are computed
//! before it. Nodes are fused only if no other node reads the result of the product.

use super::uses::{FUSED_INPUTS_MAX, FUSED_STEPS_MAX, Uses};
use crate::program::{Applied, inline};
use crate::size::same_shape;
use crate::tensor_graph::{Op, PointProgram, TensorGraph, TensorNode, ValueId};

/// Walks from front to back; a node that absorbed one epilogue may absorb the next.
pub fn fuse_epilogue(graph: &mut TensorGraph) {
    let mut uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        let Some(fused) = fused(graph, &uses, index) else { continue };
        let old = std::mem::replace(&mut graph.nodes[index], fused);
        uses.change(&old.inputs, &graph.nodes[index].inputs);
    }
}

/// The pointwise node at `index`, fused as the epilogue of one of its producers.
fn fused(graph: &TensorGraph, uses: &Uses, index: usize) -> Option<TensorNode> {
    let node = &graph.nodes[index];
    let Op::Pointwise(program) = &node.op else { return None };
    // An epilogue is also computed for elements outside the result; these must not fail the
    // invocation.
    if program.may_divide_by_zero() {
        return None;
    }
    let result = graph.value(node.outputs[0]);
    // If two products are summed, the later one absorbs the sum: the result of the other one is
    // computed before it.
    let fits = |id: &ValueId| {
        let value = graph.value(*id);
        uses.is_single(*id) && value.dtype == result.dtype && same_shape(&value.shape, &result.shape)
    };
    let candidates = node.inputs.iter().filter(|id| fits(id)).filter_map(|id| Some((uses.producer(*id)?, *id)));
    let (producer, sum) = candidates.filter(|(p, _)| epilogue_of(&graph.nodes[*p].op).is_some()).max()?;
    let producer = &graph.nodes[producer];
    let extras = producer.inputs[2..].iter().copied();
    let before =
        Applied { program: epilogue_of(&producer.op)?.clone(), inputs: std::iter::once(sum).chain(extras).collect() };
    let after = inline(&before, sum, &Applied { program: program.clone(), inputs: node.inputs.clone() });
    if after.inputs.len() > FUSED_INPUTS_MAX || after.program.steps.len() > FUSED_STEPS_MAX {
        return None;
    }
    let inputs = producer.inputs[..2].iter().chain(&after.inputs[1..]).copied().collect();
    let mut op = producer.op.clone();
    *epilogue_of_mut(&mut op)? = after.program;
    Some(TensorNode { name: producer.name.clone(), op, inputs, outputs: node.outputs.clone() })
}

fn epilogue_of(op: &Op) -> Option<&PointProgram> {
    match op {
        Op::Conv(conv) => Some(&conv.epilogue),
        Op::MatMul(matmul) => Some(&matmul.epilogue),
        _ => None,
    }
}

fn epilogue_of_mut(op: &mut Op) -> Option<&mut PointProgram> {
    match op {
        Op::Conv(conv) => Some(&mut conv.epilogue),
        Op::MatMul(matmul) => Some(&mut matmul.epilogue),
        _ => None,
    }
}
