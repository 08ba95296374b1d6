//! Which steps of an invocation need which others.
//!
//! Two things make one node wait for another: [`crate::Node::after`], which is the graph's own
//! word, and memory. A memory plan gives buffers that are never alive together, in the order of the
//! nodes, the same bytes; so a node that may write what an earlier one reads or writes waits for it
//! whether or not any value passes between them.

use crate::graph::{BufferId, BufferKind, KernelGraph};
use crate::layout::{InvocationLayout, Place};

/// Pairs of buffers that share memory, and pairs of nodes that wait for each other, beyond which a
/// graph is taken for one line. A model of ten thousand nodes has about a hundred thousand of each;
/// where every buffer shares memory with every other one there are as many as their square.
const PAIRS_MAX: usize = 1 << 21;

/// For each of these nodes, which are in the order of the graph, the positions in the list of those
/// that have to be complete before it: at least those from which the others follow. Nodes that are
/// not in the list do nothing, and what waits for one of them waits for what that waits for. `None`
/// where there are more than two million such pairs, for which nothing is worth finding out.
///
/// # Panics
/// If the list names a node that the graph does not have.
pub fn dependencies(graph: &KernelGraph, layout: &InvocationLayout, nodes: &[u32]) -> Option<Vec<Vec<u32>>> {
    let mut at = vec![None; graph.nodes.len()];
    nodes.iter().enumerate().for_each(|(position, node)| at[*node as usize] = Some(position as u32));
    let overlapping = Overlapping::new(graph, layout)?;
    let mut pairs = 0;
    let mut memory = vec![Touched::default(); graph.buffers.len()];
    // Per node of the graph, what to wait for before who comes behind it.
    let mut behind: Vec<Vec<u32>> = Vec::with_capacity(graph.nodes.len());
    let mut needs = Vec::with_capacity(nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut before: Vec<u32> = node.after.iter().flat_map(|other| &behind[other.0 as usize]).copied().collect();
        let Some(position) = at[index] else {
            sort(&mut before);
            pairs += before.len();
            behind.push(before);
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
        behind.push(vec![position]);
    }
    Some(needs)
}

/// Who touched a buffer last.
#[derive(Clone, Default)]
struct Touched {
    writer: Option<u32>,
    /// Since then.
    readers: Vec<u32>,
}

/// Which buffers share memory, each with itself; constants with nobody, because nobody writes them.
struct Overlapping(Vec<Vec<usize>>);

impl Overlapping {
    fn new(graph: &KernelGraph, layout: &InvocationLayout) -> Option<Overlapping> {
        let mut pairs = 0;
        let mut others: Vec<Vec<usize>> = (0..graph.buffers.len()).map(|buffer| vec![buffer]).collect();
        for is_state in [false, true] {
            // State buffers lie in an allocation of their own.
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
