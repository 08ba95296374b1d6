//! Natural loops.

use super::cfg::{BlockId, Cfg};
use super::dominators::DominatorTree;
use super::entity::entity;
use std::ops::Range;

entity! {
    /// A natural loop. The loops inside a loop have the ids right behind its own.
    LoopId
}

/// A natural loop: all back edges to one header, and the blocks from which they can be reached
/// without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The only block through which the loop is entered.
    pub header: BlockId,
    /// The blocks that jump back to the header.
    pub latches: Vec<BlockId>,
    /// The innermost loop around it.
    pub parent: Option<LoopId>,
    /// 1 for an outermost loop.
    pub depth: u32,
    /// One past the last loop inside this one.
    end: LoopId,
    /// Its blocks, as a range of [`Loops::blocks`].
    blocks: Range<usize>,
}

/// The loops of a function, outer before inner.
#[derive(Clone, Debug)]
pub struct Loops {
    loops: Vec<Loop>,
    /// The blocks in loops, by innermost loop: those of a loop and the ones in it lie together.
    blocks: Vec<BlockId>,
    innermost: Vec<Option<LoopId>>,
    irreducible: Vec<(BlockId, BlockId)>,
}

impl Loops {
    /// Finds the loops of a graph by its dominators.
    pub fn of(cfg: &Cfg, dominators: &DominatorTree) -> Loops {
        let mut finder = Finder { cfg, dominators, found: Vec::new(), innermost: vec![None; cfg.len()] };
        let irreducible = finder.find();
        finder.number(irreducible)
    }

    /// Every loop; an outer one comes before those in it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LoopId, &Loop)> {
        self.loops.iter().enumerate().map(|(index, l)| (LoopId::new(index), l))
    }

    /// A loop.
    pub fn get(&self, id: LoopId) -> &Loop {
        &self.loops[id.index()]
    }

    /// The blocks of a loop, those of inner loops included; its own come first.
    pub fn blocks(&self, id: LoopId) -> &[BlockId] {
        &self.blocks[self.get(id).blocks.clone()]
    }

    /// Whether a block belongs to a loop or to one inside it.
    pub fn contains(&self, id: LoopId, block: BlockId) -> bool {
        self.innermost(block).is_some_and(|inner| id <= inner && inner < self.get(id).end)
    }

    /// The edges that leave a loop, as pairs of blocks.
    pub fn exits<'a>(&'a self, id: LoopId, cfg: &'a Cfg) -> impl Iterator<Item = (BlockId, BlockId)> + 'a {
        let edges = self
            .blocks(id)
            .iter()
            .flat_map(move |&from| cfg.block(from).successors.iter().map(move |edge| (from, edge.to)));
        edges.filter(move |&(_, to)| !self.contains(id, to))
    }

    /// The innermost loop around a block.
    pub fn innermost(&self, block: BlockId) -> Option<LoopId> {
        self.innermost[block.index()]
    }

    /// How many loops are around a block.
    pub fn depth(&self, block: BlockId) -> u32 {
        self.innermost(block).map_or(0, |id| self.get(id).depth)
    }

    /// Whether every cycle is a natural loop.
    pub fn is_reducible(&self) -> bool {
        self.irreducible.is_empty()
    }

    /// Edges that close a cycle which can be entered in more than one place, each as `(from, to)`.
    pub fn irreducible_edges(&self) -> &[(BlockId, BlockId)] {
        &self.irreducible
    }
}

/// A loop while they are searched, by its place in [`Finder::found`].
struct Found {
    header: BlockId,
    latches: Vec<BlockId>,
    parent: Option<usize>,
    /// The outermost loop around it so far, or one on the way there.
    outermost: usize,
}

/// Inner loops are found first, so that a loop steps over those inside it as over single blocks,
/// and the whole is about linear in the edges.
struct Finder<'a> {
    cfg: &'a Cfg,
    dominators: &'a DominatorTree,
    found: Vec<Found>,
    innermost: Vec<Option<usize>>,
}

impl Finder<'_> {
    /// Finds all loops; gives the edges that close other cycles.
    fn find(&mut self) -> Vec<(BlockId, BlockId)> {
        let order = self.cfg.reverse_postorder();
        let mut position = vec![usize::MAX; self.cfg.len()];
        order.iter().enumerate().for_each(|(index, block)| position[block.index()] = index);
        let mut irreducible = Vec::new();
        // The header of an outer loop dominates those inside, so it stands before them in reverse
        // postorder.
        for &header in order.iter().rev() {
            let mut latches = Vec::new();
            for &from in self.cfg.block(header).predecessors.iter().filter(|p| self.dominators.contains(**p)) {
                if self.dominators.dominates(header, from) {
                    latches.push(from);
                } else if position[from.index()] >= position[header.index()] {
                    irreducible.push((from, header));
                }
            }
            latches.sort_unstable();
            latches.dedup();
            if !latches.is_empty() {
                self.claim(header, latches);
            }
        }
        irreducible
    }

    /// Gives the blocks that reach a latch without passing the header to a new loop, unless an
    /// inner loop has them.
    fn claim(&mut self, header: BlockId, latches: Vec<BlockId>) {
        let this = self.found.len();
        let mut stack = latches.clone();
        self.found.push(Found { header, latches, parent: None, outermost: this });
        self.innermost[header.index()] = Some(this);
        while let Some(block) = stack.pop() {
            let enter = match self.innermost[block.index()] {
                None => {
                    self.innermost[block.index()] = Some(this);
                    block
                }
                Some(inner) => {
                    let outermost = self.outermost(inner);
                    if outermost == this {
                        continue;
                    }
                    self.found[outermost].parent = Some(this);
                    self.found[outermost].outermost = this;
                    self.found[outermost].header
                }
            };
            stack.extend(self.cfg.block(enter).predecessors.iter().filter(|p| self.dominators.contains(**p)));
        }
    }

    fn outermost(&mut self, mut inner: usize) -> usize {
        while self.found[inner].outermost != inner {
            let next = self.found[inner].outermost;
            self.found[inner].outermost = self.found[next].outermost;
            inner = next;
        }
        inner
    }

    /// Numbers the loops so that those inside a loop follow it, and sorts the blocks by loop.
    fn number(self, irreducible: Vec<(BlockId, BlockId)>) -> Loops {
        let mut children = vec![Vec::new(); self.found.len()];
        let mut waiting = Vec::new();
        for (index, found) in self.found.iter().enumerate() {
            found.parent.map_or(&mut waiting, |parent| &mut children[parent]).push(index);
        }
        let mut id_of = vec![LoopId::new(0); self.found.len()];
        let mut loops: Vec<Loop> = Vec::with_capacity(self.found.len());
        while let Some(index) = waiting.pop() {
            let Found { header, latches, parent, .. } = &self.found[index];
            let id = LoopId::new(loops.len());
            id_of[index] = id;
            let parent = parent.map(|parent| id_of[parent]);
            let depth = parent.map_or(1, |parent| loops[parent.index()].depth + 1);
            loops.push(Loop { header: *header, latches: latches.clone(), parent, depth, end: id, blocks: 0..0 });
            waiting.append(&mut children[index]);
        }
        let innermost: Vec<Option<LoopId>> =
            self.innermost.iter().map(|found| found.map(|index| id_of[index])).collect();
        let mut blocks: Vec<BlockId> =
            self.cfg.blocks().map(|(id, _)| id).filter(|b| innermost[b.index()].is_some()).collect();
        blocks.sort_by_key(|block| innermost[block.index()]);
        set_ranges(&mut loops, &blocks, &innermost);
        Loops { loops, blocks, innermost, irreducible }
    }
}

/// Sets the end and the block range of every loop, inner ones first.
fn set_ranges(loops: &mut [Loop], blocks: &[BlockId], innermost: &[Option<LoopId>]) {
    for index in (0..loops.len()).rev() {
        let id = LoopId::new(index);
        let end = loops[index].end.max(LoopId::new(index + 1));
        let start = blocks.partition_point(|b| innermost[b.index()] < Some(id));
        loops[index].blocks = start..blocks.partition_point(|b| innermost[b.index()] < Some(end));
        loops[index].end = end;
        if let Some(parent) = loops[index].parent {
            let outer = &mut loops[parent.index()].end;
            *outer = (*outer).max(end);
        }
    }
}
