//! Natural loops.

use super::cfg::{BlockId, Cfg};
use super::dominators::DominatorTree;
use super::entity::entity;
use std::ops::Range;

entity! {
    /// A natural loop. The loops nested in a loop have the ids that follow its own.
    LoopId
}

/// A natural loop: all back edges to one header, and the blocks that reach them without passing the
/// header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The only entry block of the loop.
    pub header: BlockId,
    /// The blocks with an edge back to the header.
    pub latches: Vec<BlockId>,
    /// The innermost loop around it.
    pub parent: Option<LoopId>,
    /// 1 for an outermost loop.
    pub depth: u32,
    /// One past the last loop nested in this one.
    end: LoopId,
    /// Its blocks, as a range of [`Loops::blocks`].
    blocks: Range<usize>,
}

/// The loops of a function; outer loops precede inner ones.
#[derive(Clone, Debug)]
pub struct Loops {
    loops: Vec<Loop>,
    /// The blocks that are in loops, sorted by innermost loop, so that a loop and its inner loops
    /// form one range.
    blocks: Vec<BlockId>,
    innermost: Vec<Option<LoopId>>,
    irreducible: Vec<(BlockId, BlockId)>,
}

impl Loops {
    /// Finds the natural loops of a graph.
    pub fn of(cfg: &Cfg, dominators: &DominatorTree) -> Loops {
        let mut finder = Finder { cfg, dominators, found: Vec::new(), innermost: vec![None; cfg.len()] };
        let irreducible = finder.find();
        finder.number(irreducible)
    }

    /// Every loop; an outer loop precedes its inner loops.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LoopId, &Loop)> {
        self.loops.iter().enumerate().map(|(index, l)| (LoopId::new(index), l))
    }

    /// A loop.
    pub fn get(&self, id: LoopId) -> &Loop {
        &self.loops[id.index()]
    }

    /// The blocks of a loop, including those of inner loops; its own blocks are first.
    pub fn blocks(&self, id: LoopId) -> &[BlockId] {
        &self.blocks[self.get(id).blocks.clone()]
    }

    /// Whether a block belongs to a loop or to one inside it.
    pub fn contains(&self, id: LoopId, block: BlockId) -> bool {
        self.innermost(block).is_some_and(|inner| id <= inner && inner < self.get(id).end)
    }

    /// The edges that leave a loop, as `(from, to)`.
    pub fn exits<'a>(&'a self, id: LoopId, cfg: &'a Cfg) -> impl Iterator<Item = (BlockId, BlockId)> + 'a {
        let edges = self
            .blocks(id)
            .iter()
            .flat_map(move |&from| cfg.block(from).successors.iter().map(move |edge| (from, edge.to)));
        edges.filter(move |&(_, to)| !self.contains(id, to))
    }

    /// The innermost loop that contains a block.
    pub fn innermost(&self, block: BlockId) -> Option<LoopId> {
        self.innermost[block.index()]
    }

    /// The number of loops that contain a block.
    pub fn depth(&self, block: BlockId) -> u32 {
        self.innermost(block).map_or(0, |id| self.get(id).depth)
    }

    /// Whether every cycle is a natural loop.
    pub fn is_reducible(&self) -> bool {
        self.irreducible.is_empty()
    }

    /// Edges that close a cycle with more than one entry, as `(from, to)`.
    pub fn irreducible_edges(&self) -> &[(BlockId, BlockId)] {
        &self.irreducible
    }
}

/// A loop during the search, identified by its index in [`Finder::found`].
struct Found {
    header: BlockId,
    latches: Vec<BlockId>,
    parent: Option<usize>,
    /// The outermost loop found so far that contains this one, or a link towards it (union-find).
    outermost: usize,
}

/// Finds inner loops first, so that an outer loop treats each inner loop as a single block; the
/// total time is about linear in the number of edges.
struct Finder<'a> {
    cfg: &'a Cfg,
    dominators: &'a DominatorTree,
    found: Vec<Found>,
    innermost: Vec<Option<usize>>,
}

impl Finder<'_> {
    /// Finds all loops. Returns the edges that close irreducible cycles.
    fn find(&mut self) -> Vec<(BlockId, BlockId)> {
        let order = self.cfg.reverse_postorder();
        let mut position = vec![usize::MAX; self.cfg.len()];
        order.iter().enumerate().for_each(|(index, block)| position[block.index()] = index);
        let mut irreducible = Vec::new();
        // The header of an outer loop dominates its inner loops, so it precedes them in reverse
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
                self.add_loop(header, latches);
            }
        }
        irreducible
    }

    /// Adds a loop: assigns it every block that reaches a latch without passing the header, unless
    /// an inner loop already has the block.
    fn add_loop(&mut self, header: BlockId, latches: Vec<BlockId>) {
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

    /// Numbers the loops in preorder of the nesting, and sorts the blocks by innermost loop.
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

/// Sets `end` and `blocks` of every loop, inner loops first.
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
