//! Finds the blocks where definitions of a register join: iterated dominance frontiers, computed on
//! the dominator tree (Sreedhar and Gao). The frontiers themselves are never listed, because nested
//! loops have quadratically many.

use crate::graph::Graph;
use crate::live::Live;
use crate::program::{BlockId, ENTRY, Reg};
use atoll_ptx::flow::Dominators;
use std::collections::BinaryHeap;

/// Finds the blocks at which values of registers join.
pub(crate) struct Joins<'a> {
    graph: &'a Graph,
    live: &'a Live,
    /// Depth of each block in the dominator tree; `usize::MAX` for blocks outside of it.
    depth: Vec<usize>,
    /// Children of each block in the dominator tree, in reverse postorder.
    children: Vec<Vec<BlockId>>,
    /// The last register each block was visited for.
    visited: Vec<Reg>,
}

impl<'a> Joins<'a> {
    /// `order` holds the blocks reachable from the entry, in reverse postorder.
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

    /// Children of each block in the dominator tree.
    pub(crate) fn into_children(self) -> Vec<Vec<BlockId>> {
        self.children
    }

    /// The blocks at which values of a register join, where the register is live; `defined_in`
    /// holds the blocks that write it. May be called once per register.
    pub(crate) fn of(&mut self, reg: Reg, defined_in: &[BlockId]) -> Vec<BlockId> {
        let mut joins = Vec::new();
        let mut is_join = std::collections::HashSet::new();
        // Deepest definitions first, so that no block is visited for two definitions.
        let mut waiting: BinaryHeap<(usize, BlockId)> =
            defined_in.iter().map(|&block| (self.depth[block], block)).collect();
        while let Some((depth, root)) = waiting.pop() {
            let mut stack =
                if std::mem::replace(&mut self.visited[root], reg) == reg { Vec::new() } else { vec![root] };
            while let Some(block) = stack.pop() {
                for &to in &self.graph.succs[block] {
                    // The target of an edge is in the frontier if it is no deeper than the
                    // definition.
                    if self.depth[to] <= depth && self.live.contains(to, reg) && is_join.insert(to) {
                        joins.push(to);
                        waiting.push((self.depth[to], to));
                    }
                }
                for &below in &self.children[block] {
                    // If the register is not live here, only definitions further down matter, and
                    // those have been visited.
                    if self.live.contains(below, reg) && std::mem::replace(&mut self.visited[below], reg) != reg {
                        stack.push(below);
                    }
                }
            }
        }
        joins
    }
}
