//! Dominators and postdominators.
//!
//! Found by semidominators and nearest common ancestors (the Semi-NCA algorithm of Georgiadis and Tarjan). The simpler iterative algorithm that graph
//! libraries have takes half a minute for a hundred thousand loops in each other, and modules come from anybody.

use super::cfg::{BlockId, Cfg};

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
        let forward = |block: BlockId| cfg.block(block).successors.iter().map(|edge| edge.to).collect();
        let backward = |block: BlockId| cfg.block(block).predecessors.clone();
        Self::new(cfg.len(), cfg.entry(), forward, backward)
    }

    /// What lies on every way to the exit. Blocks from which it cannot be reached, as in an endless loop, are outside of the tree.
    pub fn postdominators(cfg: &Cfg) -> DominatorTree {
        let forward = |block: BlockId| cfg.block(block).successors.iter().map(|edge| edge.to).collect();
        let backward = |block: BlockId| cfg.block(block).predecessors.clone();
        Self::new(cfg.len(), cfg.exit(), backward, forward)
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

    fn new(
        blocks: usize,
        root: BlockId,
        next: impl Fn(BlockId) -> Vec<BlockId>,
        previous: impl Fn(BlockId) -> Vec<BlockId>,
    ) -> DominatorTree {
        let immediate = Search::from(blocks, root, next).immediate_dominators(blocks, previous);
        let times = times(root, &immediate);
        DominatorTree { immediate, times }
    }
}

/// A depth-first search: from here on a block is its number in it.
struct Search {
    /// The block of each number.
    order: Vec<BlockId>,
    /// The number of each block that was reached.
    number: Vec<Option<usize>>,
    /// Where the search came from; the root comes from itself.
    parent: Vec<usize>,
}

impl Search {
    fn from(blocks: usize, root: BlockId, next: impl Fn(BlockId) -> Vec<BlockId>) -> Search {
        let mut search = Search { order: Vec::new(), number: vec![None; blocks], parent: Vec::new() };
        let mut stack = vec![(root, 0)];
        while let Some((block, parent)) = stack.pop() {
            if search.number[block.index()].is_some() {
                continue;
            }
            let number = search.order.len();
            search.number[block.index()] = Some(number);
            search.order.push(block);
            search.parent.push(parent);
            stack.extend(next(block).into_iter().map(|to| (to, number)));
        }
        search
    }

    fn immediate_dominators(self, blocks: usize, previous: impl Fn(BlockId) -> Vec<BlockId>) -> Vec<Option<BlockId>> {
        let count = self.order.len();
        let mut forest = Forest { above: self.parent.clone(), label: (0..count).collect(), semi: (0..count).collect(), path: Vec::new() };
        for number in (1..count).rev() {
            let before = previous(self.order[number]).into_iter().filter_map(|block| self.number[block.index()]);
            let least = before.map(|from| forest.least_semidominator(from, number + 1)).min();
            forest.semi[number] = least.unwrap_or(number).min(self.parent[number]);
        }
        // The immediate dominator is the nearest common ancestor of the semidominator and the parent.
        let mut dominator = self.parent;
        for number in 1..count {
            let mut candidate = dominator[number];
            while candidate > forest.semi[number] {
                candidate = dominator[candidate];
            }
            dominator[number] = candidate;
        }
        let mut immediate = vec![None; blocks];
        for number in 1..count {
            immediate[self.order[number].index()] = Some(self.order[dominator[number]]);
        }
        immediate
    }
}

/// The vertices whose semidominators are known, as trees with compressed paths.
struct Forest {
    above: Vec<usize>,
    /// The vertex of least semidominator on the compressed path above each.
    label: Vec<usize>,
    semi: Vec<usize>,
    /// Scratch.
    path: Vec<usize>,
}

impl Forest {
    /// The least semidominator of a vertex and those above it, as far as they are in the forest: from number `linked` on.
    fn least_semidominator(&mut self, vertex: usize, linked: usize) -> usize {
        let mut top = vertex;
        while self.above[top] >= linked {
            self.path.push(top);
            top = self.above[top];
        }
        let root = self.above[top];
        let mut best = self.label[top];
        while let Some(below) = self.path.pop() {
            self.above[below] = root;
            if self.semi[best] < self.semi[self.label[below]] {
                self.label[below] = best;
            }
            best = self.label[below];
        }
        self.semi[self.label[vertex]]
    }
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
