//! The structure of a kernel graph for drawing: inputs, nodes, outputs, and data flow between them.

use atoll_kgraph::{BufferKind, KernelGraph, NodeKind};

/// A graph to draw.
pub(super) struct Outline {
    pub(super) vertices: Vec<Vertex>,
    /// Pairs of vertex indices, from producer to consumer, without duplicates.
    pub(super) edges: Vec<(usize, usize)>,
}

/// A vertex.
pub(super) struct Vertex {
    pub(super) label: String,
    pub(super) shape: Shape,
}

/// Kind of a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Input,
    Kernel,
    Copy,
    Output,
}

impl Outline {
    pub(super) fn new(graph: &KernelGraph) -> Outline {
        let mut vertices = Vec::new();
        let mut edges = Vec::new();
        // The last writer of each buffer.
        let mut writer: Vec<Option<usize>> = vec![None; graph.buffers.len()];
        for (id, buffer) in graph.buffers_of(BufferKind::Input) {
            writer[id.0 as usize] = Some(vertices.len());
            vertices.push(Vertex { label: buffer.name.clone(), shape: Shape::Input });
        }
        let first_node = vertices.len();
        for node in &graph.nodes {
            let own = vertices.len();
            let sources: Vec<usize> = node.reads.iter().filter_map(|id| writer[id.0 as usize]).collect();
            if sources.is_empty() {
                // Dependencies that do not follow from data.
                edges.extend(node.after.iter().map(|before| (first_node + before.0 as usize, own)));
            }
            edges.extend(sources.into_iter().map(|from| (from, own)));
            for id in &node.writes {
                writer[id.0 as usize] = Some(own);
            }
            let shape = if matches!(node.kind, NodeKind::Kernel) { Shape::Kernel } else { Shape::Copy };
            vertices.push(Vertex { label: node.name.clone(), shape });
        }
        for (id, buffer) in graph.buffers_of(BufferKind::Output) {
            edges.extend(writer[id.0 as usize].map(|from| (from, vertices.len())));
            vertices.push(Vertex { label: buffer.name.clone(), shape: Shape::Output });
        }
        edges.retain(|(from, to)| from != to);
        edges.sort_unstable();
        edges.dedup();
        Outline { vertices, edges }
    }
}
