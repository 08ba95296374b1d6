//! The control flow of a graph, by the names of its buffers.

use atoll_kgraph::{KernelGraph, Scalar, Segment};
use serde::Serialize;

/// A unit of control flow.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SegmentRow {
    /// Nodes in order, by index.
    Nodes { first: u32, last: u32 },
    /// One of two lists, selected by a scalar.
    If { condition: String, then: Vec<SegmentRow>, otherwise: Vec<SegmentRow> },
    /// Segments that run repeatedly.
    Loop {
        /// The number of iterations, as a size.
        trips: Option<String>,
        /// The scalar that gives the number of iterations.
        count: Option<String>,
        /// The scalar that is read before each iteration.
        condition: Option<String>,
        /// Iterations after which an invocation fails.
        trips_max: u64,
        body: Vec<SegmentRow>,
    },
}

/// The control flow of a graph; empty if all nodes run in order.
pub(super) fn rows(graph: &KernelGraph) -> Vec<SegmentRow> {
    list(graph, &graph.segments)
}

fn list(graph: &KernelGraph, segments: &[Segment]) -> Vec<SegmentRow> {
    let scalar = |Scalar { buffer, offset, dtype }: &Scalar| {
        format!("{}[{}]", graph.buffers[buffer.0 as usize].name, offset / dtype.bytes())
    };
    let row = |segment: &Segment| match segment {
        Segment::Nodes { first, end } => SegmentRow::Nodes { first: first.0, last: end.0.saturating_sub(1) },
        Segment::If { condition, then, otherwise } => {
            SegmentRow::If { condition: scalar(condition), then: list(graph, then), otherwise: list(graph, otherwise) }
        }
        Segment::Loop { trips, count, condition, trips_max, body } => SegmentRow::Loop {
            trips: trips.as_ref().map(|trips| trips.named(&graph.symbols).to_string()),
            count: count.as_ref().map(scalar),
            condition: condition.as_ref().map(scalar),
            trips_max: *trips_max,
            body: list(graph, body),
        },
    };
    segments.iter().map(row).collect()
}

/// The control flow as indented lines.
pub(super) fn text(rows: &[SegmentRow]) -> String {
    let mut lines = Vec::new();
    add_lines(&mut lines, rows, 0);
    lines.into_iter().map(|line| line + "\n").collect()
}

fn add_lines(lines: &mut Vec<String>, rows: &[SegmentRow], depth: usize) {
    let indent = "  ".repeat(depth);
    for row in rows {
        match row {
            SegmentRow::Nodes { first, last } if first == last => lines.push(format!("{indent}node {first}")),
            SegmentRow::Nodes { first, last } => lines.push(format!("{indent}nodes {first} to {last}")),
            SegmentRow::If { condition, then, otherwise } => {
                lines.push(format!("{indent}if {condition}"));
                add_lines(lines, then, depth + 1);
                if !otherwise.is_empty() {
                    lines.push(format!("{indent}else"));
                    add_lines(lines, otherwise, depth + 1);
                }
            }
            SegmentRow::Loop { trips, count, condition, trips_max, body } => {
                let most = [trips, count].into_iter().flatten().map(|most| format!(" at most {most} iterations"));
                let until = condition.iter().map(|condition| format!(" while {condition}"));
                let parts: Vec<String> = most.chain(until).collect();
                lines.push(format!("{indent}loop{}; fails after {trips_max}", parts.join(",")));
                add_lines(lines, body, depth + 1);
            }
        }
    }
}
