//! Drawings of kernel graphs: as SVG with a layout of our own, and as text for Graphviz. Plots of measurements.

mod dot;
mod gantt;
mod layers;
mod outline;
mod plot;
mod svg;

use atoll_kgraph::KernelGraph;
pub use gantt::{Gantt, Ran};
use layers::Layout;
use outline::Outline;
pub use plot::{Axis, AxisScale, Line, plot};

/// The graph for Graphviz.
pub fn dot(graph: &KernelGraph) -> String {
    dot::write(&graph.name, &Outline::new(graph))
}

/// The graph as a picture.
pub fn svg(graph: &KernelGraph) -> String {
    let outline = Outline::new(graph);
    let layout = Layout::new(&outline.edges, outline.vertices.len(), &outline.widths());
    svg::write(&graph.name, &outline, &layout)
}

/// Text for between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
