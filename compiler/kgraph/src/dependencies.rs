//! Dependencies between the steps of an invocation.
//!
//! A node depends on another for two reasons: [`crate::Node::after`], which the graph states, and
//! memory. The memory plan gives buffers with disjoint lifetimes, in node order, the same bytes. So
//! a node that writes a buffer must wait for earlier nodes that read or write the same bytes, even
//! if no value passes between them.

use crate::graph::{BufferId, BufferKind, KernelGraph};
use crate::layout::{InvocationLayout, Place};

/// Limit on pairs of buffers that share memory, and on pairs of dependent nodes; beyond it a graph
/// is treated as sequential. A model of ten thousand nodes has about a hundred thousand of each. If
/// all buffers share memory, the number of pairs is quadratic.
const PAIRS_MAX: usize = 1 << 21;

/// `nodes` lists the nodes that run, in graph order. Returns, for each of them, the positions in
/// `nodes` of the steps that must complete before it. Transitive dependencies may be left out. A
/// node that is not in the list does not run; steps that depend on it inherit its dependencies.
/// `None` if the number of pairs exceeds two million; the caller then runs the steps in sequence.
///
/// # Panics
/// The list names a node that the graph does not have.
pub fn dependencies(graph: &KernelGraph, layout: &InvocationLayout, nodes: &[u32]) -> Option<Vec<Vec<u32>>> {
    let mut at = vec![None; graph.nodes.len()];
    nodes.iter().enumerate().for_each(|(position, node)| at[*node as usize] = Some(position as u32));
    let overlapping = Overlapping::new(graph, layout)?;
    let mut pairs = 0;
    let mut memory = vec![Touched::default(); graph.buffers.len()];
    // Per node of the graph, the positions that its dependents have to wait for.
    let mut provides: Vec<Vec<u32>> = Vec::with_capacity(graph.nodes.len());
    let mut needs = Vec::with_capacity(nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut before: Vec<u32> = node.after.iter().flat_map(|other| &provides[other.0 as usize]).copied().collect();
        let Some(position) = at[index] else {
            sort(&mut before);
            pairs += before.len();
            provides.push(before);
            if pairs > PAIRS_MAX {
                return None;
            }
            continue;
        };
        for buffer in &node.reads {
            overlapping.of(*buffer).for_each(|other| before.extend(memory[other].writer));
        }
        for buffer in &node.writes {
            overlapping
                .of(*buffer)
                .for_each(|other| before.extend(memory[other].writer.iter().chain(&memory[other].readers)));
        }
        node.reads.iter().for_each(|buffer| memory[buffer.0 as usize].readers.push(position));
        for buffer in &node.writes {
            memory[buffer.0 as usize] = Touched { writer: Some(position), readers: Vec::new() };
        }
        pairs += before.len();
        if pairs > PAIRS_MAX {
            return None;
        }
        sort(&mut before);
        needs.push(before);
        provides.push(vec![position]);
    }
    Some(needs)
}

/// The last steps that accessed a buffer.
#[derive(Clone, Default)]
struct Touched {
    writer: Option<u32>,
    /// Readers since the last write.
    readers: Vec<u32>,
}

/// For each buffer, the buffers that share its memory, including itself. Constants share with no
/// other buffer, because no node writes them.
struct Overlapping(Vec<Vec<usize>>);

impl Overlapping {
    fn new(graph: &KernelGraph, layout: &InvocationLayout) -> Option<Overlapping> {
        let mut pairs = 0;
        let mut others: Vec<Vec<usize>> = (0..graph.buffers.len()).map(|buffer| vec![buffer]).collect();
        for is_state in [false, true] {
            // State buffers have their own allocation.
            let is_here = |kind: BufferKind| kind != BufferKind::Const && (kind == BufferKind::State) == is_state;
            let here = graph.buffers.iter().enumerate().filter(|(_, buffer)| is_here(buffer.kind));
            let mut places: Vec<(Place, usize)> =
                here.map(|(at, _)| (layout.buffers[at], at)).filter(|(place, _)| place.bytes > 0).collect();
            places.sort_unstable_by_key(|(place, at)| (place.offset, *at));
            for (index, (place, at)) in places.iter().enumerate() {
                let end = place.offset + place.bytes;
                let later = &places[index + 1..];
                let later = &later[..later.partition_point(|(later, _)| later.offset < end)];
                pairs += later.len();
                if pairs > PAIRS_MAX {
                    return None;
                }
                for (_, other) in later {
                    others[*at].push(*other);
                    others[*other].push(*at);
                }
            }
        }
        Some(Overlapping(others))
    }

    fn of(&self, buffer: BufferId) -> impl Iterator<Item = usize> {
        self.0[buffer.0 as usize].iter().copied()
    }
}

fn sort(steps: &mut Vec<u32>) {
    steps.sort_unstable();
    steps.dedup();
}
