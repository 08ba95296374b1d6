//! Where definitions of a register meet: iterated dominance frontiers, found on the dominator tree
//! (Sreedhar and Gao). Frontiers themselves are never listed; for loops in each other they are as
//! many as pairs of loops.

use crate::graph::Graph;
use crate::live::Live;
use crate::program::{BlockId, ENTRY, Reg};
use atoll_ptx::flow::Dominators;
use std::collections::BinaryHeap;

/// Finds the blocks at which values of registers meet.
pub(crate) struct Joins<'a> {
    graph: &'a Graph,
    live: &'a Live,
    /// Distance of each block from the entry in the dominator tree; `usize::MAX` outside of it.
    depth: Vec<usize>,
    /// The blocks below each in the dominator tree, in reverse postorder.
    children: Vec<Vec<BlockId>>,
    /// The last register each block was visited for.
    visited: Vec<Reg>,
}

impl<'a> Joins<'a> {
    /// For the blocks that the entry leads to, `order` in reverse postorder.
    pub(crate) fn new(graph: &'a Graph, dominators: &Dominators, order: &[BlockId], live: &'a Live) -> Joins<'a> {
        let mut depth = vec![usize::MAX; graph.len()];
        let mut children = vec![Vec::new(); graph.len()];
        depth[ENTRY] = 0;
        for &block in order {
            if let Some(above) = dominators.immediate(block) {
                depth[block] = depth[above] + 1;
                children[above].push(block);
            }
        }
        Joins { graph, live, depth, children, visited: vec![Reg::MAX; graph.len()] }
    }

    /// The blocks below each in the dominator tree.
    pub(crate) fn into_children(self) -> Vec<Vec<BlockId>> {
        self.children
    }

    /// The blocks at which values of a register meet that is written in `defined_in`, and where it
    /// is live. Each register is asked for once.
    pub(crate) fn of(&mut self, reg: Reg, defined_in: &[BlockId]) -> Vec<BlockId> {
        let mut joins = Vec::new();
        let mut is_join = std::collections::HashSet::new();
        // The deepest first: so no block is visited for two definitions.
        let mut waiting: BinaryHeap<(usize, BlockId)> =
            defined_in.iter().map(|&block| (self.depth[block], block)).collect();
        while let Some((depth, root)) = waiting.pop() {
            let mut stack =
                if std::mem::replace(&mut self.visited[root], reg) == reg { Vec::new() } else { vec![root] };
            while let Some(block) = stack.pop() {
                for &to in &self.graph.succs[block] {
                    // An edge to a block that is no deeper than the definition leads out of what the definition
                    // dominates.
                    if self.depth[to] <= depth && self.live.contains(to, reg) && is_join.insert(to) {
                        joins.push(to);
                        waiting.push((self.depth[to], to));
                    }
                }
                for &below in &self.children[block] {
                    // Where the register is not live, only definitions further below matter, and those have been
                    // visited.
                    if self.live.contains(below, reg) && std::mem::replace(&mut self.visited[below], reg) != reg {
                        stack.push(below);
                    }
                }
            }
        }
        joins
    }
}
