//! Queries that passes share: the producer and the readers of a value, the single step of a node;
//! and the limits of a fused program.

use crate::tensor_graph::{Op, PointArg, PointStep, TensorGraph, TensorNode, ValueId};

/// Largest number of inputs of a fused program: each one costs a kernel parameter and a pointer
/// register.
pub(super) const FUSED_INPUTS_MAX: usize = 8;
/// Largest number of steps of a fused program: each may occupy a register for the whole program.
pub(super) const FUSED_STEPS_MAX: usize = 64;

/// The step of a pointwise node with exactly one step; `None` for every other node.
pub(super) fn single_step(node: &TensorNode) -> Option<&PointStep> {
    match &node.op {
        Op::Pointwise(program) if program.steps.len() == 1 => program.steps.first(),
        _ => None,
    }
}

/// The value of an operand that is an input.
pub(super) fn operand(node: &TensorNode, arg: PointArg) -> Option<ValueId> {
    match arg {
        PointArg::Input(index) => node.inputs.get(index as usize).copied(),
        _ => None,
    }
}

/// Replaces all reads of `from` by reads of `to`.
pub(super) fn replace_uses(graph: &mut TensorGraph, from: ValueId, to: ValueId) {
    let of_sizes = graph.run_time_sizes.iter_mut().map(|size| &mut size.value);
    graph
        .nodes
        .iter_mut()
        .flat_map(|n| &mut n.inputs)
        .chain(of_sizes)
        .filter(|id| **id == from)
        .for_each(|id| *id = to);
}

/// An index of producers and read counts that can be updated while nodes change in place.
pub(super) struct Uses {
    /// The node that produces each value.
    producer: Vec<Option<usize>>,
    /// How often each value is read, including as an output of the graph.
    count: Vec<usize>,
}

impl Uses {
    pub(super) fn of(graph: &TensorGraph) -> Uses {
        Uses { producer: graph.producers(), count: graph.use_counts() }
    }

    /// Extends the index by new values, which no node produces or reads yet.
    pub(super) fn grow(&mut self, values: usize) {
        self.producer.resize(values, None);
        self.count.resize(values, 0);
    }

    pub(super) fn producer(&self, id: ValueId) -> Option<usize> {
        self.producer[id.0 as usize]
    }

    pub(super) fn is_single(&self, id: ValueId) -> bool {
        self.count[id.0 as usize] == 1
    }

    /// Updates the index after a node's inputs changed from `old` to `new`.
    pub(super) fn change(&mut self, old: &[ValueId], new: &[ValueId]) {
        new.iter().for_each(|id| self.count[id.0 as usize] += 1);
        old.iter().for_each(|id| self.count[id.0 as usize] -= 1);
    }
}
