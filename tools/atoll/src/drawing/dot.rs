//! Graphviz' language.

use super::outline::{Outline, Shape};
use std::fmt::Write;

pub(super) fn write(name: &str, outline: &Outline) -> String {
    let mut text = format!("digraph \"{}\" {{\n  node [fontname=\"monospace\", fontsize=10];\n", escaped(name));
    // Writing to a string cannot fail.
    for (index, vertex) in outline.vertices.iter().enumerate() {
        let shape = match vertex.shape {
            Shape::Input | Shape::Output => "ellipse",
            Shape::Kernel => "box",
            Shape::Copy => "parallelogram",
        };
        let _ = writeln!(text, "  v{index} [shape={shape}, label=\"{}\"];", escaped(&vertex.label));
    }
    for (from, to) in &outline.edges {
        let _ = writeln!(text, "  v{from} -> v{to};");
    }
    text.push_str("}\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
