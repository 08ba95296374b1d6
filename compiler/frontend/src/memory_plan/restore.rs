//! Safe restore points.
//!
//! Running nodes `r..=i` again is right if every buffer that the window reads, and does not itself
//! produce before reading, still holds what it held. A read of buffer `b` by node `k` is *spoiled*
//! at the first node `j >= k` that writes memory of `b`: then each window with `first(b) < r <= k`
//! and `i >= j` is wrong, where `first(b)` is the first writer of `b`. From the first writer on the
//! window makes the buffer anew.
//!
//! The restore point of node `i` is the earliest node such that running again from it, *or from any
//! node between it and `i`*, is safe. So a device that knows which launch of a preempted task is
//! the first that may be incomplete can continue right there if that is not before the point. It is
//! monotone, and `i + 1` where node `i` overwrites its own input: then not even node `i` alone may
//! run again. A run from the very start (node 0) is always safe as long as no node writes an input
//! or a constant.

use super::Conflicts;
use atoll_kgraph::{BufferId, KernelGraph, NodeId};
use std::collections::HashMap;

/// One restore point per node.
pub(super) fn points(graph: &KernelGraph, conflicts: &Conflicts) -> Vec<NodeId> {
    let writers = writers(graph);
    // For each node that spoils something, the latest reader it spoils.
    let mut spoiled: Vec<usize> = vec![0; graph.nodes.len()];
    for (reader, node) in graph.nodes.iter().enumerate() {
        for buffer in &node.reads {
            if let Some(spoiler) = spoiler(*buffer, reader, &writers, conflicts) {
                spoiled[spoiler] = spoiled[spoiler].max(reader + 1);
            }
        }
    }
    let mut point = 0;
    spoiled
        .iter()
        .map(|after| {
            point = point.max(*after);
            NodeId(point as u32)
        })
        .collect()
}

fn writers(graph: &KernelGraph) -> HashMap<BufferId, Vec<usize>> {
    let mut writers: HashMap<BufferId, Vec<usize>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        node.writes.iter().for_each(|buffer| writers.entry(*buffer).or_default().push(index));
    }
    writers
}

/// The first node from `reader` on that writes memory of `buffer`.
fn spoiler(
    buffer: BufferId,
    reader: usize,
    writers: &HashMap<BufferId, Vec<usize>>,
    conflicts: &Conflicts,
) -> Option<usize> {
    let same_memory = std::iter::once(&buffer).chain(conflicts.of(buffer));
    same_memory.filter_map(|b| writers.get(b)?.iter().find(|w| **w >= reader).copied()).min()
}
