//! Selects the nodes that the outputs need and sorts them topologically.

use super::error::ImportError;
use super::options::node_name;
use super::proto::{GraphProto, NodeProto};
use petgraph::algo::{astar, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, EdgeRef, IntoNeighbors, NodeFiltered, Reversed, VisitMap, Visitable};
use std::collections::{HashMap, HashSet};

/// The nodes of a graph or function, with an edge from the producer of a value to each consumer.
type DataFlow = DiGraph<(), ()>;

/// A set of nodes.
type Visited = <DataFlow as Visitable>::Map;

/// Largest number of nodes of a cycle that an error names.
const CYCLE_NODES_SHOWN: usize = 8;

/// Indices of the needed nodes in topological order; the model's own order if it is topological.
/// `outer` are names that are defined without a node: inputs and initialisers.
pub(super) fn needed_nodes(
    nodes: &[NodeProto],
    outputs: &[&str],
    outer: &HashSet<&str>,
) -> Result<Vec<usize>, ImportError> {
    let producers = producers(nodes, outer)?;
    let flow = flow(nodes, outer, &producers);
    let needed = needed(outputs, &producers, &flow);
    let is_needed = |index: NodeIndex| needed.is_visited(&index);
    if flow.edge_references().all(|edge| edge.source() < edge.target() || !is_needed(edge.target())) {
        return Ok(flow.node_indices().filter(|index| is_needed(*index)).map(NodeIndex::index).collect());
    }
    let part = NodeFiltered(&flow, needed);
    let order =
        toposort(&part, None).map_err(|found| ImportError::Cycle { nodes: cycle(nodes, &part, found.node_id()) })?;
    Ok(order.into_iter().map(NodeIndex::index).collect())
}

/// Names that a node reads: its operands, and the names that its subgraphs capture.
pub(super) fn reads(node: &NodeProto) -> Vec<&str> {
    let mut names: Vec<&str> = node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    names.extend(node.attribute.iter().filter_map(|a| a.g.as_ref()).flat_map(reads_of_graph));
    names
}

/// Names that a subgraph reads but does not define.
fn reads_of_graph(graph: &GraphProto) -> HashSet<&str> {
    let nodes = graph.node.iter().flat_map(reads);
    let mut names: HashSet<&str> = nodes.chain(graph.output.iter().map(|output| output.name.as_str())).collect();
    let inputs = graph.input.iter().map(|input| &input.name);
    let defined =
        inputs.chain(graph.initializer.iter().map(|t| &t.name)).chain(graph.node.iter().flat_map(|node| &node.output));
    for name in defined {
        names.remove(name.as_str());
    }
    names
}

/// The edges from producers to consumers, by the indices of the nodes; one edge per operand.
fn flow(nodes: &[NodeProto], outer: &HashSet<&str>, producers: &HashMap<&str, usize>) -> DataFlow {
    let mut flow = DiGraph::with_capacity(nodes.len(), nodes.len());
    for _ in nodes {
        flow.add_node(());
    }
    for (index, node) in nodes.iter().enumerate() {
        for producer in
            reads(node).into_iter().filter(|name| !outer.contains(name)).filter_map(|name| producers.get(name))
        {
            flow.add_edge(NodeIndex::new(*producer), NodeIndex::new(index), ());
        }
    }
    flow
}

/// Index of the node that defines each name; an error if a name is defined twice.
fn producers<'m>(nodes: &'m [NodeProto], outer: &HashSet<&str>) -> Result<HashMap<&'m str, usize>, ImportError> {
    let mut producers = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if producers.insert(name.as_str(), index).is_some() || outer.contains(name.as_str()) {
                let place = format!("node {}", node_name(node, index));
                return Err(ImportError::Invalid { place, reason: format!("{name} is defined twice") });
            }
        }
    }
    Ok(producers)
}

/// The nodes that the outputs depend on.
fn needed(outputs: &[&str], producers: &HashMap<&str, usize>, flow: &DataFlow) -> Visited {
    let outputs = outputs.iter().filter_map(|output| producers.get(output));
    let mut search = Dfs::from_parts(outputs.map(|index| NodeIndex::new(*index)).collect(), flow.visit_map());
    while search.next(Reversed(flow)).is_some() {}
    search.discovered
}

/// Names of the nodes of one cycle: the shortest path from `start` back to it.
fn cycle(nodes: &[NodeProto], part: &NodeFiltered<&DataFlow, Visited>, start: NodeIndex) -> Vec<String> {
    let paths = part.neighbors(start).filter_map(|next| astar(part, next, |at| at == start, |_| 1_usize, |_| 0));
    let path = paths.min_by_key(|(steps, _)| *steps).map_or_else(Vec::new, |(_, path)| path);
    path.iter().take(CYCLE_NODES_SHOWN).map(|index| node_name(&nodes[index.index()], index.index())).collect()
}
