//! Dominators and postdominators.
//!
//! Those of [`crate::flow`], for the blocks of a [`Cfg`].

use super::cfg::{BasicBlock, BlockId, Cfg};
use crate::flow::Dominators;

/// Which block lies on every way from the entry to another (dominators), or from another to the
/// exit (postdominators).
#[derive(Clone, Debug)]
pub struct DominatorTree(Dominators);

impl DominatorTree {
    /// What lies on every way from the entry. Blocks the entry does not lead to are outside of the
    /// tree.
    pub fn dominators(cfg: &Cfg) -> DominatorTree {
        DominatorTree(Dominators::new(cfg.len(), cfg.entry().index(), |b| successors(cfg, b), |b| predecessors(cfg, b)))
    }

    /// What lies on every way to the exit. Blocks from which it cannot be reached, as in an endless
    /// loop, are outside of the tree.
    pub fn postdominators(cfg: &Cfg) -> DominatorTree {
        DominatorTree(Dominators::new(cfg.len(), cfg.exit().index(), |b| predecessors(cfg, b), |b| successors(cfg, b)))
    }

    /// The closest block that dominates this one, itself excepted; `None` for the root and for
    /// blocks outside of the tree.
    pub fn immediate(&self, block: BlockId) -> Option<BlockId> {
        self.0.immediate(block.index()).map(BlockId::new)
    }

    /// Whether `above` dominates `below`; every block in the tree dominates itself, and a block
    /// outside of it neither dominates nor is dominated.
    pub fn dominates(&self, above: BlockId, below: BlockId) -> bool {
        self.0.dominates(above.index(), below.index())
    }

    /// Whether a block is in the tree.
    pub fn contains(&self, block: BlockId) -> bool {
        self.0.contains(block.index())
    }

    /// The closest block that dominates both.
    pub fn common(&self, first: BlockId, second: BlockId) -> Option<BlockId> {
        self.path(first).find(|&above| self.dominates(above, second))
    }

    /// A block and its dominators, up to the root; nothing for one outside of the tree.
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
