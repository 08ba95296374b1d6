//! Which load an instruction waits for: faults of memory are told by the line of the load.

use crate::program::{Inst, Program, Reg};
use std::collections::HashMap;

/// Lines of the loads that define registers.
#[derive(Debug)]
pub struct Loads(HashMap<Reg, u32>);

impl Loads {
    /// Those of a program; of several loads into one register the last.
    pub fn of(program: &Program) -> Loads {
        let is_load = |inst: &&Inst| matches!(inst.form.opcode.as_str(), "ld" | "ldu");
        let loads = program.blocks.iter().flat_map(|block| &block.insts).filter(is_load);
        Loads(loads.flat_map(|inst| inst.defs().into_iter().map(|reg| (reg, inst.line))).collect())
    }

    /// The load whose value an instruction consumes, the last above it where there are several.
    pub fn consumed_by(&self, inst: &Inst) -> Option<u32> {
        inst.uses().iter().filter_map(|reg| self.0.get(reg).copied()).filter(|line| *line < inst.line).max()
    }
}
