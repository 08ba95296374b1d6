//! Walks over parts of a graph. The marks are reused, so that a walk takes as long as the number of
//! blocks it visits, and not of all blocks.

use crate::graph::Graph;
use crate::limits::{Budget, TooLarge};
use crate::program::BlockId;

/// The marks of the last walk.
pub(super) struct Walker {
    round: u32,
    /// The last walk that visited each block.
    visited: Vec<u32>,
    /// The side of the branch that each block was reached from; valid if the block was visited.
    side: Vec<BlockId>,
}

impl Walker {
    pub(super) fn new(blocks: usize) -> Walker {
        Walker { round: 0, visited: vec![0; blocks], side: vec![0; blocks] }
    }

    /// Marks a block; returns whether this walk has not visited it before.
    fn visit(&mut self, block: BlockId) -> bool {
        std::mem::replace(&mut self.visited[block], self.round) != self.round
    }

    fn has_visited(&self, block: BlockId) -> bool {
        self.visited[block] == self.round
    }

    /// Blocks for which `enters` holds and that are reachable from `from` by such blocks. Stops at
    /// the first block for which `ends` holds, which then is the last one.
    pub(super) fn reach(
        &mut self,
        flow: &Graph,
        from: &[BlockId],
        enters: impl Fn(BlockId) -> bool,
        ends: impl Fn(BlockId) -> bool,
        budget: &mut Budget,
    ) -> Result<Vec<BlockId>, TooLarge> {
        self.round += 1;
        let mut reached = Vec::new();
        let mut work: Vec<BlockId> = from.iter().copied().filter(|&b| enters(b)).collect();
        while let Some(block) = work.pop() {
            if self.visit(block) {
                budget.spend(1)?;
                reached.push(block);
                if ends(block) {
                    break;
                }
                work.extend(flow.succs[block].iter().copied().filter(|&b| enters(b) && !self.has_visited(b)));
            }
        }
        Ok(reached)
    }

    /// Blocks that two paths from different sides of a branch reach, and at which they first join.
    /// The paths end at `meet`. A block may be listed twice.
    pub(super) fn joins(
        &mut self,
        flow: &Graph,
        branch: BlockId,
        meet: BlockId,
        budget: &mut Budget,
    ) -> Result<Vec<BlockId>, TooLarge> {
        self.round += 1;
        let mut joins = Vec::new();
        let mut work: Vec<BlockId> = flow.succs[branch].clone();
        for &side in &work {
            self.visit(side);
            self.side[side] = side;
        }
        while let Some(block) = work.pop() {
            budget.spend(1)?;
            if block == meet || block == branch {
                continue;
            }
            let incoming = self.side[block];
            for &next in &flow.succs[block] {
                if self.visit(next) {
                    self.side[next] = incoming;
                    work.push(next);
                } else if self.side[next] != incoming {
                    joins.push(next);
                    if self.side[next] != next {
                        self.side[next] = next;
                        work.push(next);
                    }
                }
            }
        }
        // A side that is the reconvergence point itself counts as a path.
        joins.extend(flow.succs[branch].contains(&meet).then_some(meet));
        Ok(joins)
    }
}
