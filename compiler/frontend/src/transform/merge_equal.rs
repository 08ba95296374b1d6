//! Merges nodes with the same operator and operands (common subexpression elimination).

use super::uses::replace_uses;
use crate::tensor_graph::{TensorGraph, ValueId};
use std::collections::HashMap;

/// Keeps the first of equal nodes. A node that produces an output of the graph is kept: outputs are
/// distinct values.
pub fn merge_equal(graph: &mut TensorGraph) {
    let mut known: HashMap<String, usize> = HashMap::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let types: Vec<_> = node.outputs.iter().map(|id| (graph.value(*id).dtype, &graph.value(*id).shape)).collect();
        // Operators contain floats and so cannot be hashed; their debug text contains all fields.
        let key = format!("{:?}{:?}{types:?}", node.op, node.inputs);
        let Some(first) = known.get(&key).copied() else {
            known.insert(key, index);
            continue;
        };
        if node.outputs.iter().any(|id| graph.outputs.contains(id)) {
            continue;
        }
        let pairs: Vec<(ValueId, ValueId)> =
            node.outputs.iter().copied().zip(graph.nodes[first].outputs.iter().copied()).collect();
        for (from, to) in pairs {
            replace_uses(graph, from, to);
        }
    }
}
