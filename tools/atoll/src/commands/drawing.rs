//! Pictures of a kernel graph: Graphviz' language, and an SVG of our own that needs no other program.

use atoll_kgraph::{KernelGraph, NodeKind};
use std::fmt::Write as _;

/// Size of a box and of the gaps between boxes, in pixels.
const BOX: (usize, usize) = (220, 28);
const GAP: (usize, usize) = (24, 26);
/// Characters that fit into a box.
const LABEL_CHARS: usize = 30;

/// The graph in Graphviz' language.
pub(crate) fn dot(graph: &KernelGraph) -> String {
    let mut text = format!("digraph {} {{\n  node [shape=box, fontname=monospace];\n", quoted(&graph.name));
    for (index, node) in graph.nodes.iter().enumerate() {
        let style = if matches!(node.kind, NodeKind::Copy { .. }) { ", style=dashed" } else { "" };
        let _ = writeln!(text, "  n{index} [label={}{style}];", quoted(&node.name));
        for before in &node.after {
            let _ = writeln!(text, "  n{} -> n{index};", before.0);
        }
    }
    text.push('}');
    text
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The graph as an SVG drawing: a node stands one row below the lowest node it waits for.
pub(crate) fn svg(graph: &KernelGraph) -> String {
    let mut rows: Vec<usize> = Vec::new();
    let mut columns: Vec<usize> = Vec::new();
    let mut used: Vec<usize> = Vec::new();
    for node in &graph.nodes {
        let row = node.after.iter().map(|before| rows[before.0 as usize] + 1).max().unwrap_or(0);
        used.resize(used.len().max(row + 1), 0);
        rows.push(row);
        columns.push(used[row]);
        used[row] += 1;
    }
    let (step_x, step_y) = (BOX.0 + GAP.0, BOX.1 + GAP.1);
    let width = used.iter().max().unwrap_or(&1) * step_x + GAP.0;
    let height = used.len() * step_y + GAP.1;
    let place = |index: usize| (GAP.0 + columns[index] * step_x, GAP.1 + rows[index] * step_y);
    let mut text = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"11\">\n");
    text.push_str("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    for (index, node) in graph.nodes.iter().enumerate() {
        let (x, y) = place(index);
        for before in &node.after {
            let (from_x, from_y) = place(before.0 as usize);
            let (from_x, from_y, to_x) = (from_x + BOX.0 / 2, from_y + BOX.1, x + BOX.0 / 2);
            let middle = (from_y + y) / 2;
            let _ = writeln!(text, "<path d=\"M{from_x} {from_y} C{from_x} {middle} {to_x} {middle} {to_x} {y}\" fill=\"none\" stroke=\"#8899aa\"/>");
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let (x, y) = place(index);
        let fill = if matches!(node.kind, NodeKind::Copy { .. }) { "#fff3d6" } else { "#e3eefc" };
        let _ = writeln!(text, "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{fill}\" stroke=\"#456\"/>", BOX.0, BOX.1);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{}</text>", x + 8, y + 18, escaped(&shortened(&node.name)));
    }
    text.push_str("</svg>\n");
    text
}

/// The end of a long name, which tells nodes apart better than its beginning.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= LABEL_CHARS { name.into() } else { format!("…{}", name.chars().skip(count - LABEL_CHARS + 1).collect::<String>()) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
