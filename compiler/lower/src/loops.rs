//! Loops of control flow, with several entries or one: strongly connected components, and those
//! inside them after the edges to their entries are cut.
//!
//! The blocks are stored once, in an order in which each loop is a range, and its inner loops are
//! ranges inside that range. Loops that are nested in each other therefore take linear space.

use crate::graph::{Graph, Tarjan};
use crate::limits::{Budget, TooLarge};
use crate::program::{BlockId, ENTRY};
use std::ops::Range;

/// Index of a loop in [`Loops`].
pub type LoopId = usize;

/// A strongly connected component of the control flow.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Blocks that are entered from outside the loop; a loop of a structured language has exactly
    /// one.
    pub entries: Vec<BlockId>,
    /// The innermost loop around it.
    pub parent: Option<LoopId>,
    /// Its blocks, as a range of [`Loops::order`].
    range: Range<usize>,
}

/// The loops of a graph; outer loops have lower ids than the loops they contain.
#[derive(Clone, Debug)]
pub struct Loops {
    loops: Vec<Loop>,
    /// All blocks; those of a loop are contiguous.
    order: Vec<BlockId>,
    /// The position of each block in `order`.
    position: Vec<usize>,
    innermost: Vec<Option<LoopId>>,
}

impl Loops {
    /// Finds all loops. The time is proportional to the number of blocks, summed over all loops.
    ///
    /// # Errors
    /// Returns [`TooLarge`] if that is more than the budget.
    pub(crate) fn of(flow: &Graph, budget: &mut Budget) -> Result<Loops, TooLarge> {
        let mut finder = Finder::new(flow);
        while let Some((range, around)) = finder.work.pop() {
            budget.spend(range.len())?;
            finder.search(range, around);
        }
        let Finder { loops, order, .. } = finder;
        let (mut position, mut innermost) = (vec![0; order.len()], vec![None; order.len()]);
        order.iter().enumerate().for_each(|(at, &block)| position[block] = at);
        // Inner loops come later and overwrite the loops around them.
        for (id, found) in loops.iter().enumerate() {
            order[found.range.clone()].iter().for_each(|&block| innermost[block] = Some(id));
        }
        Ok(Loops { loops, order, position, innermost })
    }

    /// The number of loops.
    pub fn len(&self) -> usize {
        self.loops.len()
    }

    /// Whether there are no loops.
    pub fn is_empty(&self) -> bool {
        self.loops.is_empty()
    }

    /// All loops, outer loops before the loops they contain.
    pub fn iter(&self) -> impl Iterator<Item = (LoopId, &Loop)> {
        self.loops.iter().enumerate()
    }

    /// A loop.
    pub fn get(&self, id: LoopId) -> &Loop {
        &self.loops[id]
    }

    /// The blocks of a loop, those of inner loops included.
    pub fn blocks(&self, id: LoopId) -> &[BlockId] {
        &self.order[self.loops[id].range.clone()]
    }

    /// Whether a loop contains a block.
    pub fn contains(&self, id: LoopId, block: BlockId) -> bool {
        self.loops[id].range.contains(&self.position[block])
    }

    /// The innermost loop that contains a block.
    pub fn innermost(&self, block: BlockId) -> Option<LoopId> {
        self.innermost[block]
    }

    /// The smallest range of positions that contains a block and an earlier range.
    pub(crate) fn span(&self, so_far: &Range<usize>, block: BlockId) -> Range<usize> {
        let at = self.position[block];
        if so_far.is_empty() { at..at + 1 } else { so_far.start.min(at)..so_far.end.max(at + 1) }
    }

    /// Whether a loop contains all blocks of a span.
    pub(crate) fn covers(&self, id: LoopId, span: &Range<usize>) -> bool {
        let own = &self.loops[id].range;
        span.is_empty() || (own.start <= span.start && span.end <= own.end)
    }

    /// A loop and the loops around it, innermost first.
    pub(crate) fn outwards(&self, from: Option<LoopId>) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(from, |&id| self.loops[id].parent)
    }
}

struct Finder<'a> {
    flow: &'a Graph,
    state: Tarjan,
    loops: Vec<Loop>,
    order: Vec<BlockId>,
    /// Ranges of `order` to search, and the loop that each range is.
    work: Vec<(Range<usize>, Option<LoopId>)>,
    /// Entries of all loops found so far. Entries of loops elsewhere cut no edge of a search,
    /// because such an edge leads out of the blocks that are searched.
    is_entry: Vec<bool>,
    /// The last loop found that contains each block, plus 1.
    last: Vec<LoopId>,
}

impl Finder<'_> {
    fn new(flow: &Graph) -> Finder<'_> {
        let count = flow.len();
        Finder {
            flow,
            state: Tarjan::of(count),
            loops: Vec::new(),
            order: (0..count).collect(),
            work: vec![(0..count, None)],
            is_entry: vec![false; count],
            last: vec![0; count],
        }
    }

    /// Orders a range of blocks by component, and adds the components that are loops.
    fn search(&mut self, range: Range<usize>, around: Option<LoopId>) {
        let nodes = self.order[range.clone()].to_vec();
        let mut end = range.start;
        for component in self.flow.components_again(&mut self.state, &nodes, |_, to| self.is_entry[to]) {
            let own = end..end + component.len();
            end = own.end;
            self.order[own.clone()].copy_from_slice(&component);
            let is_loop = component.len() > 1 || self.flow.succs[component[0]].contains(&component[0]);
            if is_loop && !component.iter().all(|b| self.is_entry[*b]) {
                self.add(own, around);
            }
        }
    }

    fn add(&mut self, range: Range<usize>, parent: Option<LoopId>) {
        let blocks = &self.order[range.clone()];
        let id = self.loops.len();
        blocks.iter().for_each(|b| self.last[*b] = id + 1);
        let entered = |b: &BlockId| *b == ENTRY || self.flow.preds[*b].iter().any(|p| self.last[*p] != id + 1);
        let mut entries: Vec<BlockId> = blocks.iter().copied().filter(entered).collect();
        if entries.is_empty() {
            entries.push(blocks[0]);
        }
        entries.iter().for_each(|b| self.is_entry[*b] = true);
        self.work.push((range.clone(), Some(id)));
        self.loops.push(Loop { entries, parent, range });
    }
}
