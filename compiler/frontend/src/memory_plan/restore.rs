//! Safe restore points.
//!
//! Running nodes `r..=i` again is correct if every buffer that these nodes read, and do not
//! themselves produce before reading, still holds its original content. A read of buffer `b` by
//! node `k` is *overwritten* at the first node `j >= k` that writes memory of `b`. Every window
//! with `first(b) < r <= k` and `i >= j` is then unsafe, where `first(b)` is the first writer of
//! `b`. A window that includes the first writer produces the buffer again.
//!
//! The restore point of node `i` is the earliest node such that running again from it, *or from any
//! node between it and `i`*, is safe. A device that knows the first launch of a preempted task that
//! may be incomplete can therefore continue from that launch, unless it is before the restore
//! point.
//!
//! Restore points never decrease from node to node. The point is `i + 1` if node `i` overwrites its
//! own input: then not even node `i` alone may run again. A run from the start (node 0) is always
//! safe if no node writes an input or a constant.

use super::Conflicts;
use atoll_kgraph::{BufferId, KernelGraph, NodeId, Segment};
use std::collections::HashMap;

/// One restore point per node.
pub(super) fn points(graph: &KernelGraph, conflicts: &Conflicts) -> Vec<NodeId> {
    let writers = writers(graph);
    // For each node that overwrites a buffer, one more than the latest reader that it overwrites.
    let mut overwritten: Vec<usize> = vec![0; graph.nodes.len()];
    for (reader, node) in graph.nodes.iter().enumerate() {
        for buffer in &node.reads {
            if let Some(overwriter) = overwriter(*buffer, reader, &writers, conflicts) {
                overwritten[overwriter] = overwritten[overwriter].max(reader + 1);
            }
        }
    }
    let mut point = 0;
    let points = overwritten.iter().map(|after| {
        point = point.max(*after);
        NodeId(point as u32)
    });
    let mut points: Vec<NodeId> = points.collect();
    keep_inside(&graph.segments, &mut points);
    points
}

/// Moves restore points that precede their segment to its beginning: earlier nodes may have run
/// under another condition, or in another iteration.
fn keep_inside(segments: &[Segment], points: &mut [NodeId]) {
    for segment in segments {
        match segment {
            Segment::Nodes { first, end } => {
                let own = &mut points[first.0 as usize..end.0 as usize];
                own.iter_mut().for_each(|point| *point = (*point).max(*first));
            }
            Segment::If { then, otherwise, .. } => {
                keep_inside(then, points);
                keep_inside(otherwise, points);
            }
            Segment::Loop { body, .. } => keep_inside(body, points),
        }
    }
}

fn writers(graph: &KernelGraph) -> HashMap<BufferId, Vec<usize>> {
    let mut writers: HashMap<BufferId, Vec<usize>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        node.writes.iter().for_each(|buffer| writers.entry(*buffer).or_default().push(index));
    }
    writers
}

/// The first node, from `reader` on, that writes memory of `buffer`.
fn overwriter(
    buffer: BufferId,
    reader: usize,
    writers: &HashMap<BufferId, Vec<usize>>,
    conflicts: &Conflicts,
) -> Option<usize> {
    let same_memory = std::iter::once(&buffer).chain(conflicts.of(buffer));
    same_memory.filter_map(|b| writers.get(b)?.iter().find(|w| **w >= reader).copied()).min()
}
