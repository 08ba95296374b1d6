//! The memory planner: assigns every temporary buffer of a kernel graph an offset in one arena.
//!
//! A buffer *lives* from the node that first writes it to the node that last reads or writes it,
//! both included; control flow extends lifetimes. Two buffers that live at the same time never
//! overlap. All other buffers may overlap, which saves memory.
//!
//! 1. `lifetime`: computes the lifetime of each temporary buffer, in node order.
//! 2. `place`: buffers whose size is a number times the same symbols (`64 * batch`) form a
//!    *family*. The buffers of a family are packed by these numbers, largest first, each into the
//!    smallest hole that fits; an offset is a number times the same symbols. Buffers of other sizes
//!    share *slots*. Families and slots are laid out one after the other, so the plan is valid for
//!    every value of the symbols.
//! 3. `order`: nodes may run at the same time. Where a buffer reuses the memory of a dead one, its
//!    writer must wait for the last user of the dead buffer. These edges are added to `after`.
//! 4. `restore`: computes from which nodes the graph may be run again.

mod lifetime;
mod order;
mod place;
mod restore;

use atoll_kgraph::{BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, Expr, KernelGraph, MemoryPlan, TempPlacement};
use lifetime::Lifetime;

/// Fills in the memory plan of a graph whose nodes and buffers are final, and adds the ordering
/// edges that memory reuse needs.
///
/// The order of nodes must be one in which every node can finish before the next one starts. A
/// temporary buffer that no node uses gets no memory.
pub fn plan(graph: &mut KernelGraph) {
    let lifetimes = lifetime::of_temps(graph);
    let placed = place::place(graph, &lifetimes);
    let conflicts = conflicts(&lifetimes, &placed);
    order::add_reuse_edges(graph, &lifetimes, &conflicts);
    let unshared = sum(&lifetimes.iter().map(|l| aligned_bytes(graph, l.buffer)).collect::<Vec<_>>());
    let (states, state_bytes) = states(graph);
    graph.plan = MemoryPlan {
        arena_bytes: Some(crate::size::canonical(&placed.arena_bytes)),
        temps: placed.temps.iter().map(|t| TempPlacement { buffer: t.buffer, offset: t.offset.clone() }).collect(),
        restore_points: restore::points(graph, &conflicts),
        unshared_bytes: Some(crate::size::canonical(&unshared)),
        state_bytes,
        states,
    };
}

/// A sum as a balanced tree, because readers of a bundle limit the depth of an expression.
fn sum(terms: &[Expr]) -> Expr {
    match terms {
        [] => Expr::Const(0),
        [only] => only.clone(),
        _ => {
            let (left, right) = terms.split_at(terms.len() / 2);
            sum(left) + sum(right)
        }
    }
}

/// Offsets of the state buffers, one after the other, since all of them live as long as the
/// session; and their total size, `None` if there are no states.
fn states(graph: &KernelGraph) -> (Vec<TempPlacement>, Option<Expr>) {
    let mut end = Expr::Const(0);
    let place = |(buffer, _): (BufferId, &BufferSpec)| {
        let offset = crate::size::canonical(&end);
        end = end.clone() + aligned_bytes(graph, buffer);
        TempPlacement { buffer, offset }
    };
    let places: Vec<TempPlacement> = graph.buffers_of(BufferKind::State).map(place).collect();
    let bytes = (!places.is_empty()).then(|| crate::size::canonical(&end));
    (places, bytes)
}

/// Size of a buffer in bytes, rounded up so that the next buffer is aligned.
fn aligned_bytes(graph: &KernelGraph, buffer: BufferId) -> Expr {
    graph.buffers[buffer.0 as usize].bytes().align_up(BUFFER_ALIGN as i64)
}

/// For every temporary buffer, the other buffers that share memory with it.
struct Conflicts {
    by_buffer: std::collections::HashMap<BufferId, Vec<BufferId>>,
}

impl Conflicts {
    fn of(&self, buffer: BufferId) -> &[BufferId] {
        self.by_buffer.get(&buffer).map_or(&[], Vec::as_slice)
    }
}

fn conflicts(lifetimes: &[Lifetime], placed: &place::Placed) -> Conflicts {
    let mut by_buffer = std::collections::HashMap::<BufferId, Vec<BufferId>>::new();
    for (a, place_a) in lifetimes.iter().zip(&placed.temps) {
        for (b, place_b) in lifetimes.iter().zip(&placed.temps) {
            if a.buffer != b.buffer && place_a.region.overlaps(&place_b.region) {
                by_buffer.entry(a.buffer).or_default().push(b.buffer);
            }
        }
    }
    Conflicts { by_buffer }
}
