//! Divergence analysis: which branches split a warp or a block, how that affects registers, and
//! where lanes reconverge.
//!
//! Vocabulary. A branch is *divergent* if lanes of one warp can disagree, *warp-uniform* if only
//! different warps can, and *uniform* otherwise. Its *influence* is the set of blocks between it
//! and its reconvergence point, the immediate post-dominator. An *exit edge* leads lanes out of the
//! kernel. These lanes never come back, and no other lane waits for them, so post-dominators are
//! computed without exit edges.
//!
//! The analysis is an optimistic fixpoint: shapes start unknown, and instructions propagate them.
//! If a branch turns out to be divergent, the registers whose values join below it become vectors
//! that are *blended* under the mask (see [`Analysis::blend`]).

mod solver;

use self::solver::Solver;
use crate::graph::{Graph, Tarjan};
use crate::live::{Live, TooLarge};
use crate::program::*;
use crate::shape::{BlockShape, Shape};
use crate::spins::{self, Extension};
use crate::webs::Phi;
use std::collections::BTreeSet;

/// How far a branch splits the threads of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Split {
    /// All threads of the block go the same way.
    Uniform,
    /// All lanes of a warp go the same way.
    PerWarp,
    /// Lanes of a warp may diverge.
    Divergent,
}

/// A strongly connected component of the control flow. Its inner loops are listed separately.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Its blocks, those of inner loops included.
    pub blocks: Vec<BlockId>,
    /// Blocks that are entered from outside the loop; a loop of a structured language has exactly
    /// one.
    pub entries: Vec<BlockId>,
    /// Lanes may leave it in different iterations.
    pub is_divergent: bool,
    /// The same blocks, sorted by id.
    sorted: Vec<BlockId>,
}

/// What is known about a kernel's control flow and registers.
#[derive(Debug)]
pub struct Analysis {
    /// The block shape it is compiled for.
    pub block: BlockShape,
    /// Shape of each register.
    pub shapes: Vec<Shape>,
    /// How each block's branch splits threads.
    pub split: Vec<Split>,
    /// Registers whose definitions must keep the values of lanes that are not active.
    pub blend: Vec<bool>,
    /// Reconvergence point of each block.
    pub reconvergence: Vec<BlockId>,
    /// For a divergent branch with a side whose lanes leave the kernel: the first block of that
    /// side.
    pub exit_side: Vec<Option<BlockId>>,
    /// Control flow without exit edges.
    pub flow: Graph,
    /// The loops of `flow`, outer loops before the loops they contain.
    pub loops: Vec<Loop>,
    /// Warps may reach different barriers, or spin. Each then needs its own stack, and they take
    /// turns.
    pub scheduled: bool,
    /// Heads of loops in which lanes wait for writes of other threads.
    pub spins: BTreeSet<BlockId>,
}

/// Analyses a kernel for a block shape.
///
/// # Errors
/// Returns [`TooLarge`] if the kernel is too large for the liveness analysis.
pub(crate) fn analyse(program: &Program, phis: &[Phi], block: BlockShape) -> Result<Analysis, TooLarge> {
    let plain_exits: Vec<Option<BlockId>> = program.blocks.iter().map(|b| plain_exit_side(&b.term)).collect();
    let spinning = spinning_loops(program);
    let several = block.warps() > 1;
    let mut scheduled = several && (!spinning.is_empty() || only_arrives_somewhere(program));
    let mut exit_side = plain_exits.clone();
    let mut extensions: Vec<(BlockId, Extension)> = Vec::new();
    loop {
        let mut solver = Solver::new(program, phis, block, exit_side, &extensions)?;
        solver.solve();
        if let Some(found) = solver.spin_to_extend(&spinning, &extensions) {
            extensions.push(found);
            exit_side = solver.analysis.exit_side;
            continue;
        }
        scheduled |= several && solver.reduces_in_groups();
        match solver.find_divergent_barrier().filter(|_| !scheduled) {
            None => {
                let spins = spinning.into_iter().flat_map(|l| l.entries).collect();
                return Ok(Analysis { scheduled, spins, ..solver.finish() });
            }
            Some(branch) => match exiting_side(program, branch) {
                Some(side) => {
                    exit_side = solver.analysis.exit_side;
                    exit_side[branch] = Some(side);
                }
                None => {
                    scheduled = true;
                    exit_side = plain_exits.clone();
                }
            },
        }
    }
}

/// Loops in which lanes wait for writes of other threads.
pub(crate) fn spinning_loops(program: &Program) -> Vec<Loop> {
    let mut loops = find_loops(&Graph::new(program.successors()));
    loops.retain(|l| spins::spins(program, &l.view()));
    loops
}

/// Whether some threads arrive at a barrier without waiting at it (`bar.arrive`).
fn only_arrives_somewhere(program: &Program) -> bool {
    program.blocks.iter().any(|b| matches!(&b.term, Term::Barrier { participants, .. } if participants.only_arrives))
}

/// `EXIT` if one side of a branch is the exit itself.
fn plain_exit_side(term: &Term) -> Option<BlockId> {
    match term {
        Term::Branch { taken, other, .. } if *taken == EXIT || *other == EXIT => Some(EXIT),
        _ => None,
    }
}

/// The side of a branch from which no barrier can be reached, if there is exactly one. Its lanes
/// can run to their end at once.
fn exiting_side(program: &Program, branch: BlockId) -> Option<BlockId> {
    let Term::Branch { taken, other, .. } = program.blocks[branch].term else { return None };
    let graph = Graph::new(program.successors());
    let meets_barrier = |from: BlockId| {
        let reached = graph.reachable(&[from], None);
        program.blocks.iter().zip(reached).any(|(b, r)| r && matches!(b.term, Term::Barrier { .. }))
    };
    match (meets_barrier(taken), meets_barrier(other)) {
        (false, true) => Some(taken),
        (true, false) => Some(other),
        _ => None,
    }
}

/// Whether the terminator of a block may leave a loop.
fn leaves(term: &Term, inside: &Loop) -> bool {
    term.successors().iter().any(|s| !inside.has(*s))
}

impl Loop {
    /// Whether the loop contains a block.
    pub fn has(&self, block: BlockId) -> bool {
        self.sorted.binary_search(&block).is_ok()
    }

    fn view(&self) -> spins::Loop<'_> {
        spins::Loop { blocks: &self.blocks, sorted: &self.sorted, entries: &self.entries }
    }
}

impl Analysis {
    /// Blocks between a branch and its reconvergence point.
    pub fn influence(&self, branch: BlockId) -> Vec<BlockId> {
        let reached = self.flow.reachable(&self.flow.succs[branch], Some(self.reconvergence[branch]));
        (0..reached.len()).filter(|&b| reached[b] && b != EXIT).collect()
    }

    /// The outermost divergent loop that has a block as entry.
    pub fn divergent_loop_at(&self, block: BlockId) -> Option<&Loop> {
        self.loops.iter().find(|l| l.is_divergent && l.entries.contains(&block))
    }
}

/// Immediate post-dominators. A loop from which the exit cannot be reached gets an edge to it: at
/// the block of its exit edge, if it has one.
pub(crate) fn reconvergence(flow: &Graph, exit_side: &[Option<BlockId>]) -> Vec<BlockId> {
    let mut closed = flow.clone();
    let mut ends = vec![false; flow.len()];
    mark_leading_to(flow, EXIT, &mut ends);
    // A block that gains a way to the exit provides one for all its predecessors, so each block is
    // examined once.
    let last_to_first = || (0..flow.len()).rev();
    for block in last_to_first().filter(|&b| exit_side[b].is_some()).chain(last_to_first()) {
        if !ends[block] {
            closed.succs[block].push(EXIT);
            closed.preds[EXIT].push(block);
            mark_leading_to(flow, block, &mut ends);
        }
    }
    let postdominators = closed.postdominators(EXIT);
    (0..flow.len()).map(|block| postdominators.immediate(block).unwrap_or(EXIT)).collect()
}

/// Marks a block, and all blocks from which it can be reached.
fn mark_leading_to(flow: &Graph, block: BlockId, marks: &mut [bool]) {
    let mut work = vec![block];
    while let Some(block) = work.pop() {
        if !std::mem::replace(&mut marks[block], true) {
            work.extend(&flow.preds[block]);
        }
    }
}

/// All loops, outer loops before inner ones.
pub(crate) fn find_loops(flow: &Graph) -> Vec<Loop> {
    let mut loops = Vec::new();
    let all: Vec<BlockId> = (0..flow.len()).collect();
    let (mut work, mut state) = (vec![all], Tarjan::of(flow.len()));
    // Entries of all loops found so far. Entries of loops elsewhere cut no edge here, because such
    // an edge would lead out of the nodes under examination.
    let mut is_entry = vec![false; flow.len()];
    // The number of the component that each block was last part of.
    let (mut last, mut count) = (vec![0_u32; flow.len()], 0);
    while let Some(nodes) = work.pop() {
        for component in flow.components_again(&mut state, &nodes, |_, to| is_entry[to]) {
            let is_loop = component.len() > 1 || flow.succs[component[0]].contains(&component[0]);
            if !is_loop || component.iter().all(|b| is_entry[*b]) {
                continue;
            }
            count += 1;
            component.iter().for_each(|b| last[*b] = count);
            let entered = |b: &BlockId| *b == ENTRY || flow.preds[*b].iter().any(|p| last[*p] != count);
            let mut entries: Vec<BlockId> = component.iter().copied().filter(entered).collect();
            if entries.is_empty() {
                entries.push(component[0]);
            }
            entries.iter().for_each(|b| is_entry[*b] = true);
            work.push(component.clone());
            let mut sorted = component.clone();
            sorted.sort_unstable();
            loops.push(Loop { blocks: component, entries, is_divergent: false, sorted });
        }
    }
    loops
}
