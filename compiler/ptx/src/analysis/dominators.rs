//! Dominators and postdominators of a [`Cfg`], computed by [`crate::flow`].

use super::cfg::{BasicBlock, BlockId, Cfg};
use crate::flow::Dominators;

/// The dominator tree (blocks on every path from the entry) or the postdominator tree (blocks on
/// every path to the exit).
#[derive(Clone, Debug)]
pub struct DominatorTree(Dominators);

impl DominatorTree {
    /// The dominator tree. It contains only blocks that are reachable from the entry.
    pub fn dominators(cfg: &Cfg) -> DominatorTree {
        DominatorTree(Dominators::new(cfg.len(), cfg.entry().index(), |b| successors(cfg, b), |b| predecessors(cfg, b)))
    }

    /// The postdominator tree. It contains only blocks from which the exit is reachable. The blocks
    /// of an endless loop are not in it.
    pub fn postdominators(cfg: &Cfg) -> DominatorTree {
        DominatorTree(Dominators::new(cfg.len(), cfg.exit().index(), |b| predecessors(cfg, b), |b| successors(cfg, b)))
    }

    /// The immediate dominator; `None` for the root and for blocks outside the tree.
    pub fn immediate(&self, block: BlockId) -> Option<BlockId> {
        self.0.immediate(block.index()).map(BlockId::new)
    }

    /// Whether `above` dominates `below`. Every block in the tree dominates itself; a block outside
    /// the tree neither dominates nor is dominated.
    pub fn dominates(&self, above: BlockId, below: BlockId) -> bool {
        self.0.dominates(above.index(), below.index())
    }

    /// Whether a block is in the tree.
    pub fn contains(&self, block: BlockId) -> bool {
        self.0.contains(block.index())
    }

    /// The closest block that dominates both, or `None` if either is outside the tree.
    pub fn common(&self, first: BlockId, second: BlockId) -> Option<BlockId> {
        self.path(first).find(|&above| self.dominates(above, second))
    }

    /// A block and its dominators, up to the root; empty for a block outside the tree.
    pub fn path(&self, block: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(self.contains(block).then_some(block), |&b| self.immediate(b))
    }
}

fn block(cfg: &Cfg, index: usize) -> &BasicBlock {
    cfg.block(BlockId::new(index))
}

fn successors(cfg: &Cfg, index: usize) -> impl Iterator<Item = usize> + '_ {
    block(cfg, index).successors.iter().map(|edge| edge.to.index())
}

fn predecessors(cfg: &Cfg, index: usize) -> impl Iterator<Item = usize> + '_ {
    block(cfg, index).predecessors.iter().map(|from| from.index())
}
