//! Registers that matter within one block alone.

use crate::program::{BlockId, Program, Reg};

/// The registers that each block writes before it reads them, and that no other block mentions.
///
/// A target that writes copies of blocks can give each copy its own: no value of such a register gets from one copy to another.
pub fn local_registers(program: &Program) -> Vec<Vec<Reg>> {
    let mut mentions = vec![Mention::None; program.regs.len()];
    for (id, block) in program.blocks.iter().enumerate() {
        for inst in &block.insts {
            inst.uses().into_iter().for_each(|reg| mentions[reg].read_in(id));
            inst.defs().into_iter().for_each(|reg| mentions[reg].written_in(id));
        }
        block.term.uses().into_iter().for_each(|reg| mentions[reg].read_in(id));
        // What a barrier writes is there behind it.
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

/// Where a register is mentioned, as far as the program was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mention {
    None,
    /// In this block, which wrote it first.
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
