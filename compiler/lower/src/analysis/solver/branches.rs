//! What follows from a branch that splits threads: registers that can no longer be scalars, loops
//! that threads leave in different iterations, and barriers that only some threads reach.

use super::*;
use std::collections::HashSet;

impl Solver<'_> {
    /// Classifies branches. If a branch now splits threads further than before, forces the
    /// registers that depend on it and returns true.
    pub(super) fn classify_branches(&mut self) -> Result<bool, TooLarge> {
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
                self.force_joined_values(block, split)?;
            }
        }
        if changed {
            self.force_values_of_left_loops()?;
        }
        Ok(changed)
    }

    /// Forces registers whose values join below a splitting branch, and marks the loops that lanes
    /// leave there in different iterations.
    fn force_joined_values(&mut self, branch: BlockId, split: Split) -> Result<(), TooLarge> {
        if self.analysis.flow.succs[branch].len() < 2 {
            return Ok(()); // The other side leaves the kernel.
        }
        let meet = self.analysis.reconvergence[branch];
        for block in self.walker.joins(&self.analysis.flow, branch, meet, self.budget)? {
            self.budget.spend(self.mentions.joined_at[block].len())?;
            for &reg in &self.mentions.joined_at[block] {
                force(&mut self.forced, &mut self.analysis.blend, reg, split);
            }
        }
        if split == Split::Divergent {
            self.force_waiting_values(branch, meet)?;
        }
        let loops = &self.analysis.loops;
        // If a loop contains the reconvergence point, so do the loops around it.
        for id in loops.outwards(loops.innermost(branch)).take_while(|&id| !loops.contains(id, meet)) {
            self.budget.spend(1)?;
            self.left[id] = self.left[id].max(split);
        }
        Ok(())
    }

    /// Forces registers that are live on one side of a branch and written on the other. The control
    /// flow graph has no path between the sides, but the lanes of one side wait while those of the
    /// other side run, and so would read the overwritten value.
    fn force_waiting_values(&mut self, branch: BlockId, meet: BlockId) -> Result<(), TooLarge> {
        let sides = self.analysis.flow.succs[branch].clone();
        for (index, &waiting) in sides.iter().enumerate() {
            let others: Vec<BlockId> = sides.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, b)| *b).collect();
            let flow = &self.analysis.flow;
            for block in self.walker.reach(flow, &others, |b| b != meet, |_| false, self.budget)? {
                self.budget.spend(self.mentions.written_in[block].len())?;
                for &reg in self.mentions.written_in[block].iter().filter(|&&reg| self.live.contains(waiting, reg)) {
                    force(&mut self.forced, &mut self.analysis.blend, reg, Split::Divergent);
                }
            }
        }
        Ok(())
    }

    /// Forces registers that carry values out of loops which lanes leave in different iterations.
    /// If such a loop has several entries, forces all registers that it writes.
    fn force_values_of_left_loops(&mut self) -> Result<(), TooLarge> {
        let loops = &self.analysis.loops;
        // The greatest split of the loops with several entries among a loop and those around it.
        let mut of_all = vec![Split::Uniform; loops.len()];
        for (id, found) in loops.iter() {
            let around = found.parent.map_or(Split::Uniform, |parent| of_all[parent]);
            of_all[id] = if found.entries.len() > 1 { around.max(self.left[id]) } else { around };
        }
        for (block, written) in self.mentions.written_in.iter().enumerate() {
            let Some(inner) = loops.innermost(block) else { continue };
            self.budget.spend(written.len())?;
            for &reg in written {
                let mut split = of_all[inner];
                let read_in = &self.mentions.read_in[reg];
                for id in loops.outwards(Some(inner)).take_while(|&id| !loops.covers(id, read_in)) {
                    self.budget.spend(1)?;
                    split = split.max(self.left[id]);
                }
                force(&mut self.forced, &mut self.analysis.blend, reg, split);
            }
        }
        Ok(())
    }

    /// The branches that split threads which could then reach a barrier separately. `leads` tells
    /// which blocks lead to a barrier.
    pub(in crate::analysis) fn divergent_barriers(&mut self, leads: &[bool]) -> Result<Vec<BlockId>, TooLarge> {
        let (program, flow) = (self.program, &self.analysis.flow);
        let is_barrier = |b: BlockId| matches!(program.blocks[b].term, Term::Barrier { .. });
        let mut found = Vec::new();
        for branch in 0..program.blocks.len() {
            if self.analysis.split[branch] == Split::Uniform || flow.succs[branch].len() < 2 {
                continue;
            }
            let meet = self.analysis.reconvergence[branch];
            let enters = |b: BlockId| b != meet && leads[b];
            let reached = self.walker.reach(flow, &flow.succs[branch], enters, is_barrier, self.budget)?;
            found.extend(reached.last().is_some_and(|&last| is_barrier(last)).then_some(branch));
        }
        Ok(found)
    }

    /// The heads of the spinning loops that lanes leave in different iterations, and the edges that
    /// let lanes which have left such a loop proceed.
    pub(in crate::analysis) fn spins_to_extend(
        &mut self,
        spinning: &Spinning,
        known: &[(BlockId, Extension)],
    ) -> Result<Vec<(BlockId, Extension)>, TooLarge> {
        let known: HashSet<BlockId> = known.iter().map(|(head, _)| *head).collect();
        let mut found = Vec::new();
        for (id, head) in spinning.heads().filter(|(_, head)| !known.contains(head)) {
            let blocks = spinning.loops.blocks(id);
            self.budget.spend(blocks.len())?;
            let parts = |&b: &BlockId| {
                let leaves =
                    || self.program.blocks[b].term.successors().iter().any(|s| !spinning.loops.contains(id, *s));
                self.analysis.split[b] == Split::Divergent && leaves()
            };
            if blocks.iter().any(parts) {
                self.budget.spend(self.program.blocks.len())?;
                found.extend(spinning.extend(self.program, id).map(|extension| (head, extension)));
            }
        }
        Ok(found)
    }
}

fn force(forced: &mut [Split], blend: &mut [bool], reg: Reg, split: Split) {
    forced[reg] = forced[reg].max(split);
    blend[reg] |= split == Split::Divergent;
}
