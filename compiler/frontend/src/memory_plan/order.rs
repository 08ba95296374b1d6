//! Ordering edges that memory reuse needs.

use super::Conflicts;
use super::lifetime::Lifetime;
use atoll_kgraph::{BufferId, KernelGraph, NodeId};
use std::collections::HashMap;

/// The ancestors of each node, as a bit set per node.
struct Ancestors {
    words: usize,
    bits: Vec<u64>,
}

impl Ancestors {
    fn of(graph: &KernelGraph) -> Ancestors {
        let words = graph.nodes.len().div_ceil(64);
        Ancestors { words, bits: vec![0; words * graph.nodes.len()] }
    }

    fn contains(&self, node: usize, ancestor: usize) -> bool {
        self.bits[node * self.words + ancestor / 64] & (1 << (ancestor % 64)) != 0
    }

    /// Makes `before` and its ancestors ancestors of `node`. The ancestors of `before` must be
    /// complete.
    fn add(&mut self, node: usize, before: usize) {
        let (front, back) = self.bits.split_at_mut(node * self.words);
        let row = &mut back[..self.words];
        row.iter_mut().zip(&front[before * self.words..]).for_each(|(a, b)| *a |= b);
        row[before / 64] |= 1 << (before % 64);
    }
}

/// Makes every writer of a buffer wait for the nodes that use a dead buffer in the same memory,
/// unless it already does.
pub(super) fn add_reuse_edges(graph: &mut KernelGraph, lifetimes: &[Lifetime], conflicts: &Conflicts) {
    let users = users(graph);
    let by_buffer: HashMap<BufferId, &Lifetime> = lifetimes.iter().map(|l| (l.buffer, l)).collect();
    let mut ancestors = Ancestors::of(graph);
    for node in 0..graph.nodes.len() {
        let after: Vec<usize> = graph.nodes[node].after.iter().map(|before| before.0 as usize).collect();
        after.into_iter().filter(|before| *before < node).for_each(|before| ancestors.add(node, before));
        let written: Vec<BufferId> =
            graph.nodes[node].writes.iter().filter(|b| by_buffer.contains_key(b)).copied().collect();
        for buffer in written {
            let dead = conflicts.of(buffer).iter().filter(|old| by_buffer[old].last < node);
            // The latest users first: earlier users are usually their ancestors.
            let mut waits: Vec<usize> = dead.flat_map(|old| users[old].iter().copied()).collect();
            waits.sort_unstable_by(|a, b| b.cmp(a));
            for before in waits {
                if !ancestors.contains(node, before) {
                    graph.nodes[node].after.push(NodeId(before as u32));
                    ancestors.add(node, before);
                }
            }
        }
    }
}

/// The nodes that read or write each buffer.
fn users(graph: &KernelGraph) -> HashMap<BufferId, Vec<usize>> {
    let mut users: HashMap<BufferId, Vec<usize>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for buffer in node.reads.iter().chain(&node.writes) {
            users.entry(*buffer).or_default().push(index);
        }
    }
    users
}
