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
mod walk;

use self::solver::Solver;
use crate::graph::Graph;
use crate::limits::{Budget, TooLarge};
use crate::loops::{LoopId, Loops};
use crate::program::*;
use crate::shape::{BlockShape, Shape};
use crate::spins::{Extension, Spinning};
use crate::webs::Phi;
use std::collections::{BTreeSet, HashMap};

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
    /// The loops of `flow`.
    pub loops: Loops,
    /// The outermost loop entered at a block, among the loops that lanes leave in different
    /// iterations.
    pub divergent_loops: HashMap<BlockId, LoopId>,
    /// Warps may reach different barriers, or spin. Each then needs its own stack, and they take
    /// turns.
    pub scheduled: bool,
    /// Heads of loops in which lanes wait for writes of other threads.
    pub spins: BTreeSet<BlockId>,
}

/// Analyses a kernel for a block shape.
///
/// # Errors
/// Returns [`TooLarge`] if the kernel exceeds a limit of the analyses.
pub(crate) fn analyse(
    program: &Program,
    phis: &[Phi],
    block: BlockShape,
    budget: &mut Budget,
) -> Result<Analysis, TooLarge> {
    let plain_exits: Vec<Option<BlockId>> = program.blocks.iter().map(|b| plain_exit_side(&b.term)).collect();
    let spinning = Spinning::of(program, budget)?;
    let leads_to_barrier = leading_to_barriers(program);
    let several = block.warps() > 1;
    let mut scheduled = several && (!spinning.is_empty() || only_arrives_somewhere(program));
    let mut exit_side = plain_exits.clone();
    let mut extensions: Vec<(BlockId, Extension)> = Vec::new();
    loop {
        let mut solver = Solver::new(program, phis, block, exit_side, &extensions, budget)?;
        solver.solve()?;
        let found = solver.spins_to_extend(&spinning, &extensions)?;
        if !found.is_empty() {
            extensions.extend(found);
            exit_side = solver.analysis.exit_side;
            continue;
        }
        scheduled |= several && solver.reduces_in_groups();
        let divergent = if scheduled { Vec::new() } else { solver.divergent_barriers(&leads_to_barrier)? };
        if divergent.is_empty() {
            let spins = spinning.entries().collect();
            return Ok(Analysis { scheduled, spins, ..solver.finish() });
        }
        exit_side = solver.analysis.exit_side;
        // A branch without an exiting side may no longer reach a barrier once others have one.
        let mut found_sides = false;
        for branch in divergent {
            if let Some(side) = exiting_side(&program.blocks[branch].term, &leads_to_barrier) {
                exit_side[branch] = Some(side);
                found_sides = true;
            }
        }
        if !found_sides {
            scheduled = true;
            exit_side.clone_from(&plain_exits);
        }
    }
}

/// For each block, whether a barrier can be reached from it.
fn leading_to_barriers(program: &Program) -> Vec<bool> {
    let graph = Graph::new(program.successors());
    let mut leads = vec![false; graph.len()];
    for (id, block) in program.blocks.iter().enumerate() {
        if matches!(block.term, Term::Barrier { .. }) {
            mark_leading_to(&graph, id, &mut leads);
        }
    }
    leads
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
fn exiting_side(term: &Term, leads_to_barrier: &[bool]) -> Option<BlockId> {
    let Term::Branch { taken, other, .. } = *term else { return None };
    match (leads_to_barrier[taken], leads_to_barrier[other]) {
        (false, true) => Some(taken),
        (true, false) => Some(other),
        _ => None,
    }
}

impl Analysis {
    /// Blocks between a branch and its reconvergence point.
    pub fn influence(&self, branch: BlockId) -> Vec<BlockId> {
        let reached = self.flow.reachable(&self.flow.succs[branch], Some(self.reconvergence[branch]));
        (0..reached.len()).filter(|&b| reached[b] && b != EXIT).collect()
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
