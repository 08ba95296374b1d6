//! Estimates the registers of a kernel if no assembler is available to count them.
//!
//! The estimate is the largest number of 32-bit registers that are live at once, in the kernel or
//! in a function it calls on top of the caller's live registers, plus a few that every kernel has.
//! An assembler schedules, rematerialises and pipelines, so the real number may be higher or lower;
//! users of an estimate must tolerate both.

use atoll_ptx::analysis::{Cfg, Code, Liveness, RegisterId};
use atoll_ptx::{Function, Module, Name, Operand, ScalarType};
use std::collections::{BTreeMap, BTreeSet};

/// The stack pointer, address computations, and other registers that `ptxas` adds to small kernels.
const OVERHEAD: u32 = 6;

/// Registers are allocated in multiples of this.
const GRANULE: u32 = 2;

/// Limit on the registers of a thread.
const MAX: u32 = 255;

/// Estimates the registers per thread of `kernel`; `None` if its control flow cannot be analysed.
pub fn estimate_registers(module: &Module, kernel: &Function) -> Option<u32> {
    let peak = Estimator { module, peaks: BTreeMap::new() }.peak(kernel, &mut BTreeSet::new())?;
    Some((peak + OVERHEAD).next_multiple_of(GRANULE).min(MAX))
}

struct Estimator<'m> {
    module: &'m Module,
    /// Results of functions that were already analysed.
    peaks: BTreeMap<Name, u32>,
}

impl<'m> Estimator<'m> {
    /// The largest number of 32-bit registers that are live at once, callees included. `calling`
    /// holds the functions on the current call path; a recursive function counts once.
    fn peak(&mut self, function: &'m Function, calling: &mut BTreeSet<Name>) -> Option<u32> {
        if let Some(peak) = self.peaks.get(&function.name) {
            return Some(*peak);
        }
        if !calling.insert(function.name.clone()) {
            return Some(0);
        }
        let code = Code::of(function);
        let cfg = Cfg::of(&code).ok()?;
        let liveness = Liveness::of(&code, &cfg).ok()?;
        let mut peak = 0;
        for (block, _) in cfg.blocks() {
            let mut calls = Vec::new();
            liveness.walk_back(&code, &cfg, block, |id, live| {
                let words: u32 = live.iter().map(|register| words(&code, *register)).sum();
                peak = peak.max(words);
                if let Some(Operand::Name(callee)) =
                    code.instruction(id).filter(|i| i.opcode == "call").and_then(|i| i.operands.get(1))
                {
                    calls.push((callee.clone(), words));
                }
            });
            for (callee, kept) in calls {
                if let Some(callee) = self.module.function(&callee).filter(|f| f.body.is_some()) {
                    peak = peak.max(kept + self.peak(callee, calling)?);
                }
            }
        }
        calling.remove(&function.name);
        self.peaks.insert(function.name.clone(), peak);
        Some(peak)
    }
}

/// Number of 32-bit registers that a register takes; predicates have a register file of their own.
fn words(code: &Code<'_>, register: RegisterId) -> u32 {
    match code.register(register).ty {
        ScalarType::Pred => 0,
        ty => ty.bytes().div_ceil(4),
    }
}
