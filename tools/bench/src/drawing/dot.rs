//! Graphviz: writes the DOT language, and runs the program `dot`.

use super::outline::{Outline, Shape};
use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, NodeIndex};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

/// Why a graph was not drawn.
#[derive(Debug, thiserror::Error)]
pub enum GraphvizError {
    /// `dot` is not on the search path.
    #[error(
        "cannot run `dot`: Graphviz is not installed; install the package graphviz, or print the graph with --dot and \
        draw it on another machine"
    )]
    Missing,
    /// `dot` cannot be run.
    #[error("cannot run Graphviz' program `dot`: {0}")]
    Run(#[from] std::io::Error),
    /// `dot` failed; contains its error message.
    #[error("Graphviz' program `dot` failed: {0}")]
    Failed(String),
}

/// The graph in the DOT language.
pub(super) fn write(name: &str, outline: &Outline) -> String {
    let mut graph: DiGraph<&str, &str> = DiGraph::with_capacity(outline.vertices.len(), outline.edges.len());
    for vertex in &outline.vertices {
        graph.add_node(&vertex.label);
    }
    graph.extend_with_edges(outline.edges.iter().map(|(from, to)| (NodeIndex::new(*from), NodeIndex::new(*to), "")));
    let look = |_, (index, _): (NodeIndex, _)| {
        // Colours that are distinguishable on light and dark backgrounds and in print.
        let (shape, colour) = match outline.vertices[index.index()].shape {
            Shape::Input => ("ellipse", "#cfe8ff"),
            Shape::Output => ("ellipse", "#d8f5d0"),
            Shape::Kernel => ("box", "#fff3d6"),
            Shape::Copy => ("parallelogram", "#eeeeee"),
        };
        format!("shape={shape} fillcolor=\"{colour}\"")
    };
    // petgraph writes only the nodes and edges; the frame sets the name and the fonts.
    let content =
        Dot::with_attr_getters(&graph, &[Config::GraphContentOnly, Config::EdgeNoLabel], &|_, _| String::new(), &look);
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "digraph \"{name}\" {{\n    node [fontname=\"monospace\", fontsize=10, style=filled, color=\"#444444\"];\n    \
        edge [color=\"#888888\"];\n{content}}}\n"
    )
}

/// Runs `dot` on a graph and returns the SVG.
pub(super) fn draw(text: &str) -> Result<String, GraphvizError> {
    let mut dot = Command::new("dot");
    dot.arg("-Tsvg").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = dot.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => GraphvizError::Missing,
        _ => GraphvizError::Run(error),
    })?;
    let mut input = child.stdin.take().expect("standard input is piped");
    let (written, output) = std::thread::scope(|scope| {
        // Writes from another thread, since `dot` may write output before it has read all input.
        let writer = scope.spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output();
        (writer.join().expect("the writer does not panic"), output)
    });
    let output = output?;
    if !output.status.success() {
        // The message of `dot` is more useful than a write error.
        return Err(GraphvizError::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    written?;
    String::from_utf8(output.stdout).map_err(|_| GraphvizError::Failed("its output is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::outline::Vertex;
    use super::*;

    #[test]
    fn a_graph_in_graphviz_language() {
        let vertex = |label: &str, shape| Vertex { label: label.into(), shape };
        let vertices = vec![
            vertex("x \"in\"", Shape::Input),
            vertex("gemm", Shape::Kernel),
            vertex("copy", Shape::Copy),
            vertex("y\\n<out>", Shape::Output),
        ];
        let text = write("a \"model\"", &Outline { vertices, edges: vec![(0, 1), (0, 2), (1, 3), (2, 3)] });
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("graph.dot", text);
        });
    }
}
