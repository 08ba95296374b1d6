//! Divergence analysis: which branches split a warp or a block, how that affects registers, and
//! where lanes reconverge.
//!
//! Vocabulary. A branch is *divergent* if lanes of one warp can disagree, *warp-uniform* if only
//! different warps can, and *uniform* otherwise. Its *influence* is the set of blocks between it
//! and its reconvergence point, the immediate post-dominator. An *exit edge* leads lanes out of the
//! kernel. These lanes never come back, no other lane has to wait for them, and the edge is left
//! out when post-dominators are computed.
//!
//! The analysis is an optimistic fixpoint: shapes start unknown and instructions propagate them. A
//! branch that turns out to be divergent turns the registers whose values join below it into
//! vectors that are *blended* under the mask (see [`Analysis::blend`]).

use crate::graph::{Graph, Tarjan};
use crate::live::{Live, TooLarge};
use crate::program::*;
use crate::shape::{BlockShape, Level, Operands, Shape};
use crate::spins::{self, Extension};
use crate::webs::Phi;
use std::collections::BTreeSet;

/// A range that still grows after this many updates becomes unknown.
const MAX_RANGE_STEPS: u8 = 3;

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
    /// Blocks entered from outside; exactly one for every loop of a structured language.
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
    /// Warps need a stack of their own and take turns: they may reach different barriers, or spin.
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

struct Solver<'a> {
    program: &'a Program,
    phis: &'a [Phi],
    analysis: Analysis,
    shapes: Vec<Option<Shape>>,
    /// The least split of each register that control flow forces.
    forced: Vec<Split>,
    /// Registers whose assumed progression was given up because they are used for more than
    /// addresses.
    demoted: Vec<bool>,
    range_steps: Vec<u8>,
    def_blocks: Vec<Vec<BlockId>>,
    use_blocks: Vec<Vec<BlockId>>,
    /// Registers live at the start of each block.
    live: Live,
}

impl<'a> Solver<'a> {
    fn new(
        program: &'a Program,
        phis: &'a [Phi],
        block: BlockShape,
        exit_side: Vec<Option<BlockId>>,
        extensions: &[(BlockId, Extension)],
    ) -> Result<Solver<'a>, TooLarge> {
        let count = program.regs.len();
        let mut succs: Vec<Vec<BlockId>> = (program.blocks.iter().zip(&exit_side))
            .map(|(b, exit)| b.term.successors().into_iter().filter(|s| Some(*s) != *exit).collect())
            .collect();
        for &(from, to) in extensions.iter().flat_map(|(_, e)| &e.edges) {
            if !succs[from].contains(&to) {
                succs[from].push(to);
            }
        }
        let flow = Graph::new(succs);
        let reconvergence = reconvergence(&flow, &exit_side);
        let loops = find_loops(&flow);
        let (mut def_blocks, mut use_blocks) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (id, block) in program.blocks.iter().enumerate() {
            for inst in &block.insts {
                inst.defs().into_iter().for_each(|r| def_blocks[r].push(id));
                inst.uses().into_iter().for_each(|r| use_blocks[r].push(id));
            }
            block.term.uses().into_iter().for_each(|r| use_blocks[r].push(id));
            block.term.def().into_iter().for_each(|r| def_blocks[r].push(id));
        }
        let live = Live::of(program, &flow)?;
        let analysis = Analysis {
            block,
            shapes: Vec::new(),
            split: vec![Split::Uniform; program.blocks.len()],
            blend: vec![false; count],
            reconvergence,
            exit_side,
            flow,
            loops,
            scheduled: false,
            spins: BTreeSet::new(),
        };
        Ok(Solver {
            program,
            phis,
            analysis,
            shapes: vec![None; count],
            forced: vec![Split::Uniform; count],
            demoted: vec![false; count],
            range_steps: vec![0; count],
            def_blocks,
            use_blocks,
            live,
        })
    }

    fn solve(&mut self) {
        loop {
            // A register that is never written may hold any value, so also the same one in all
            // lanes.
            for (shape, defs) in self.shapes.iter_mut().zip(&self.def_blocks) {
                *shape = defs.is_empty().then_some(Shape::uniform(Level::Block));
            }
            self.propagate();
            let split = self.classify_branches();
            let demoted = self.demote_assumed();
            if !split && !demoted {
                break;
            }
            // Shapes that relied on an assumption refuted just now may have spread: start over with
            // the updated facts.
            self.range_steps.fill(0);
        }
    }

    /// Propagates shapes through instructions until nothing changes.
    fn propagate(&mut self) {
        let order = self.analysis.flow.reverse_postorder(ENTRY);
        let mut is_reached = vec![false; self.program.blocks.len()];
        order.iter().for_each(|&block| is_reached[block] = true);
        let rest: Vec<BlockId> = (0..is_reached.len()).filter(|&block| !is_reached[block]).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for &id in order.iter().chain(&rest) {
                let block = &self.program.blocks[id];
                for inst in &block.insts {
                    changed |= self.propagate_inst(inst);
                }
                if let Term::Barrier { reduce: Some(reduce), .. } = &block.term {
                    changed |= self.define(reduce.dst, Shape::uniform(Level::Block));
                }
            }
        }
    }

    fn propagate_inst(&mut self, inst: &Inst) -> bool {
        let defs = inst.defs();
        if defs.is_empty() {
            return false;
        }
        let operands = self.operands();
        let guard = match inst.guard {
            Some((reg, _)) if inst.tied => match self.shapes[reg] {
                Some(shape) => shape,
                None => return false,
            },
            _ => Shape::uniform(Level::Block),
        };
        let Some(result) = operands.result(inst) else { return false };
        let result = if guard.is_uniform() { result.at_least(guard.level) } else { Shape::VECTOR };
        let bits = |r: Reg| self.program.regs[r].elem.bits();
        // Several destinations (a vector load, a comparison and its complement) have nothing but
        // uniformity in common.
        let shared = if defs.len() > 1 && !result.is_uniform() { Shape::VECTOR } else { result };
        let merged: Vec<(Reg, Shape)> =
            defs.iter().map(|&d| (d, if bits(d) == 1 { shared.or_uniform() } else { shared })).collect();
        merged.into_iter().fold(false, |changed, (d, shape)| self.define(d, shape) | changed)
    }

    fn operands(&self) -> Operands<'_> {
        Operands { shapes: &self.shapes, block: self.analysis.block, local_bytes: self.program.local_bytes }
    }

    fn define(&mut self, reg: Reg, shape: Shape) -> bool {
        let shape = match self.forced[reg] {
            _ if self.demoted[reg] && !shape.is_uniform() => Shape::VECTOR,
            Split::Uniform => shape,
            Split::PerWarp => shape.at_least(Level::Warp),
            Split::Divergent => Shape::VECTOR,
        };
        let mut merged = shape.merged_into(self.shapes[reg]);
        if let Some(old) = self.shapes[reg]
            && merged.range != old.range
        {
            self.range_steps[reg] += 1;
            if self.range_steps[reg] > MAX_RANGE_STEPS {
                merged.range = None;
            }
        }
        let changed = self.shapes[reg] != Some(merged);
        self.shapes[reg] = Some(merged);
        changed
    }

    /// Classifies branches. If a branch now splits threads further than before, forces the
    /// registers that depend on it and returns true.
    fn classify_branches(&mut self) -> bool {
        let mut changed = false;
        for block in 0..self.program.blocks.len() {
            let Term::Branch { pred, .. } = self.program.blocks[block].term else { continue };
            let split = match self.shapes[pred].unwrap_or(Shape::uniform(Level::Block)) {
                s if !s.is_uniform() => Split::Divergent,
                s if s.level == Level::Warp => Split::PerWarp,
                _ => Split::Uniform,
            };
            if split > self.analysis.split[block] {
                self.analysis.split[block] = split;
                changed = true;
                self.force_joined_values(block, split);
            }
        }
        changed
    }

    /// Forces registers whose values join below a splitting branch, and registers that carry values
    /// out of a loop that lanes leave in different iterations.
    fn force_joined_values(&mut self, branch: BlockId, split: Split) {
        if self.analysis.flow.succs[branch].len() < 2 {
            return; // The other side leaves the kernel.
        }
        let joins = self.joins(branch);
        for phi in self.phis.iter().filter(|phi| joins[phi.block]) {
            force(&mut self.forced, &mut self.analysis.blend, phi.web, split);
        }
        let meet = self.analysis.reconvergence[branch];
        if split == Split::Divergent {
            self.force_waiting_values(branch, meet);
        }
        for index in 0..self.analysis.loops.len() {
            let inside = &self.analysis.loops[index];
            if !inside.has(branch) || inside.has(meet) {
                continue;
            }
            let is_irreducible = inside.entries.len() > 1;
            for reg in 0..self.program.regs.len() {
                let within = |blocks: &[BlockId]| blocks.iter().any(|b| inside.has(*b));
                let leaves = self.use_blocks[reg].iter().any(|b| !inside.has(*b));
                if within(&self.def_blocks[reg]) && (leaves || is_irreducible) {
                    force(&mut self.forced, &mut self.analysis.blend, reg, split);
                }
            }
            self.analysis.loops[index].is_divergent |= split == Split::Divergent;
        }
    }

    /// Forces registers that are live on one side of a branch and written on the other. The control
    /// flow graph has no path between the sides, but the lanes of one side wait while those of the
    /// other side run, and so would read the overwritten value.
    fn force_waiting_values(&mut self, branch: BlockId, meet: BlockId) {
        let sides = self.analysis.flow.succs[branch].clone();
        for (index, &waiting) in sides.iter().enumerate() {
            let others: Vec<BlockId> = sides.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, b)| *b).collect();
            let runs = self.analysis.flow.reachable(&others, Some(meet));
            for reg in self.live.at(waiting) {
                if self.def_blocks[reg].iter().any(|&b| runs[b]) {
                    force(&mut self.forced, &mut self.analysis.blend, reg, Split::Divergent);
                }
            }
        }
    }

    /// Blocks that two paths from different sides of a branch reach, and at which they first join.
    fn joins(&self, branch: BlockId) -> Vec<bool> {
        let flow = &self.analysis.flow;
        let meet = self.analysis.reconvergence[branch];
        let mut label: Vec<Option<BlockId>> = vec![None; flow.len()];
        let mut joins = vec![false; flow.len()];
        let mut work: Vec<BlockId> = flow.succs[branch].clone();
        work.iter().for_each(|&s| label[s] = Some(s));
        while let Some(block) = work.pop() {
            if block == meet || block == branch {
                continue;
            }
            for &next in &flow.succs[block] {
                let incoming = label[block];
                if label[next].is_none() {
                    label[next] = incoming;
                    work.push(next);
                } else if label[next] != incoming && label[next] != Some(next) {
                    label[next] = Some(next);
                    joins[next] = true;
                    work.push(next);
                } else if label[next] != incoming {
                    joins[next] = true;
                }
            }
        }
        // A side that is the reconvergence point itself counts as a path.
        joins[meet] |= flow.succs[branch].contains(&meet);
        joins
    }

    /// Gives up assumed progressions of registers that are used for more than addresses.
    fn demote_assumed(&mut self) -> bool {
        let mut changed = false;
        let is_assumed = |shapes: &[Option<Shape>], r: Reg| shapes[r].is_some_and(|s| s.assumed);
        for block in &self.program.blocks {
            for inst in &block.insts {
                let carries =
                    matches!(inst.form.opcode.as_str(), "mov" | "add" | "sub" | "mul" | "mad" | "shl" | "cvt" | "cvta")
                        && inst.defs().iter().all(|&d| self.shapes[d].is_some_and(|s| s.is_scalar()));
                for operand in inst.sources() {
                    let mut regs = Vec::new();
                    match operand {
                        Opnd::Addr(..) => continue,
                        other => other.collect(&mut regs),
                    }
                    for reg in regs {
                        if !carries && is_assumed(&self.shapes, reg) && !self.demoted[reg] {
                            self.demoted[reg] = true;
                            changed = true;
                        }
                    }
                }
            }
        }
        changed
    }

    /// A branch that splits threads which could then reach a barrier separately.
    fn find_divergent_barrier(&self) -> Option<BlockId> {
        (0..self.program.blocks.len()).find(|&branch| {
            self.analysis.split[branch] != Split::Uniform
                && self.analysis.flow.succs[branch].len() >= 2
                && self
                    .analysis
                    .influence(branch)
                    .into_iter()
                    .any(|b| matches!(self.program.blocks[b].term, Term::Barrier { .. }))
        })
    }

    /// Whether groups of warps reduce separately, at barriers of different numbers. Where groups
    /// only wait separately and all reach the same barriers, it is enough that all warps wait for
    /// all.
    fn reduces_in_groups(&self) -> bool {
        let is_for_all = |number: &Opnd| {
            let mut regs = Vec::new();
            number.collect(&mut regs);
            !matches!(number, Opnd::Special(_))
                && regs.iter().all(|&r| self.shapes[r].is_some_and(|s| s.is_uniform() && s.level == Level::Block))
        };
        self.program.blocks.iter().any(|b| match &b.term {
            Term::Barrier { participants, reduce: Some(_), .. } => !is_for_all(&participants.number),
            _ => false,
        })
    }

    /// The head of a spinning loop that lanes leave in different iterations, and the edges that let
    /// lanes which have left it proceed.
    fn spin_to_extend(&self, spinning: &[Loop], known: &[(BlockId, Extension)]) -> Option<(BlockId, Extension)> {
        let parts = |l: &&Loop| {
            l.blocks
                .iter()
                .any(|&b| self.analysis.split[b] == Split::Divergent && leaves(&self.program.blocks[b].term, l))
        };
        let is_new = |l: &&Loop| known.iter().all(|k| k.0 != l.entries[0]);
        spinning
            .iter()
            .filter(is_new)
            .filter(parts)
            .find_map(|l| Some((l.entries[0], spins::extend(self.program, &l.view())?)))
    }

    fn finish(self) -> Analysis {
        // A register that is only read, or mentioned only in unreachable code, may hold any value.
        let shapes = self.shapes.into_iter().map(|s| s.unwrap_or(Shape::uniform(Level::Block))).collect();
        Analysis { shapes, ..self.analysis }
    }
}

fn force(forced: &mut [Split], blend: &mut [bool], reg: Reg, split: Split) {
    forced[reg] = forced[reg].max(split);
    blend[reg] |= split == Split::Divergent;
}

impl Shape {
    /// The shape of a predicate: uniform or a vector, without progression, range or alignment.
    fn or_uniform(self) -> Shape {
        if self.is_uniform() { Shape { range: None, align_log2: 0, ..self } } else { Shape::VECTOR }
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

    /// The outermost divergent loop that is entered at a block.
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
