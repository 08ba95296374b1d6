//! Lifetimes of temporary buffers.

use atoll_kgraph::{BufferId, BufferKind, KernelGraph, Segment};

/// The first and last node during which a buffer has to keep its content.
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

/// Lifetimes of all temporary buffers that a node or the host uses, in buffer order.
pub(super) fn of_temps(graph: &KernelGraph) -> Vec<Lifetime> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; graph.buffers.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for buffer in node.reads.iter().chain(&node.writes) {
            let span = spans[buffer.0 as usize].get_or_insert((index, index));
            span.1 = index;
        }
    }
    extend(&graph.segments, &mut 0, &mut spans);
    graph
        .buffers_of(BufferKind::Temp)
        .filter_map(|(buffer, _)| spans[buffer.0 as usize].map(|(first, last)| Lifetime { buffer, first, last }))
        .collect()
}

/// The first and last use of each buffer that has one.
type Spans = [Option<(usize, usize)>];

/// Extends lifetimes for control flow. `next` is the node after the segments so far.
///
/// The host reads a scalar when it reaches an `if` or a loop, or before each iteration. If a loop
/// reads a value from before the loop, it reads it in each iteration, so the value lives until the
/// loop's end. If a value is written in a loop and read after it, the value may be complete only
/// after several iterations, so it lives from the loop's beginning.
fn extend(segments: &[Segment], next: &mut usize, spans: &mut Spans) {
    for segment in segments {
        match segment {
            Segment::Nodes { end, .. } => *next = end.0 as usize,
            Segment::If { condition, then, otherwise } => {
                touch(spans, condition.buffer, *next);
                extend(then, next, spans);
                extend(otherwise, next, spans);
            }
            Segment::Loop { count, condition, body, .. } => {
                let first = *next;
                count.iter().for_each(|count| touch(spans, count.buffer, first));
                extend(body, next, spans);
                let last = next.saturating_sub(1).max(first);
                for at in [first, last] {
                    condition.iter().for_each(|condition| touch(spans, condition.buffer, at));
                }
                for (begin, end) in spans.iter_mut().flatten() {
                    if *begin < first && *end >= first {
                        *end = last.max(*end);
                    } else if (first..=last).contains(begin) && *end > last {
                        *begin = first;
                    }
                }
            }
        }
    }
}

fn touch(spans: &mut Spans, buffer: BufferId, at: usize) {
    let (begin, end) = spans[buffer.0 as usize].get_or_insert((at, at));
    (*begin, *end) = (at.min(*begin), at.max(*end));
}
