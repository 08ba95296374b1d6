//! Liveness of registers, computed by [`atoll_ptx::flow`].

use crate::graph::Graph;
use crate::limits::TooLarge;
use crate::program::{Block, BlockId, Inst, Program, Reg};
use atoll_ptx::flow::{Liveness, Mentions};

/// The registers that are live at the start of each block: their value may still be read.
#[derive(Clone, Debug)]
pub struct Live(Liveness);

impl Live {
    /// Computes liveness over a graph of the program's blocks, in time proportional to the number
    /// of pairs of a block and a live register.
    ///
    /// # Errors
    /// Returns [`TooLarge`] if the lists would need too much memory.
    pub fn of(program: &Program, graph: &Graph) -> Result<Live, TooLarge> {
        let mut mentions = Mentions::new(program.regs.len());
        program.blocks.iter().enumerate().for_each(|(id, block)| mention(&mut mentions, id, block));
        let predecessors = |block: BlockId| graph.preds[block].iter().copied();
        Ok(Live(Liveness::of(program.blocks.len(), mentions, predecessors)?))
    }

    /// Whether a register is live at the start of a block.
    pub fn contains(&self, block: BlockId, reg: Reg) -> bool {
        self.0.contains(block, reg)
    }

    /// The registers that are live at the start of a block, sorted.
    pub fn at(&self, block: BlockId) -> impl Iterator<Item = Reg> + '_ {
        self.0.at(block)
    }
}

/// Adds the reads and writes of a block.
fn mention(mentions: &mut Mentions, id: BlockId, block: &Block) {
    for inst in &block.insts {
        inst.uses().into_iter().for_each(|reg| mentions.read(id, reg));
        // A guarded definition may keep the old value.
        if inst.guard.is_none() {
            Inst::defs(inst).into_iter().for_each(|reg| mentions.write(id, reg));
        }
    }
    block.term.uses().into_iter().for_each(|reg| mentions.read(id, reg));
    block.term.def().into_iter().for_each(|reg| mentions.write(id, reg));
}
