//! Maps registers to the loads that define them: a memory fault is reported with the line of its
//! load.

use crate::program::{Inst, Program, Reg};
use std::collections::HashMap;

/// Lines of the loads that define registers.
#[derive(Debug)]
pub struct Loads(HashMap<Reg, u32>);

impl Loads {
    /// The loads of a program. If several loads define a register, the last one counts.
    pub fn of(program: &Program) -> Loads {
        let is_load = |inst: &&Inst| matches!(inst.form.opcode.as_str(), "ld" | "ldu");
        let loads = program.blocks.iter().flat_map(|block| &block.insts).filter(is_load);
        Loads(loads.flat_map(|inst| inst.defs().into_iter().map(|reg| (reg, inst.line))).collect())
    }

    /// The line of the load whose value an instruction consumes; the closest one above the
    /// instruction if there are several.
    pub fn consumed_by(&self, inst: &Inst) -> Option<u32> {
        inst.uses().iter().filter_map(|reg| self.0.get(reg).copied()).filter(|line| *line < inst.line).max()
    }
}
