//! Drawings of kernel graphs: as SVG with a layout of our own, and as text for Graphviz.

mod dot;
mod layers;
mod outline;
mod svg;

use atoll_kgraph::KernelGraph;
use layers::Layout;
use outline::Outline;

/// The graph for Graphviz.
pub(crate) fn dot(graph: &KernelGraph) -> String {
    dot::write(&graph.name, &Outline::new(graph))
}

/// The graph as a picture.
pub(crate) fn svg(graph: &KernelGraph) -> String {
    let outline = Outline::new(graph);
    let layout = Layout::new(&outline.edges, outline.vertices.len(), &outline.widths());
    svg::write(&graph.name, &outline, &layout)
}
