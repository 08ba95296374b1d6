//! Lifetimes of temporary buffers.

use atoll_kgraph::{BufferId, BufferKind, KernelGraph};

/// The first and last node that read or write a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) buffer: BufferId,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    pub(super) fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Lifetimes of all temporary buffers that a node reads or writes, in buffer order.
pub(super) fn of_temps(graph: &KernelGraph) -> Vec<Lifetime> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; graph.buffers.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for buffer in node.reads.iter().chain(&node.writes) {
            let span = spans[buffer.0 as usize].get_or_insert((index, index));
            span.1 = index;
        }
    }
    graph
        .buffers_of(BufferKind::Temp)
        .filter_map(|(buffer, _)| spans[buffer.0 as usize].map(|(first, last)| Lifetime { buffer, first, last }))
        .collect()
}
