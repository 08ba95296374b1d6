//! Drawings: kernel graphs by Graphviz, measurements by plotters, and who ran where when.

mod dot;
mod gantt;
mod outline;
mod plot;

use atoll_kgraph::KernelGraph;
pub use dot::GraphvizError;
pub use gantt::{Gantt, Ran};
use outline::Outline;
pub use plot::{Axis, AxisScale, Line, plot};

/// The graph in Graphviz' language.
pub fn dot(graph: &KernelGraph) -> String {
    dot::write(&graph.name, &Outline::new(graph))
}

/// The graph as a picture, which Graphviz draws.
pub fn svg(graph: &KernelGraph) -> Result<String, GraphvizError> {
    dot::draw(&dot(graph))
}
