//! Graphviz' language.

use super::outline::{Outline, Shape};
use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, NodeIndex};

pub(super) fn write(name: &str, outline: &Outline) -> String {
    let mut graph: DiGraph<&str, &str> = DiGraph::with_capacity(outline.vertices.len(), outline.edges.len());
    for vertex in &outline.vertices {
        graph.add_node(&vertex.label);
    }
    graph.extend_with_edges(outline.edges.iter().map(|(from, to)| (NodeIndex::new(*from), NodeIndex::new(*to), "")));
    let shape = |_, (index, _): (NodeIndex, _)| {
        let shape = match outline.vertices[index.index()].shape {
            Shape::Input | Shape::Output => "ellipse",
            Shape::Kernel => "box",
            Shape::Copy => "parallelogram",
        };
        format!("shape={shape}")
    };
    // What is around the vertices and edges: petgraph knows no name and no fonts.
    let content = Dot::with_attr_getters(&graph, &[Config::GraphContentOnly, Config::EdgeNoLabel], &|_, _| String::new(), &shape);
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("digraph \"{name}\" {{\n    node [fontname=\"monospace\", fontsize=10];\n{content}}}\n")
}
