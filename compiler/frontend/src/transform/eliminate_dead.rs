//! Removes nodes that no output depends on and values that no node reads, and makes the names of
//! the remaining values unique.

use crate::tensor_graph::{TensorGraph, ValueId};
use std::collections::HashSet;

/// Keeps inputs, outputs and run-time sizes even if no node reads them, and renumbers the values.
pub fn eliminate_dead(graph: &mut TensorGraph) {
    let mut live = vec![false; graph.values.len()];
    graph.outputs.iter().chain(&graph.inputs).for_each(|id| live[id.0 as usize] = true);
    graph.run_time_sizes.iter().for_each(|size| live[size.value.0 as usize] = true);
    // Consumers come after producers, so one backward walk sees every consumer before its producer.
    let mut kept = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().any(|id| live[id.0 as usize]) {
            node.inputs.iter().chain(&node.outputs).for_each(|id| live[id.0 as usize] = true);
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
    renumber(graph, &live);
    rename_duplicates(graph);
}

fn renumber(graph: &mut TensorGraph, live: &[bool]) {
    let mut number = Vec::with_capacity(live.len());
    let mut next = 0;
    for is_live in live {
        number.push(ValueId(next));
        next += u32::from(*is_live);
    }
    let mut is_live = live.iter();
    graph.values.retain(|_| is_live.next() == Some(&true));
    let of_nodes = graph.nodes.iter_mut().flat_map(|n| n.inputs.iter_mut().chain(&mut n.outputs));
    let of_sizes = graph.run_time_sizes.iter_mut().map(|size| &mut size.value);
    for id in graph.inputs.iter_mut().chain(&mut graph.outputs).chain(of_nodes).chain(of_sizes) {
        *id = number[id.0 as usize];
    }
}

/// Passes name a value after its origin, so names may repeat. Inputs and outputs keep the model's
/// names.
fn rename_duplicates(graph: &mut TensorGraph) {
    let kept: HashSet<ValueId> = graph.inputs.iter().chain(&graph.outputs).copied().collect();
    let mut names: HashSet<String> = kept.iter().map(|id| graph.value(*id).name.clone()).collect();
    for index in (0..graph.values.len()).filter(|i| !kept.contains(&ValueId(*i as u32))) {
        let value = &mut graph.values[index];
        let wanted = value.name.clone();
        let mut count = 1;
        while !names.insert(value.name.clone()) {
            count += 1;
            value.name = format!("{wanted}.{count}");
        }
    }
}
