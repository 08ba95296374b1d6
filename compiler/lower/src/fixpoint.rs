//! Iterates a fact about registers to a fixpoint, in time proportional to the changes.

use crate::program::{Inst, Program};
use std::collections::VecDeque;

/// Calls `update` with every instruction in order, and again with the instructions that read a
/// register whose fact has changed. `update` returns whether it changed the fact of a register that
/// the instruction writes.
pub(crate) fn iterate(program: &Program, mut update: impl FnMut(&Inst) -> bool) {
    let insts: Vec<&Inst> = program.blocks.iter().flat_map(|b| &b.insts).collect();
    let mut readers = vec![Vec::new(); program.regs.len()];
    for (index, inst) in insts.iter().enumerate() {
        inst.uses().into_iter().for_each(|reg| readers[reg].push(index));
    }
    let mut waiting: VecDeque<usize> = (0..insts.len()).collect();
    let mut is_waiting = vec![true; insts.len()];
    while let Some(index) = waiting.pop_front() {
        is_waiting[index] = false;
        if update(insts[index]) {
            for &reader in insts[index].defs().iter().flat_map(|&reg| &readers[reg]) {
                if !std::mem::replace(&mut is_waiting[reader], true) {
                    waiting.push_back(reader);
                }
            }
        }
    }
}
