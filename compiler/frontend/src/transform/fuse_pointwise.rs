//! Fuses chains of pointwise nodes into one.
//!
//! A producer is fused into its consumer if no other node reads it and both have the same shape, so
//! that nothing is computed twice. A producer that only broadcasts (`Expand`) is fused into every
//! consumer, because a program broadcasts its inputs anyway.

use super::uses::{FUSED_INPUTS_MAX, FUSED_STEPS_MAX, Uses};
use crate::program::{Applied, inline};
use crate::size::{same, same_shape};
use crate::tensor_graph::{Op, TensorGraph, ValueId};

/// Works from front to back, so that a producer is fused completely before its consumer is
/// examined.
pub fn fuse_pointwise(graph: &mut TensorGraph) {
    let mut uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        while let Some(fused) = fuse_one(graph, &uses, index) {
            let old = std::mem::replace(&mut graph.nodes[index].inputs, fused.inputs.clone());
            uses.change(&old, &fused.inputs);
            graph.nodes[index].op = Op::Pointwise(fused.program);
        }
    }
}

/// The node with one producer fused into it.
fn fuse_one(graph: &TensorGraph, uses: &Uses, index: usize) -> Option<Applied> {
    let consumer = applied(graph, index)?;
    let result = graph.nodes[index].outputs[0];
    consumer.inputs.iter().find_map(|at| {
        let producer = applied(graph, uses.producer(*at)?)?;
        if !may_fuse(graph, uses, &producer, *at, result) {
            return None;
        }
        let fused = inline(&producer, *at, &consumer);
        (fused.inputs.len() <= FUSED_INPUTS_MAX && fused.program.steps.len() <= FUSED_STEPS_MAX).then_some(fused)
    })
}

fn may_fuse(graph: &TensorGraph, uses: &Uses, producer: &Applied, at: ValueId, result: ValueId) -> bool {
    let same_size = same_shape(&graph.value(at).shape, &graph.value(result).shape);
    (producer.program.is_identity() && is_certain(graph, producer, at)) || (uses.is_single(at) && same_size)
}

/// Whether it is known which dimensions are broadcast. If only the invocation determines it, one
/// node expands the operand, so that all other nodes read it contiguously.
fn is_certain(graph: &TensorGraph, producer: &Applied, at: ValueId) -> bool {
    let to = &graph.value(at).shape;
    let fits = |id: &ValueId| {
        let own = graph.value(*id).shape.iter().rev();
        own.zip(to.iter().rev()).all(|(dim, to)| dim.as_const() == Some(1) || same(dim, to))
    };
    producer.inputs.iter().all(fits)
}

/// The program and inputs of a pointwise node.
fn applied(graph: &TensorGraph, index: usize) -> Option<Applied> {
    match &graph.nodes[index].op {
        Op::Pointwise(program) => Some(Applied { program: program.clone(), inputs: graph.nodes[index].inputs.clone() }),
        _ => None,
    }
}
