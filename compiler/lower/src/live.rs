//! Liveness: the registers whose value may still be read.

use crate::graph::Graph;
use crate::limits::{MAX_PAIRS, TooLarge};
use crate::program::{Block, BlockId, Inst, Program, Reg};

/// The registers that are live at the start of each block.
///
/// Stored as one list per block: most registers live in few blocks, so bit sets over all registers
/// and all blocks would be far larger.
#[derive(Clone, Debug)]
pub struct Live {
    /// Sorted by register.
    at_start: Vec<Vec<u32>>,
}

impl Live {
    /// Computes liveness over a graph of the program's blocks, in time proportional to the number
    /// of pairs of a block and a live register.
    ///
    /// # Errors
    /// Returns [`TooLarge`] if the lists would need too much memory.
    pub fn of(program: &Program, graph: &Graph) -> Result<Live, TooLarge> {
        let Mentions { read_first, written } = Mentions::of(program);
        let mut at_start: Vec<Vec<u32>> = vec![Vec::new(); program.blocks.len()];
        // The last register, among those processed so far, that each block certainly writes.
        let mut writes = vec![Reg::MAX; program.blocks.len()];
        let mut pairs = 0;
        for (reg, mut work) in read_first.into_iter().enumerate() {
            written[reg].iter().for_each(|&block| writes[block] = reg);
            while let Some(block) = work.pop() {
                if at_start[block].last() == Some(&(reg as u32)) {
                    continue;
                }
                at_start[block].push(reg as u32);
                pairs += 1;
                if pairs > MAX_PAIRS {
                    return Err(TooLarge::LiveRegisters);
                }
                work.extend(graph.preds[block].iter().filter(|&&from| writes[from] != reg));
            }
        }
        Ok(Live { at_start })
    }

    /// Whether a register is live at the start of a block.
    pub fn contains(&self, block: BlockId, reg: Reg) -> bool {
        self.at_start[block].binary_search(&(reg as u32)).is_ok()
    }

    /// The registers that are live at the start of a block, sorted.
    pub fn at(&self, block: BlockId) -> impl Iterator<Item = Reg> + '_ {
        self.at_start[block].iter().map(|&reg| reg as Reg)
    }
}

/// The blocks that read or write each register.
struct Mentions {
    /// Blocks that may read it before they write it.
    read_first: Vec<Vec<BlockId>>,
    /// Blocks that certainly write it.
    written: Vec<Vec<BlockId>>,
}

impl Mentions {
    fn of(program: &Program) -> Mentions {
        let none = vec![Vec::new(); program.regs.len()];
        let mut mentions = Mentions { read_first: none.clone(), written: none };
        program.blocks.iter().enumerate().for_each(|(id, block)| mentions.add(id, block));
        mentions
    }

    fn add(&mut self, id: BlockId, block: &Block) {
        for inst in &block.insts {
            self.read(id, &inst.uses());
            // A guarded definition may keep the old value.
            if inst.guard.is_none() {
                self.write(id, &Inst::defs(inst));
            }
        }
        self.read(id, &block.term.uses());
        self.write(id, block.term.def().as_slice());
    }

    fn read(&mut self, id: BlockId, regs: &[Reg]) {
        for &reg in regs {
            if self.written[reg].last() != Some(&id) && self.read_first[reg].last() != Some(&id) {
                self.read_first[reg].push(id);
            }
        }
    }

    fn write(&mut self, id: BlockId, regs: &[Reg]) {
        for &reg in regs {
            if self.written[reg].last() != Some(&id) {
                self.written[reg].push(id);
            }
        }
    }
}
