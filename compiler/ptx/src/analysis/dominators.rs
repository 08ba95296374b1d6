//! Dominators and postdominators.

use super::cfg::{BlockId, Cfg};
use petgraph::algo::dominators::{Dominators, simple_fast};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Reversed;

/// Which block lies on every way from the entry to another (dominators), or from another to the exit (postdominators).
#[derive(Clone, Debug)]
pub struct DominatorTree {
    immediate: Vec<Option<BlockId>>,
    /// Entry and exit times of a walk over the tree: a block dominates those whose times lie within its own. Empty for blocks outside the tree.
    times: Vec<Option<(u32, u32)>>,
}

impl DominatorTree {
    /// What lies on every way from the entry. Blocks the entry does not lead to are outside of the tree.
    pub fn dominators(cfg: &Cfg) -> DominatorTree {
        let graph = graph(cfg);
        Self::new(cfg, cfg.entry(), &simple_fast(&graph, node(cfg.entry())))
    }

    /// What lies on every way to the exit. Blocks from which it cannot be reached, as in an endless loop, are outside of the tree.
    pub fn postdominators(cfg: &Cfg) -> DominatorTree {
        let graph = graph(cfg);
        Self::new(cfg, cfg.exit(), &simple_fast(Reversed(&graph), node(cfg.exit())))
    }

    /// The closest block that dominates this one, itself excepted; `None` for the root and for blocks outside of the tree.
    pub fn immediate(&self, block: BlockId) -> Option<BlockId> {
        self.immediate[block.index()]
    }

    /// Whether `above` dominates `below`; every block in the tree dominates itself, and a block outside of it neither dominates nor is dominated.
    pub fn dominates(&self, above: BlockId, below: BlockId) -> bool {
        match (self.times[above.index()], self.times[below.index()]) {
            (Some((first, last)), Some((time, _))) => (first..=last).contains(&time),
            _ => false,
        }
    }

    /// Whether a block is in the tree.
    pub fn contains(&self, block: BlockId) -> bool {
        self.times[block.index()].is_some()
    }

    /// The closest block that dominates both.
    pub fn common(&self, first: BlockId, second: BlockId) -> Option<BlockId> {
        self.path(first).find(|&above| self.dominates(above, second))
    }

    /// A block and its dominators, up to the root; nothing for one outside of the tree.
    pub fn path(&self, block: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        std::iter::successors(self.contains(block).then_some(block), |&b| self.immediate(b))
    }

    fn new(cfg: &Cfg, root: BlockId, found: &Dominators<NodeIndex>) -> DominatorTree {
        let above = |index: usize| found.immediate_dominator(NodeIndex::new(index)).map(|n| BlockId::new(n.index()));
        let immediate: Vec<Option<BlockId>> = (0..cfg.len()).map(above).collect();
        let times = times(root, &immediate);
        DominatorTree { immediate, times }
    }
}

fn node(block: BlockId) -> NodeIndex {
    NodeIndex::new(block.index())
}

fn graph(cfg: &Cfg) -> DiGraph<(), ()> {
    let mut graph = DiGraph::with_capacity(cfg.len(), cfg.len() * 2);
    for _ in 0..cfg.len() {
        graph.add_node(());
    }
    for (from, block) in cfg.blocks() {
        for edge in &block.successors {
            graph.add_edge(node(from), node(edge.to), ());
        }
    }
    graph
}

/// Numbers the tree so that the subtree of a block is a range.
fn times(root: BlockId, immediate: &[Option<BlockId>]) -> Vec<Option<(u32, u32)>> {
    let mut children = vec![Vec::new(); immediate.len()];
    for (index, above) in immediate.iter().enumerate() {
        if let Some(above) = above {
            children[above.index()].push(BlockId::new(index));
        }
    }
    let mut times = vec![None; immediate.len()];
    let mut time = 0;
    let mut stack = vec![(root, 0, 0)];
    while let Some((block, child, start)) = stack.pop() {
        if child == 0 {
            time += 1;
        }
        let start = if child == 0 { time } else { start };
        match children[block.index()].get(child) {
            Some(&next) => {
                stack.push((block, child + 1, start));
                stack.push((next, 0, 0));
            }
            None => times[block.index()] = Some((start, time)),
        }
    }
    times
}
