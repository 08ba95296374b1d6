//! Registers of a kernel where no assembler is there to count them.
//!
//! The estimate is the most 32-bit registers that hold a value at once, in the kernel or in a
//! function it calls on top of what its caller keeps, and a few more that every kernel has. An
//! assembler schedules, rematerialises and pipelines, so it may come out on either side; whoever
//! uses an estimate must be able to live with that.

use atoll_ptx::analysis::{Cfg, Code, Liveness, RegisterId};
use atoll_ptx::{Function, Module, Name, Operand, ScalarType};
use std::collections::{BTreeMap, BTreeSet};

/// The stack pointer, addresses in the making, and what else `ptxas` adds to small kernels.
const OVERHEAD: u32 = 6;

/// Allocation is by multiples of this.
const GRANULE: u32 = 2;

/// Most registers of a thread.
const MAX: u32 = 255;

/// Estimates the registers of a thread of `kernel`; `None` where its control flow cannot be
/// followed.
pub fn estimate_registers(module: &Module, kernel: &Function) -> Option<u32> {
    let peak = Estimator { module, peaks: BTreeMap::new() }.peak(kernel, &mut BTreeSet::new())?;
    Some((peak + OVERHEAD).next_multiple_of(GRANULE).min(MAX))
}

struct Estimator<'m> {
    module: &'m Module,
    /// Of functions that were looked at.
    peaks: BTreeMap<Name, u32>,
}

impl<'m> Estimator<'m> {
    /// The most 32-bit registers that are live at once, callees included. `calling` are the
    /// functions on the way here; one that calls itself counts once.
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

/// 32-bit registers that a register takes; predicates have a file of their own.
fn words(code: &Code<'_>, register: RegisterId) -> u32 {
    match code.register(register).ty {
        ScalarType::Pred => 0,
        ty => ty.bytes().div_ceil(4),
    }
}
