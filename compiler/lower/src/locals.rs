//! Registers that are used in one block only.

use crate::program::{BlockId, Program, Reg};

/// For each block, the registers that it writes before it reads them and that no other block
/// mentions.
///
/// A target that duplicates blocks can give each copy registers of its own, because the value of
/// such a register never flows from one copy to another.
pub fn local_registers(program: &Program) -> Vec<Vec<Reg>> {
    let mut mentions = vec![Mention::None; program.regs.len()];
    for (id, block) in program.blocks.iter().enumerate() {
        for inst in &block.insts {
            inst.uses().into_iter().for_each(|reg| mentions[reg].read_in(id));
            inst.defs().into_iter().for_each(|reg| mentions[reg].written_in(id));
        }
        block.term.uses().into_iter().for_each(|reg| mentions[reg].read_in(id));
        // The result of a barrier is read in the block that follows it.
        block.term.def().into_iter().for_each(|reg| mentions[reg] = Mention::Several);
    }
    let mut local = vec![Vec::new(); program.blocks.len()];
    for (reg, mention) in mentions.into_iter().enumerate() {
        if let Mention::Only(block) = mention {
            local[block].push(reg);
        }
    }
    local
}

/// Where a register is mentioned, in the part of the program read so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mention {
    None,
    /// In this block only, which writes it first.
    Only(BlockId),
    Several,
}

impl Mention {
    fn written_in(&mut self, block: BlockId) {
        if *self == Mention::None {
            *self = Mention::Only(block);
        }
        self.read_in(block);
    }

    fn read_in(&mut self, block: BlockId) {
        if *self != Mention::Only(block) {
            *self = Mention::Several;
        }
    }
}
