//! The fixpoint: propagates shapes and classifies branches until nothing changes.

use super::*;
use crate::shape::{Level, Operands};

/// A range that still grows after this many updates becomes unknown.
const MAX_RANGE_STEPS: u8 = 3;

/// The state of the fixpoint.
pub(super) struct Solver<'a> {
    program: &'a Program,
    phis: &'a [Phi],
    pub(super) analysis: Analysis,
    shapes: Vec<Option<Shape>>,
    /// The least split of each register, as forced by control flow.
    forced: Vec<Split>,
    /// Registers whose assumed progression was given up, because they are not used for addresses
    /// only.
    demoted: Vec<bool>,
    range_steps: Vec<u8>,
    def_blocks: Vec<Vec<BlockId>>,
    use_blocks: Vec<Vec<BlockId>>,
    /// Registers live at the start of each block.
    live: Live,
}

impl<'a> Solver<'a> {
    pub(super) fn new(
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

    pub(super) fn solve(&mut self) {
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
            // Shapes that relied on an assumption that was just refuted may have spread: start over
            // with the updated facts.
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
    pub(super) fn find_divergent_barrier(&self) -> Option<BlockId> {
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

    /// Whether groups of warps reduce separately, at barriers of different numbers. If groups only
    /// wait separately and all of them reach the same barriers, one barrier of all warps is correct
    /// too.
    pub(super) fn reduces_in_groups(&self) -> bool {
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
    pub(super) fn spin_to_extend(
        &self,
        spinning: &[Loop],
        known: &[(BlockId, Extension)],
    ) -> Option<(BlockId, Extension)> {
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

    pub(super) fn finish(self) -> Analysis {
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
