//! Which nodes the outputs need, in an order that respects every dependency.

use super::proto::GraphProto;
use super::{ImportError, node_name};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Most nodes of a cycle that an error names.
const CYCLE_NODES_SHOWN: usize = 8;

/// Indices of the needed nodes in topological order; the model's own order where that is one. `outer` names what is defined without a node.
pub(super) fn needed_nodes(graph: &GraphProto, outer: &HashSet<&str>) -> Result<Vec<usize>, ImportError> {
    let producers = producers(graph, outer)?;
    let needed = reachable(graph, &producers);
    let dependencies = |index: usize| {
        let inputs = graph.node[index].input.iter().filter(|name| !name.is_empty() && !outer.contains(name.as_str()));
        inputs.filter_map(|name| producers.get(name.as_str()).copied())
    };
    let mut waiting: HashMap<usize, usize> = HashMap::new();
    let mut consumers: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut ready = BinaryHeap::new();
    for index in (0..graph.node.len()).filter(|i| needed[*i]) {
        let open: HashSet<usize> = dependencies(index).collect();
        open.iter().for_each(|producer| consumers.entry(*producer).or_default().push(index));
        if open.is_empty() {
            ready.push(Reverse(index));
        }
        waiting.insert(index, open.len());
    }
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(index);
        waiting.remove(&index);
        for consumer in consumers.get(&index).into_iter().flatten() {
            if let Some(open) = waiting.get_mut(consumer) {
                *open -= 1;
                if *open == 0 {
                    ready.push(Reverse(*consumer));
                }
            }
        }
    }
    if waiting.is_empty() { Ok(order) } else { Err(ImportError::Cycle { nodes: cycle(graph, &waiting, dependencies) }) }
}

/// The node that defines each name; every name is defined once.
fn producers<'m>(graph: &'m GraphProto, outer: &HashSet<&str>) -> Result<HashMap<&'m str, usize>, ImportError> {
    let mut producers = HashMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if producers.insert(name.as_str(), index).is_some() || outer.contains(name.as_str()) {
                let place = format!("node {}", node_name(node, index));
                return Err(ImportError::Invalid { place, reason: format!("{name} is defined twice") });
            }
        }
    }
    Ok(producers)
}

fn reachable(graph: &GraphProto, producers: &HashMap<&str, usize>) -> Vec<bool> {
    let mut needed = vec![false; graph.node.len()];
    let mut open: Vec<usize> = graph.output.iter().filter_map(|o| producers.get(o.name.as_str()).copied()).collect();
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut needed[index], true) {
            open.extend(graph.node[index].input.iter().filter_map(|name| producers.get(name.as_str()).copied()));
        }
    }
    needed
}

/// Names of nodes along one cycle: walking backwards among nodes that never became ready must come to one again.
fn cycle<I: Iterator<Item = usize>>(graph: &GraphProto, waiting: &HashMap<usize, usize>, dependencies: impl Fn(usize) -> I) -> Vec<String> {
    let mut path: Vec<usize> = Vec::new();
    let mut at = waiting.keys().copied().min();
    while let Some(index) = at {
        if let Some(start) = path.iter().position(|seen| *seen == index) {
            let around = path[start..].iter().rev().take(CYCLE_NODES_SHOWN);
            return around.map(|i| node_name(&graph.node[*i], *i)).collect();
        }
        path.push(index);
        at = dependencies(index).find(|i| waiting.contains_key(i));
    }
    Vec::new()
}
