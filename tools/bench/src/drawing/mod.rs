//! Drawings: kernel graphs (Graphviz), measurements (plotters), and timelines of compute units.

mod dot;
mod gantt;
mod outline;
mod plot;

use atoll_kgraph::KernelGraph;
pub use dot::GraphvizError;
pub use gantt::{Gantt, Ran};
use outline::Outline;
pub use plot::{Axis, AxisScale, Line, plot};

/// The graph in the DOT language.
pub fn dot(graph: &KernelGraph) -> String {
    dot::write(&graph.name, &Outline::new(graph))
}

/// The graph as SVG, drawn by Graphviz.
pub fn svg(graph: &KernelGraph) -> Result<String, GraphvizError> {
    dot::draw(&dot(graph))
}
