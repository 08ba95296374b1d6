//! Merges nodes that compute the same from the same.

use super::uses::replace_uses;
use crate::tensor_graph::{TensorGraph, ValueId};
use std::collections::HashMap;

/// Keeps the first of equal nodes. A node that produces an output of the graph stays: outputs are
/// distinct values.
pub fn merge_equal(graph: &mut TensorGraph) {
    let mut known: HashMap<String, usize> = HashMap::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let types: Vec<_> = node.outputs.iter().map(|id| (graph.value(*id).dtype, &graph.value(*id).shape)).collect();
        // Operators hold floats and so have no hash; their debug text says all there is.
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
