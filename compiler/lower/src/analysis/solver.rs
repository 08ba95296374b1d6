//! The fixpoint: propagates shapes and classifies branches until nothing changes.

mod branches;

use super::walk::Walker;
use super::*;
use crate::live::Live;
use crate::shape::{Level, Operands};
use std::ops::Range;

/// A range that still grows after this many updates becomes unknown.
const MAX_RANGE_STEPS: u8 = 3;

/// The state of the fixpoint.
pub(super) struct Solver<'a> {
    program: &'a Program,
    pub(super) analysis: Analysis,
    shapes: Vec<Option<Shape>>,
    /// The least split of each register, as forced by control flow.
    forced: Vec<Split>,
    /// How threads leave each loop: the greatest split of the branches from which some threads
    /// leave it earlier than others.
    left: Vec<Split>,
    /// Registers whose assumed progression was given up, because they are not used for addresses
    /// only.
    demoted: Vec<bool>,
    range_steps: Vec<u8>,
    mentions: Mentions,
    /// Registers live at the start of each block.
    live: Live,
    walker: Walker,
    budget: &'a mut Budget,
}

/// Where registers are written, read and joined.
struct Mentions {
    /// Instructions of all blocks, terminators included.
    instructions: usize,
    /// Registers that are written somewhere.
    is_written: Vec<bool>,
    /// Registers that each block writes.
    written_in: Vec<Vec<Reg>>,
    /// For each register, the span of [`Loops`] that contains all blocks that read it.
    read_in: Vec<Range<usize>>,
    /// Registers whose values join at the start of each block.
    joined_at: Vec<Vec<Reg>>,
}

impl Mentions {
    fn of(program: &Program, phis: &[Phi], loops: &Loops) -> Mentions {
        let (regs, blocks) = (program.regs.len(), program.blocks.len());
        let mut found = Mentions {
            instructions: blocks + program.blocks.iter().map(|b| b.insts.len()).sum::<usize>(),
            is_written: vec![false; regs],
            written_in: vec![Vec::new(); blocks],
            read_in: vec![0..0; regs],
            joined_at: vec![Vec::new(); blocks],
        };
        for (id, block) in program.blocks.iter().enumerate() {
            for reg in block.insts.iter().flat_map(Inst::uses).chain(block.term.uses()) {
                found.read_in[reg] = loops.span(&found.read_in[reg], id);
            }
            let written = &mut found.written_in[id];
            written.extend(block.insts.iter().flat_map(Inst::defs).chain(block.term.def()));
            written.sort_unstable();
            written.dedup();
            written.iter().for_each(|&reg| found.is_written[reg] = true);
        }
        phis.iter().for_each(|phi| found.joined_at[phi.block].push(phi.web));
        found
    }
}

impl<'a> Solver<'a> {
    pub(super) fn new(
        program: &'a Program,
        phis: &'a [Phi],
        block: BlockShape,
        exit_side: Vec<Option<BlockId>>,
        extensions: &[(BlockId, Extension)],
        budget: &'a mut Budget,
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
        let loops = Loops::of(&flow, budget)?;
        let live = Live::of(program, &flow)?;
        let mentions = Mentions::of(program, phis, &loops);
        let left = vec![Split::Uniform; loops.len()];
        let analysis = Analysis {
            block,
            shapes: Vec::new(),
            split: vec![Split::Uniform; program.blocks.len()],
            blend: vec![false; count],
            reconvergence,
            exit_side,
            flow,
            loops,
            divergent_loops: HashMap::new(),
            scheduled: false,
            spins: BTreeSet::new(),
        };
        Ok(Solver {
            program,
            analysis,
            shapes: vec![None; count],
            forced: vec![Split::Uniform; count],
            left,
            demoted: vec![false; count],
            range_steps: vec![0; count],
            mentions,
            live,
            walker: Walker::new(program.blocks.len()),
            budget,
        })
    }

    pub(super) fn solve(&mut self) -> Result<(), TooLarge> {
        loop {
            // A register that is never written may hold any value, so also the same one in all
            // lanes.
            for (shape, is_written) in self.shapes.iter_mut().zip(&self.mentions.is_written) {
                *shape = (!is_written).then_some(Shape::uniform(Level::Block));
            }
            self.propagate()?;
            while self.begin_cycles() {
                self.propagate()?;
            }
            let split = self.classify_branches()?;
            let demoted = self.demote_assumed();
            if !split && !demoted {
                return Ok(());
            }
            // Shapes that relied on an assumption that was just refuted may have spread: start over
            // with the updated facts.
            self.range_steps.fill(0);
        }
    }

    /// Gives registers a shape whose values come from themselves, from the round before of a loop, and
    /// that have no value in the first round. That one may be any, so also the same in all lanes; the
    /// values of later rounds need not be. Returns whether there were any.
    fn begin_cycles(&mut self) -> bool {
        let is_without_shape = |reg: &Reg| self.mentions.is_written[*reg] && self.shapes[*reg].is_none();
        let found: Vec<Reg> = self.live.at(ENTRY).filter(is_without_shape).collect();
        found.iter().for_each(|&reg| self.shapes[reg] = Some(Shape::uniform(Level::Block)));
        !found.is_empty()
    }

    /// Propagates shapes through instructions until nothing changes.
    fn propagate(&mut self) -> Result<(), TooLarge> {
        let order = self.analysis.flow.reverse_postorder(ENTRY);
        let mut is_reached = vec![false; self.program.blocks.len()];
        order.iter().for_each(|&block| is_reached[block] = true);
        let rest: Vec<BlockId> = (0..is_reached.len()).filter(|&block| !is_reached[block]).collect();
        let mut changed = true;
        while changed {
            changed = false;
            self.budget.spend(self.mentions.instructions)?;
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
        Ok(())
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

    pub(super) fn finish(self) -> Analysis {
        // A register that is only read, or mentioned only in unreachable code, may hold any value.
        let shapes = self.shapes.into_iter().map(|s| s.unwrap_or(Shape::uniform(Level::Block))).collect();
        let mut divergent_loops = HashMap::new();
        for (id, found) in self.analysis.loops.iter().filter(|(id, _)| self.left[*id] == Split::Divergent) {
            // An outer loop comes before the loops it contains.
            found.entries.iter().for_each(|&entry| _ = divergent_loops.entry(entry).or_insert(id));
        }
        Analysis { shapes, divergent_loops, ..self.analysis }
    }
}

impl Shape {
    /// The shape of a predicate: uniform or a vector, without progression, range or alignment.
    fn or_uniform(self) -> Shape {
        if self.is_uniform() { Shape { range: None, align_log2: 0, ..self } } else { Shape::VECTOR }
    }
}
